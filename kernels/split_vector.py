"""split without a compiler: numpy over all rows of a batch at once. Bytes of the reference."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch

from kvcodec import centring, rans
from kvcodec.bits import UInt, from_bits, join_fields, split_fields, to_bits
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.split import (
    CENTRED,
    CODED,
    RAW,
    TABLED,
    Coded,
    Split,
    count,
    measure,
    symbols_of,
)
from kvcodec.errors import CorruptDataError
from kvcodec.kernels import _contexts_vector, _rans_vector
from kvcodec.kernels._bits_vector import pack_raw, plane_nbytes, unpack_raw
from kvcodec.kernels._dense import DenseKernel
from kvcodec.row import Row, align, read_rows, write_row


def encode(
    blocks: torch.Tensor,
    num_valid: torch.Tensor,
    out: EncodedBlocks,
    positions: torch.Tensor | None = None,
) -> None:
    """See `Codec.encode`."""
    spec, payload = out.spec, out.payload.numpy()
    codec = cast(Split, out.codec)
    bits = to_bits(blocks).reshape(len(blocks), -1)
    valid = num_valid.tolist()
    coded: dict[int, dict[str, UInt]] = {}
    filled = [i for i, v in enumerate(valid) if v > 0]
    for rows in chunks(filled, spec):
        sizes = np.array([valid[i] for i in rows]) * spec.token_numel
        coded.update(zip(rows, encode_parts(bits, rows, sizes, spec, codec.model), strict=True))
    tabled = encode_with_tables(bits, valid, filled, codec, spec)
    for i, v in enumerate(valid):
        elements = bits[i, : v * spec.token_numel].view(np.uint8)
        row: Coded = (RAW, {"elements": elements})
        if v:
            nbytes = sum(align(part.nbytes) for part in coded[i].values())
            if nbytes < align(elements.size):  # the prefix takes 16 bytes in both modes
                row = CENTRED if "centres" in coded[i] else CODED, coded[i]
            row = codec.smaller(spec, row, *tabled.get(i, (RAW, None)))
        mode, parts = row
        sections = out.codec.sections(spec, mode)
        out.nbytes[i] = write_row(payload[i], sections, mode, v, parts)


def decode(encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
    """See `Codec.decode`."""
    spec = encoded.spec
    rows = read_rows(encoded)
    bits = np.zeros((len(rows), spec.numel), f"u{spec.dtype.itemsize}")
    for i, row in enumerate(rows):
        n = row.num_valid * spec.token_numel
        if row.mode == RAW:
            if row.parts["elements"].size != n * spec.dtype.itemsize:
                raise CorruptDataError(f"split: raw part does not hold {n} elements")
            bits[i, :n] = row.parts["elements"].view(bits.dtype)
    coded = [i for i, row in enumerate(rows) if row.mode in (CODED, CENTRED)]
    for some in chunks(coded, spec):
        bits[some] = decode_parts([rows[i] for i in some], spec)
    tabled = [i for i, row in enumerate(rows) if row.mode in TABLED.values()]
    for some in _contexts_vector.chunks(tabled, [row.num_valid for row in rows], spec):
        tables = cast(Split, encoded.codec).held()
        found = _contexts_vector.decode_parts([rows[i] for i in some], spec, tables)
        bits[some, : found.shape[1]] = found
    return from_bits(bits.reshape(-1, *spec.shape), spec.dtype)


def encode_with_tables(
    bits: UInt, valid: list[int], rows: list[int], codec: Split, spec: BlockSpec
) -> dict[int, tuple[int, dict[str, UInt] | None]]:
    """Mode and parts of `bits[rows]` under a profile's tables, by row; none without a profile."""
    found: dict[int, tuple[int, dict[str, UInt] | None]] = {}
    if codec.model in TABLED:
        mode = TABLED[codec.model]
        for some in _contexts_vector.chunks(rows, valid, spec):
            block = bits[some, : valid[some[0]] * spec.token_numel]
            parts = _contexts_vector.encode_parts(block, spec, codec.held(), mode)
            found |= {row: (mode, part) for row, part in zip(some, parts, strict=True)}
    return found


