"""What a frame holds and which of its checks pass, for people; nothing is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from kvcodec import envelope as outer
from kvcodec.errors import KVCodecError
from kvcodec.frame import byte_view
from kvcodec.row import read_row

T = TypeVar("T")


def describe(data: bytes | memoryview) -> dict[str, Any]:
    """JSON-able account of a frame, damaged or not; damage is reported, never raised.

    Returns:
        nbytes, passed (bool), checks: [{check, passed, error}] in the order of `frame.loads`, and,
        as far as the bytes can still be understood: header {codecs, specs, identity},
        fingerprint, num_rows, front_nbytes (all before the rows), rows_nbytes, raw_nbytes, ratio,
        and rows: [{row, offset, nbytes, codec, spec, bits_per_element, mode, num_valid, parts,
        error}], where parts are bytes by name and error is None for a sound row.
    """
    view = byte_view(data)
    report: dict[str, Any] = {"nbytes": len(view), "passed": False, "checks": [], "rows": []}
    envelope = _attempt(report, "sizes", lambda: outer.read_envelope(view))
    if envelope is None:
        return report
    header = _attempt(report, "header", lambda: outer.read_header(envelope.header))
    _attempt(report, "checksum", lambda: outer.check_front(view, envelope))
    rows = [_row(view, envelope, header, i) for i in range(len(envelope.index))]
    bad = [row["row"] for row in rows if row["error"]]
    error = f"{len(bad)} of {len(rows)} rows fail: {bad}" if bad else None
    report["checks"].append({"check": "rows", "passed": not bad, "error": error})
    report["passed"] = all(check["passed"] for check in report["checks"])
    report |= {
        "num_rows": len(rows),
        "front_nbytes": envelope.offsets[0],
        "rows_nbytes": len(view) - envelope.offsets[0],
        "rows": rows,
    }
    if header is not None:
        report["header"] = {
            "codecs": [{"spec": str(codec), **codec.config()} for codec in header.codecs],
            "specs": [spec.to_json() for spec in header.specs],
            "identity": header.identity.to_json(),
        }
        report["fingerprint"] = header.identity.fingerprint()
    if report["passed"]:
        report["raw_nbytes"] = sum(row["raw_nbytes"] for row in rows)
        report["ratio"] = report["raw_nbytes"] / report["nbytes"]
    return report


def _attempt(report: dict[str, Any], check: str, step: Callable[[], T]) -> T | None:
    """Result of a step, or None; either way the report says how it went."""
    result, error = None, None
    try:
        result = step()
    except KVCodecError as caught:
        error = str(caught)
    report["checks"].append({"check": check, "passed": error is None, "error": error})
    return result


def _row(
    view: memoryview, envelope: outer.Envelope, header: outer.Header | None, i: int
) -> dict[str, Any]:
    offset, end = envelope.offsets[i], envelope.offsets[i + 1]
    row: dict[str, Any] = {"row": i, "offset": offset, "nbytes": end - offset, "error": None}
    try:
        kind = None if header is None else outer.check_entry(envelope, header, i)
        if kind is not None:
            codec, spec = kind
            row |= {"codec": str(codec), "spec": spec.to_json(), "raw_nbytes": spec.nbytes}
            row["bits_per_element"] = 8 * (end - offset) / spec.numel
        data = np.frombuffer(outer.check_row(view, envelope, i), np.uint8)
        if kind is not None:
            parsed = read_row(data, codec.sections(spec, int(data[0])), spec.block_size)
            row |= {"mode": parsed.mode, "num_valid": parsed.num_valid}
            row["parts"] = {name: part.nbytes for name, part in parsed.parts.items()}
    except KVCodecError as error:
        row["error"] = str(error)
    return row
