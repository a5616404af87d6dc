"""The stack: rows of a quantizer with their parts entropy-coded. Definition of formats/stack.md.

A plain row (mode 0) becomes a coded one (mode 1), part by part, and back; elements are not looked
at. `Section.coding` says how a part is coded:

    "raw"      its bytes stay as they are
    "bytes"    every byte is a symbol
    "nibbles"  every 4 bits are a symbol, the low half of a byte first
    "e2m1"     nibbles whose code 8, -0, becomes 0
    a float    "fp32", "fp16", "bf16", "e4m3fn", "e5m2": exponents are symbols, sign and mantissa
               stay as they are
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvcodec import rans
from kvcodec.bits import (
    DTYPES,
    FORMATS,
    U8,
    FloatFormat,
    UInt,
    join_fields,
    pack_plane,
    plane_widths,
    split_fields,
    unpack_plane,
)
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.errors import CorruptDataError
from kvcodec.row import Row, Section, read_rows, row_layout, write_row

PLAIN, CODED = 0, 1
NEGATIVE_ZERO = 8  # the code of -0 in E2M1
NIBBLES = ("nibbles", "e2m1")


def coded_sections(spec: BlockSpec) -> tuple[Section, ...]:
    """Parts of a coded row: symbol tables, lane states, words, and what is not coded."""
    lanes = rans.num_lanes(spec.nbytes)
    return (
        Section("tables", "u1"),
        Section("states", "<u4", (lanes,)),
        Section("words", "<u2"),
        Section("raw", "u1"),
    )


def float_format(coding: str) -> FloatFormat | None:
    """The format of a part whose exponents are coded."""
    return FORMATS[DTYPES[coding]] if coding in DTYPES else None


def alphabet(coding: str) -> int:
    """Symbols of a part's coded plane; 0 if it has none."""
    fmt = float_format(coding)
    if fmt is not None:
        return 1 << fmt.exponent_bits
    return {"raw": 0, "bytes": 256, **dict.fromkeys(NIBBLES, 16)}[coding]


def num_symbols(section: Section, num_valid: int) -> int:
    """Symbols of a part's coded plane."""
    fmt = float_format(section.coding)
    if section.coding == "raw":
        return 0
    nbytes = section.used_nbytes(num_valid)
    return nbytes * 2 if section.coding in NIBBLES else nbytes // (fmt.itemsize if fmt else 1)


def raw_widths(coding: str) -> tuple[int, ...]:
    """Bits per element in each raw plane of a part, in order."""
    fmt = float_format(coding)
    if fmt is not None:
        return plane_widths(fmt.raw_bits)
    return (8,) if coding == "raw" else ()