def chunks(rows: list[int], spec: BlockSpec) -> list[list[int]]:
    """Rows in runs that the coder takes together."""
    step = _rans_vector.MAX_STATES // rans.num_lanes(spec.nbytes)
    return [rows[i : i + step] for i in range(0, len(rows), step)]


def padded_numel(spec: BlockSpec) -> int:
    """Elements of a block, rounded up to whole rounds of all lanes."""
    unit = rans.GROUP * rans.num_lanes(spec.nbytes)
    return -(-spec.numel // unit) * unit


def encode_parts(
    bits: UInt, rows: list[int], sizes: rans.Ints, spec: BlockSpec, model: str
) -> list[dict[str, UInt]]:
    """Parts of the coded rows of `bits[rows]`; sizes [n]: elements of each, not zero."""
    lanes = rans.num_lanes(spec.nbytes)
    elements = np.zeros((len(rows), padded_numel(spec)), bits.dtype)
    for element, i, n in zip(elements, rows, sizes, strict=True):
        element[:n] = bits[i, :n]
    symbols, raw = split_fields(elements, spec.format)
    sides: list[dict[str, UInt]] = [{} for _ in rows]
    if model != "plain":
        for side, row, n in zip(sides, symbols, sizes, strict=True):
            if (part := measure(row[:n], spec)) is not None:
                side["centres"] = part
                row[:n] = symbols_of(row[:n], part, spec)
    counts = [count(s[:n]) for s, n in zip(symbols, sizes, strict=True)]
    freqs = _rans_vector.normalize(np.stack(counts))
    seeds, planes = pack_raw(raw, spec.format, lanes)
    states, words = _rans_vector.encode(symbols, sizes, freqs, seeds)
    parts: list[dict[str, UInt]] = []
    for i, n in enumerate(sizes.tolist()):
        cuts = plane_nbytes(n, spec.format, lanes)
        raw_part = [plane[i, :size] for plane, size in zip(planes, cuts, strict=True)]
        table = rans.pack_table(freqs[i])
        parts.append(
            {
                "table": table,
                **sides[i],
                "states": states[i],
                "words": words[i],
                "raw": np.concatenate(raw_part),
            }
        )
    return parts


def decode_parts(rows: list[Row], spec: BlockSpec) -> UInt:
    """Bit patterns [n, numel] of coded rows, zeros past their valid tokens."""
    fmt = spec.format
    lanes, size = rans.num_lanes(spec.nbytes), padded_numel(spec)
    sizes = np.array([row.num_valid for row in rows]) * spec.token_numel
    if not sizes.all():
        raise CorruptDataError("split: a coded row without valid tokens")
    planes = [np.zeros((len(rows), n), np.uint8) for n in plane_nbytes(size, fmt, lanes)]
    for i, row in enumerate(rows):
        cuts = plane_nbytes(int(sizes[i]), fmt, lanes)
        part = row.parts["raw"]
        if part.size != sum(cuts):
            raise CorruptDataError(f"split: raw part has {part.size} bytes, wanted {sum(cuts)}")
        for plane, begin, cut in zip(planes, np.cumsum(cuts) - cuts, cuts, strict=True):
            plane[i, :cut] = part[begin : begin + cut]
    symbols, seeds = _rans_vector.decode(
        np.stack([rans.unpack_table(row.parts["table"]) for row in rows]),
        np.stack([row.parts["states"] for row in rows]),
        [row.parts["words"] for row in rows],
        sizes,
        size,
    )
    if symbols.max() >> fmt.exponent_bits:
        raise CorruptDataError(f"split: an exponent has over {fmt.exponent_bits} bits")
    for i, row in enumerate(rows):
        if row.mode == CENTRED:
            tokens = symbols[i, : sizes[i]].reshape(-1, spec.token_numel)
            tokens += centring.origins(row.parts["centres"], spec.token_numel)
            tokens &= np.uint8((1 << fmt.exponent_bits) - 1)
    bits = join_fields(symbols, unpack_raw(planes, seeds, fmt), fmt)[:, : spec.numel]
    for i in np.flatnonzero(sizes < spec.numel):
        bits[i, sizes[i] :] = 0
    return bits


KERNEL = DenseKernel(encode, decode)
