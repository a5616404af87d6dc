"""bitplane without a compiler: numpy over all rows of a batch that are filled alike.

Bytes of the reference. Elements stay in their own width, so that a pass over a batch moves little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from kvcodec.bits import U8, UInt, from_bits, join_fields, plane_widths, split_fields, to_bits
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.bitplane import (
    CODED,
    RAW,
    SLOTS,
    TILE,
    Bitplane,
    check_parts,
    escapes_of,
    num_columns,
    num_slots,
    num_tiles,
    pack_stream,
    plane_words,
    running,
    unpack_stream,
)
from kvcodec.errors import CorruptDataError
from kvcodec.kernels._dense import DenseKernel
from kvcodec.row import Row, align, read_rows, write_row

CHUNK = 1 << 20  # elements that are worked on together: a few MB of intermediate arrays


def encode(
    blocks: torch.Tensor,
    num_valid: torch.Tensor,
    out: EncodedBlocks,
    positions: torch.Tensor | None = None,
) -> None:
    """See `Codec.encode`."""
    codec, spec, payload = cast(Bitplane, out.codec), out.spec, out.payload.numpy()
    bits, valid = to_bits(blocks).reshape(len(blocks), -1), num_valid.tolist()
    sections = [codec.sections(spec, mode) for mode in (RAW, CODED)]
    for v, rows in alike(range(len(valid)), valid, spec):
        n = v * spec.token_numel
        coded = encode_parts(codec, bits[rows, :n], spec) if v else [None] * len(rows)
        for i, parts in zip(rows, coded, strict=True):
            elements = bits[i, :n].view(np.uint8)
            mode, chosen = RAW, {"elements": elements}
            if parts is not None:
                nbytes = sum(align(part.nbytes) for part in parts.values())
                if nbytes < align(elements.size):  # the prefix takes 16 bytes in both modes
                    mode, chosen = CODED, parts
            out.nbytes[i] = write_row(payload[i], sections[mode], mode, v, chosen)


def decode(encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
    """See `Codec.decode`."""
    codec, spec, rows = cast(Bitplane, encoded.codec), encoded.spec, read_rows(encoded)
    bits = np.zeros((len(rows), spec.numel), f"u{spec.dtype.itemsize}")
    for i, row in enumerate(rows):
        n = row.num_valid * spec.token_numel
        if row.mode == CODED:
            check_parts(codec, row, n, spec)
        elif row.parts["elements"].size != n * spec.dtype.itemsize:
            raise CorruptDataError(f"bitplane: raw part does not hold {n} elements")
        else:
            bits[i, :n] = row.parts["elements"].view(bits.dtype)
    coded = [i for i, row in enumerate(rows) if row.mode == CODED]
    for v, some in alike(coded, [row.num_valid for row in rows], spec):
        n = v * spec.token_numel
        bits[some, :n] = decode_parts(codec, [rows[i] for i in some], n, spec)
    return from_bits(bits.reshape(-1, *spec.shape), spec.dtype)


def alike(
    rows: Iterable[int], valid: list[int], spec: BlockSpec
) -> Iterator[tuple[int, list[int]]]:
    """Rows by their valid tokens, in chunks."""
    by_valid: dict[int, list[int]] = {}
    for i in rows:
        by_valid.setdefault(valid[i], []).append(i)
    step = max(1, CHUNK // spec.numel)
    for v, some in by_valid.items():
        for begin in range(0, len(some), step):
            yield v, some[begin : begin + step]


def encode_parts(codec: Bitplane, bits: UInt, spec: BlockSpec) -> list[dict[str, UInt]]:
    """Parts of the coded rows of elements [rows, n]."""
    fmt, rate, rows = spec.format, codec.rate, len(bits)
    mask = np.uint8((1 << fmt.exponent_bits) - 1)
    exponent, raw = split_fields(bits, fmt)
    levels = exponent.reshape(rows, -1, spec.token_numel)
    nth = levels.shape[1] - max(1, levels.shape[1] // rate.quantile)
    bases = (np.partition(levels, nth, axis=1)[:, nth] - np.uint8(rate.depth)) & mask
    distance = ((levels - bases[:, None]) & mask).reshape(rows, -1)
    if codec.two_level:
        below = distance >= mask - 6
        escaped = (distance > 3) & ~below
        code = distance + np.uint8(11 - (1 << fmt.exponent_bits) & 255) * below
    else:
        escaped, code = distance > 7, distance
    code[escaped] = 0
    first = np.minimum(code, 3) if codec.two_level else code
    planes = [pack(to_columns(first, spec), w, s) for w, s in shifts(rate.planes)]
    field = to_columns(raw, spec)
    planes += [pack(field, w, s) for w, s in shifts(plane_widths(fmt.raw_bits))]
    words = np.concatenate(planes, axis=1)
    tiles = num_tiles(spec)
    found = list(by_row(escaped, exponent, spec))
    more = by_row(code > 2, code, spec) if codec.two_level else None
    parts: list[dict[str, UInt]] = []
    for i, (tile, position, value) in enumerate(found):
        ends = [running(np.bincount(tile, minlength=tiles))]
        part = {"bases": bases[i], "planes": words[i]}
        if more is not None:
            tile, _, second = next(more)
            part["stream"], sizes = pack_stream(second.astype(np.int64) - 3, tile, tiles)
            ends.insert(0, running(sizes))
        part["escapes"] = np.concatenate([position.astype("<u2").view(np.uint8), value])
        part["ends"] = np.stack(ends, axis=1).astype("<u4")
        parts.append(part)
    return parts


def decode_parts(codec: Bitplane, rows: list[Row], n: int, spec: BlockSpec) -> UInt:
    """Elements [rows, n] of coded rows whose parts were checked."""
    fmt, widths = spec.format, codec.rate.planes
    words = np.stack([row.parts["planes"] for row in rows])
    cut = plane_words(n, widths, spec)
    code = unpack(words[:, :cut], widths, n, spec, np.dtype(np.uint8))
    word = np.dtype(f"u{fmt.itemsize}")
    raw = unpack(words[:, cut:], plane_widths(fmt.raw_bits), n, spec, word)
    if codec.two_level:
        for codes, row in zip(code, rows, strict=True):
            by_column = codes.transpose(1, 0, 2)  # a view
            more = by_column == 3
            counts = [np.count_nonzero(more[i : i + TILE]) for i in range(0, len(more), TILE)]
            parts = row.parts
            second = unpack_stream(parts["stream"], parts["ends"][:, 0], np.array(counts))
            by_column[more] = np.where(second > 0, second - 8, 3).astype(np.int8).view(np.uint8)
    bases = np.stack([row.parts["bases"] for row in rows])
    code = code.reshape(len(rows), -1)[:, :n].reshape(len(rows), -1, spec.token_numel)
    exponent = (code + bases[:, None]) & np.uint8((1 << fmt.exponent_bits) - 1)
    exponent = exponent.reshape(len(rows), n)
    for values, row in zip(exponent, rows, strict=True):
        element, value = escapes_of(row, n, spec)
        values[element] = value
    return join_fields(exponent, raw.reshape(len(rows), -1)[:, :n], fmt)


def shifts(widths: tuple[int, ...]) -> list[tuple[int, int]]:
    """Width and lowest bit of each plane."""
    return [(w, sum(widths[:i])) for i, w in enumerate(widths)]


def to_columns(values: UInt, spec: BlockSpec) -> UInt:
    """[rows, n] -> [rows, slots, columns, 2], zeros behind."""
    slot = 2 * num_columns(spec)
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % slot)))
    return padded.reshape(len(values), -1, slot // 2, 2)


def pack(values: UInt, width: int, shift: int) -> UInt:
    """[rows, slots, columns, 2] -> words [rows, n] of one plane."""
    per_word = 16 // width
    rows = -(-values.shape[1] // per_word)
    words = np.zeros((len(values), rows, values.shape[2]), np.uint32)
    field = (values >> shift) & values.dtype.type((1 << width) - 1)
    for slot in range(values.shape[1]):
        low, high = field[:, slot, :, 0], field[:, slot, :, 1].astype(np.uint32)
        words[:, slot // per_word] |= (low | high << 16) << (slot % per_word * width)
    return words.reshape(len(values), -1)


def unpack(
    words: UInt, widths: tuple[int, ...], n: int, spec: BlockSpec, dtype: np.dtype[np.generic]
) -> UInt:
    """Inverse of `pack` for planes behind each other: [rows, slots, columns, 2]."""
    slots, columns = num_slots(n, spec), num_columns(spec)
    values, begin = np.zeros((len(words), slots, columns, 2), dtype), 0
    for width, shift in shifts(widths):
        per_word, count = 16 // width, plane_words(n, (width,), spec)
        plane = words[:, begin : begin + count].reshape(len(words), -1, columns)
        for slot in range(slots):
            both = plane[:, slot // per_word] >> (slot % per_word * width)
            for half in (0, 1):
                field = (both >> (16 * half) & ((1 << width) - 1)).astype(dtype)
                values[:, slot, :, half] |= field << shift
        begin += count
    return values


def by_row(
    chosen: npt.NDArray[np.bool_], values: U8, spec: BlockSpec
) -> Iterator[tuple[UInt, UInt, U8]]:
    """Tiles, positions and values of the chosen elements of each row, in the order of a row."""
    by_column = np.ascontiguousarray(to_columns(chosen, spec).transpose(0, 2, 1, 3))
    found = np.flatnonzero(by_column)
    value = to_columns(values, spec).transpose(0, 2, 1, 3)[by_column]
    _, columns, slots, _ = by_column.shape
    place, inside = np.divmod(found, 2 * slots)
    row, column = np.divmod(place, columns)
    tile, position = column // TILE, 2 * SLOTS * (column % TILE) + inside
    ends = running(np.bincount(row, minlength=len(chosen))).tolist()
    for begin, end in zip([0, *ends], ends, strict=False):
        yield tile[begin:end], position[begin:end], value[begin:end]


KERNEL = DenseKernel(encode, decode)