def raw_nbytes(section: Section, num_valid: int) -> list[int]:
    """Bytes of each raw plane of a part."""
    used = section.used_nbytes(num_valid)
    n = used if section.coding == "raw" else num_symbols(section, num_valid)
    return [-(-n * width // 8) for width in raw_widths(section.coding)]


def canonical(data: U8, coding: str) -> U8:
    """Bytes of a part with every code -0 of E2M1 turned into 0."""
    if coding != "e2m1":
        return data
    codes = unpack_plane(data, 4)
    return pack_plane(np.where(codes == NEGATIVE_ZERO, 0, codes), 4)


def split_part(data: U8, coding: str) -> tuple[U8, list[U8]]:
    """Symbols and raw planes of a part's used bytes."""
    fmt = float_format(coding)
    if fmt is not None:
        exponent, raw = split_fields(data.view(f"<u{fmt.itemsize}"), fmt)
        planes, shift = [], 0
        for width in plane_widths(fmt.raw_bits):
            field = (raw >> shift) & ((1 << width) - 1)
            planes.append(pack_plane(np.pad(field, (0, -field.size % (8 // width))), width))
            shift += width
        return exponent, planes
    if coding == "raw":
        return data[:0], [data]
    return (unpack_plane(data, 4) if coding in NIBBLES else data), []


def join_part(symbols: U8, planes: list[U8], coding: str) -> U8:
    """Inverse of `split_part`."""
    fmt = float_format(coding)
    if fmt is None:
        return planes[0] if coding == "raw" else pack_plane(symbols, 4 if coding in NIBBLES else 8)
    raw: UInt = np.zeros(symbols.size, f"<u{fmt.itemsize}")
    shift = 0
    for plane, width in zip(planes, plane_widths(fmt.raw_bits), strict=True):
        raw |= unpack_plane(plane, width)[: raw.size].astype(raw.dtype) << shift
        shift += width
    return join_fields(symbols, raw, fmt).view(np.uint8)


def encode_rows(plain: EncodedBlocks, out: EncodedBlocks) -> None:
    """Coded rows of a host batch of plain ones; a row that does not shrink stays plain."""
    spec, payload = out.spec, out.payload.numpy()
    parts = plain.codec.sections(spec, PLAIN)
    coded = coded_sections(spec)
    for i, row in enumerate(read_rows(plain)):
        data = {s.name: canonical(used_bytes(row, s), s.coding) for s in parts}
        out.nbytes[i] = write_row(payload[i], parts, PLAIN, row.num_valid, fill(data, parts))
        if row.num_valid:
            streams = encode_parts(data, parts, rans.num_lanes(spec.nbytes))
            counts = {s.name: streams[s.name].size for s in coded}
            if row_layout(coded, counts)[1] < out.nbytes[i]:
                out.nbytes[i] = write_row(payload[i], coded, CODED, row.num_valid, streams)


def decode_rows(encoded: EncodedBlocks, plain: EncodedBlocks) -> None:
    """Inverse of `encode_rows`, up to the zeros of E2M1.

    Raises:
        CorruptDataError: a row is malformed.
    """
    payload = plain.payload.numpy()
    parts = plain.codec.sections(plain.spec, PLAIN)
    for i, row in enumerate(read_rows(encoded)):
        if row.mode == CODED:
            data = fill(decode_parts(row, parts), parts)
        else:
            data = {s.name: row.parts[s.name] for s in parts}
        plain.nbytes[i] = write_row(payload[i], parts, PLAIN, row.num_valid, data)


def used_bytes(row: Row, section: Section) -> U8:
    """Bytes of a plain row's part that belong to valid tokens."""
    data: U8 = np.ascontiguousarray(row.parts[section.name]).reshape(-1).view(np.uint8)
    return data[: section.used_nbytes(row.num_valid)]


def fill(data: Mapping[str, U8], parts: tuple[Section, ...]) -> dict[str, UInt]:
    """Whole parts from their used bytes: zeros follow."""
    return {
        s.name: np.pad(data[s.name], (0, s.nbytes() - data[s.name].size)).view(s.dtype)
        for s in parts
    }


def encode_parts(data: Mapping[str, U8], parts: tuple[Section, ...], lanes: int) -> dict[str, UInt]:
    """Parts of a coded row from the used bytes of a plain one, with one valid token at least."""
    freqs_of, begins_of, tables = [], [], []
    raw: list[U8] = []
    for section in parts:
        symbols, planes = split_part(data[section.name], section.coding)
        raw += planes
        if section.coding == "raw":
            continue
        freqs = rans.normalize(np.bincount(symbols, minlength=256))
        grid = rans.to_grid(symbols, lanes, fill=-1)
        freqs_of.append(np.where(grid >= 0, freqs[grid], 0))
        begins_of.append(np.where(grid >= 0, rans.starts(freqs)[grid], 0))
        tables.append(rans.pack_table(freqs))
    nothing = np.zeros((0, lanes), np.int64)
    payload = np.concatenate([*raw, np.zeros(2 * lanes, np.uint8)])
    total = payload.size - 2 * lanes
    seeds = payload[: 2 * lanes].view("<u2").astype(np.int64)
    states, words = rans.encode(
        np.concatenate([nothing, *freqs_of]), np.concatenate([nothing, *begins_of]), seeds
    )
    lengths = np.array([table.size // 3 - 1 for table in tables], np.uint8)
    return {
        "tables": np.concatenate([lengths, *tables]),
        "states": states.astype("<u4"),
        "words": words.astype("<u2"),
        "raw": payload[min(2 * lanes, total) : total],
    }


def decode_parts(row: Row, parts: tuple[Section, ...]) -> dict[str, U8]:
    """Used bytes of every part of a plain row."""
    valid = row.num_valid
    if valid == 0:
        raise CorruptDataError("stack: a coded row without valid tokens")
    lanes = row.parts["states"].size
    tables = read_tables(row.parts["tables"], parts)
    decoder = rans.Decoder(row.parts["states"], row.parts["words"])
    symbols = {}
    for section in parts:
        n = num_symbols(section, valid)
        live = rans.to_grid(np.ones(n, np.int64), lanes, fill=0) == 1
        grid = np.array([decoder.step(tables[section.name], step) for step in live], np.int64)
        symbols[section.name] = rans.from_grid(grid.reshape(-1, lanes), n).astype(np.uint8)
    total = sum(sum(raw_nbytes(section, valid)) for section in parts)
    seeds = decoder.finish().astype("<u2").view(np.uint8)[:total]
    part = row.parts["raw"]
    if part.size + seeds.size != total:
        raise CorruptDataError(
            f"stack: raw part has {part.size} bytes, wanted {total - seeds.size}"
        )
    payload = np.concatenate([seeds, part])
    data, begin = {}, 0
    for section in parts:
        planes = []
        for nbytes in raw_nbytes(section, valid):
            planes.append(payload[begin : begin + nbytes])
            begin += nbytes
        data[section.name] = join_part(symbols[section.name], planes, section.coding)
    return data


def read_tables(data: U8, parts: tuple[Section, ...]) -> dict[str, rans.Ints]:
    """Frequencies [256] of every coded part, from the tables of a row."""
    coded = [section for section in parts if section.coding != "raw"]
    lengths = data[: len(coded)].astype(np.int64) + 1
    if lengths.size < len(coded) or data.size != lengths.size + 3 * lengths.sum():
        raise CorruptDataError(f"stack: {data.size} bytes do not hold {len(coded)} symbol tables")
    tables, begin = {}, len(coded)
    for section, length in zip(coded, lengths.tolist(), strict=True):
        tables[section.name] = rans.unpack_table(data[begin : begin + 3 * length])
        begin += 3 * length
        if tables[section.name][alphabet(section.coding) :].any():
            raise CorruptDataError(f"stack: {section.name} has a symbol out of its alphabet")
    return tables
