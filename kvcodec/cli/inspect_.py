"""`kvcodec inspect`: what a frame holds, and whether it is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kvcodec.cli.console import console
from kvcodec.errors import CorruptDataError, InvalidInputError

EPILOG = """\b
Examples:
  kvcodec inspect blocks.kvc
  kvcodec inspect blocks.kvc --json

Exit code 2 and a line on stderr if any check fails.
"""


def inspect_frame(
    file: Annotated[Path, typer.Argument(help="A frame that kvcodec.dumps wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a frame's header, sizes and checks; nothing is decoded."""
    from kvcodec.inspect import describe

    try:
        data = file.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"cannot read {str(file)!r}: {error.strerror}") from error
    found = describe(data)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _print(found)
    if not found["passed"]:
        failed = next(check for check in found["checks"] if not check["passed"])
        raise CorruptDataError(f"{file} is damaged: {failed['check']}: {failed['error']}")


def _print(found: dict[str, Any]) -> None:
    out = console()
    facts = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    facts.add_row("bytes", _sizes(found))
    for check in found["checks"]:
        facts.add_row(check["check"], "passed" if check["passed"] else f"FAILED: {check['error']}")
    for key, value in found.get("header", {}).get("identity", {}).items():
        facts.add_row(key, value if isinstance(value, str) else json.dumps(value))
    if "fingerprint" in found:
        facts.add_row("fingerprint", str(found["fingerprint"]))
    out.print(facts)
    if found["rows"]:
        out.print()
        out.print(_rows(found["rows"]))


def _sizes(found: dict[str, Any]) -> str:
    text = str(found["nbytes"])
    if "num_rows" in found:
        text += (
            f" = {found['front_nbytes']} before the rows + {found['rows_nbytes']} in "
            f"{found['num_rows']} rows"
        )
    if "ratio" in found:
        text += f"; {found['raw_nbytes']} raw, ratio {found['ratio']:.3f}"
    return text


def _rows(rows: list[dict[str, Any]]) -> Table:
    made = Table(box=None, padding=(0, 1), pad_edge=False)
    for name in ("row", "offset", "bytes"):
        made.add_column(name, justify="right")
    for name in ("codec", "block", "bits", "mode", "valid", "parts"):
        made.add_column(name, justify="right" if name in ("bits", "mode", "valid") else "left")
    for row in rows:
        spec = row.get("spec")
        sizes = ", ".join(f"{name} {nbytes}" for name, nbytes in row.get("parts", {}).items())
        bits = row.get("bits_per_element")
        made.add_row(
            str(row["row"]),
            str(row["offset"]),
            str(row["nbytes"]),
            row.get("codec", "?"),
            "?" if spec is None else " x ".join(map(str, spec.values())),
            "?" if bits is None else f"{bits:.3f}",
            str(row.get("mode", "?")),
            str(row.get("num_valid", "?")),
            f"FAILED: {row['error']}" if row["error"] else sizes,
        )
    return made
