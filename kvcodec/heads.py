"""Cut heads out of encoded rows and put them together again, without decoding.

A reader of tensor-parallel size 2 takes its heads from what a single rank stored, and the other
way round. Works for codecs with `head_splittable`: their parts either run over heads on a declared
axis (`Section.head_axis`), or belong to all heads and are repeated in every cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.errors import InvalidInputError, UnsupportedSpecError
from kvcodec.row import Row, read_rows, write_row

Part = npt.NDArray[Any]


def take_heads(encoded: EncodedBlocks, start: int, stop: int) -> EncodedBlocks:
    """Rows of heads [start, stop) of the same blocks; they decode to the same values.

    Rows come back on the device they were on, by way of the host.

    Raises:
        UnsupportedSpecError: the codec codes all heads together.
        InvalidInputError: the range is empty or leaves the block.
        CorruptDataError: a row is malformed.
    """
    _require_splittable(encoded.codec)
    heads = encoded.spec.num_kv_heads
    if not 0 <= start < stop <= heads:
        raise InvalidInputError(f"take_heads: [{start}, {stop}) is not within {heads} heads")
    codec = encoded.codec
    params = {name: getattr(codec, name)[start:stop] for name in codec.head_params()}
    spec = replace(encoded.spec, num_kv_heads=stop - start)
    rows = read_rows(encoded.to("cpu"))

    def part(i: int, name: str, axis: int | None) -> Part:
        whole = rows[i].parts[name]
        return whole if axis is None else np.take(whole, range(start, stop), axis)

    return _write(replace(codec, **params), spec, rows, part, encoded.payload.device)


def merge_heads(encoded: Sequence[EncodedBlocks]) -> EncodedBlocks:
    """Inverse of `take_heads`: rows of all heads from consecutive cuts of the same blocks.

    Raises:
        UnsupportedSpecError: the codec codes all heads together.
        InvalidInputError: the cuts are not of the same blocks: another codec, spec, number of
            rows, mode or num_valid, or a part of all heads differs.
        CorruptDataError: a row is malformed.
    """
    if not encoded:
        raise InvalidInputError("merge_heads: nothing to merge")
    first = encoded[0]
    codec, names = first.codec, first.codec.head_params()
    _require_splittable(codec)
    for other in encoded[1:]:
        if _shared(other.codec) != _shared(codec):
            raise InvalidInputError(f"merge_heads: {other.codec} differs from {codec}")
        if replace(other.spec, num_kv_heads=1) != replace(first.spec, num_kv_heads=1):
            raise InvalidInputError(f"merge_heads: {other.spec} differs from {first.spec}")
        if len(other) != len(first):
            raise InvalidInputError(f"merge_heads: {len(other)} rows differ from {len(first)}")
    params = {name: sum((getattr(e.codec, name) for e in encoded), ()) for name in names}
    spec = replace(first.spec, num_kv_heads=sum(e.spec.num_kv_heads for e in encoded))
    cuts = list(zip(*(read_rows(e.to("cpu")) for e in encoded), strict=True))
    for i, rows in enumerate(cuts):
        if len({(row.mode, row.num_valid) for row in rows}) > 1:
            kinds = [(row.mode, row.num_valid) for row in rows]
            raise InvalidInputError(f"merge_heads: row {i}: (mode, num_valid) differ: {kinds}")

    def part(i: int, name: str, axis: int | None) -> Part:
        pieces = [row.parts[name] for row in cuts[i]]
        if axis is not None:
            return np.concatenate(pieces, axis)
        if any(piece.tobytes() != pieces[0].tobytes() for piece in pieces):
            raise InvalidInputError(
                f"merge_heads: row {i}: {name!r} belongs to all heads and differs between cuts"
            )
        return pieces[0]

    merged = replace(codec, **params)
    return _write(merged, spec, [rows[0] for rows in cuts], part, first.payload.device)


def _require_splittable(codec: Codec) -> None:
    if not codec.head_splittable:
        raise UnsupportedSpecError(
            f"{codec.name}: its rows code all heads together, or name tables of all heads; "
            "decompress the block and compress the heads you need, or store them with a codec "
            "that has head_splittable"
        )


def _shared(codec: Codec) -> tuple[object, ...]:
    """What cuts of one row have in common: all of the codec but its parameters per head."""
    per_head, params = codec.head_params(), codec.config()["params"]
    return type(codec), per_head, {k: v for k, v in params.items() if k not in per_head}


def _write(
    codec: Codec,
    spec: BlockSpec,
    rows: Sequence[Row],
    part: Callable[[int, str, int | None], Part],
    device: torch.device,
) -> EncodedBlocks:
    """Rows with the mode and num_valid of `rows` and the parts that `part` gives."""
    codec.require(spec)
    payload = np.zeros((len(rows), codec.max_nbytes(spec)), np.uint8)
    nbytes = torch.zeros(len(rows), dtype=torch.int32)
    for i, row in enumerate(rows):
        sections = codec.sections(spec, row.mode)
        parts = {s.name: part(i, s.name, s.head_axis) for s in sections}
        nbytes[i] = write_row(payload[i], sections, row.mode, row.num_valid, parts)
    return EncodedBlocks(codec, spec, torch.from_numpy(payload), nbytes).to(device)
