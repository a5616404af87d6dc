"""The stack without a compiler: numpy over all rows of a batch at once. Bytes of the reference."""

from __future__ import annotations

import numpy as np

from kvcodec import rans, stack
from kvcodec.bits import U8, UInt, join_fields, pack_plane, plane_widths, split_fields, unpack_plane
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.errors import CorruptDataError
from kvcodec.kernels import _rans_vector
from kvcodec.kernels._stack import HostCoder
from kvcodec.row import Row, Section, read_rows, row_layout, write_row

Ints = rans.Ints


def encode_rows(plain: EncodedBlocks, out: EncodedBlocks) -> None:
    """See `kvcodec.stack.encode_rows`."""
    spec, payload = out.spec, out.payload.numpy()
    parts, coded = plain.codec.sections(spec, stack.PLAIN), stack.coded_sections(spec)
    offsets, nbytes = row_layout(parts, {})
    valid = np.array([row.num_valid for row in read_rows(plain)], np.int64)
    for some in chunks(range(len(plain)), spec):
        rows = plain.payload.numpy()[some, :nbytes]
        data = {s.name: used_part(rows, offsets[s.name], s, valid[some]) for s in parts}
        rows[:, 16:] = 0
        for s in parts:
            rows[:, offsets[s.name] :][:, : s.nbytes()] = data[s.name]
        payload[some, :nbytes] = rows
        out.nbytes.numpy()[some] = nbytes
        filled = [i for i, v in enumerate(valid[some].tolist()) if v]
        if not filled:
            continue
        data = {name: part[filled] for name, part in data.items()}
        encoded = encode_parts(data, parts, valid[some][filled], rans.num_lanes(spec.nbytes))
        for i, streams in zip(np.array(some)[filled].tolist(), encoded, strict=True):
            counts = {s.name: streams[s.name].size for s in coded}
            if row_layout(coded, counts)[1] < nbytes:
                size = write_row(payload[i], coded, stack.CODED, int(valid[i]), streams)
                out.nbytes[i] = size


def decode_rows(encoded: EncodedBlocks, plain: EncodedBlocks) -> None:
    """See `kvcodec.stack.decode_rows`."""
    spec, payload = plain.spec, plain.payload.numpy()
    parts = plain.codec.sections(spec, stack.PLAIN)
    offsets, nbytes = row_layout(parts, {})
    rows = read_rows(encoded)
    plain.nbytes.fill_(nbytes)
    for i, row in enumerate(rows):
        if row.mode == stack.PLAIN:
            payload[i, :nbytes] = encoded.payload.numpy()[i, :nbytes]
    for some in chunks([i for i, row in enumerate(rows) if row.mode == stack.CODED], spec):
        valid = np.array([rows[i].num_valid for i in some], np.int64)
        data = decode_parts([rows[i] for i in some], parts, valid, spec)
        whole = np.zeros((len(some), nbytes), np.uint8)
        whole[:, 2:4] = valid.astype("<u2").view(np.uint8).reshape(-1, 2)
        for s in parts:
            whole[:, offsets[s.name] :][:, : s.nbytes()] = data[s.name]
        payload[some, :nbytes] = whole


def chunks(rows: list[int] | range, spec: BlockSpec) -> list[list[int]]:
    """Rows in runs that the coder takes together."""
    step = _rans_vector.MAX_STATES // rans.num_lanes(spec.nbytes)
    return [list(rows[i : i + step]) for i in range(0, len(rows), step)]


def used_part(rows: U8, offset: int, section: Section, valid: Ints) -> U8:
    """A part's bytes [n, nbytes] as the stack codes them: canonical, zeros in unused entries."""
    data = stack.canonical(rows[:, offset : offset + section.nbytes()], section.coding).copy()
    for row, v in zip(data, valid.tolist(), strict=True):
        row[section.used_nbytes(v) :] = 0
    return data


def padded(symbols: U8, lanes: int) -> U8:
    """Symbols [n, size] with zeros up to whole rounds of all lanes."""
    return np.pad(symbols, ((0, 0), (0, -symbols.shape[1] % (rans.GROUP * lanes))))


def split_parts(data: U8, coding: str) -> tuple[U8, list[U8]]:
    """`stack.split_part` of many rows: symbols [n, size] and planes [n, nbytes]."""
    fmt = stack.float_format(coding)
    if fmt is None:
        return stack.split_part(data, coding)
    exponent, raw = split_fields(data.view(f"<u{fmt.itemsize}"), fmt)
    planes, shift = [], 0
    for width in plane_widths(fmt.raw_bits):
        field = (raw >> shift) & ((1 << width) - 1)
        planes.append(pack_plane(np.pad(field, ((0, 0), (0, -field.shape[1] % 8))), width))
        shift += width
    return exponent, planes


def encode_parts(
    data: dict[str, U8], parts: tuple[Section, ...], valid: Ints, lanes: int
) -> list[dict[str, UInt]]:
    """Parts of each coded row from whole parts [n, nbytes]; no row without valid tokens."""
    n = len(valid)
    coded, raws = [], []
    for s in parts:
        symbols, planes = split_parts(data[s.name], s.coding)
        if s.coding != "raw":
            counts = np.array([stack.num_symbols(s, v) for v in valid.tolist()])
            seen = [np.bincount(a[:k], minlength=256) for a, k in zip(symbols, counts, strict=True)]
            coded.append((padded(symbols, lanes), counts, _rans_vector.normalize(np.stack(seen))))
        raws.append((s, planes))
    payloads = []
    for i, v in enumerate(valid.tolist()):
        pieces = [
            plane[i, :size]
            for s, planes in raws
            for plane, size in zip(planes, stack.raw_nbytes(s, v), strict=True)
        ]
        payloads.append(np.concatenate([np.zeros(0, np.uint8), *pieces]))
    seeds = np.zeros((n, 2 * lanes), np.uint8)
    for seed, payload in zip(seeds, payloads, strict=True):
        seed[: payload.size] = payload[: 2 * lanes]
    states = (seeds.view("<u2").astype(np.int64) + rans.LOWER).astype(np.uint32)
    words: list[list[UInt]] = [[] for _ in range(n)]
    for symbols, counts, freqs in coded[::-1]:
        start = states.astype(np.int64) - rans.LOWER
        states, some = _rans_vector.encode(symbols, counts, freqs, start)
        for mine, more in zip(words, some, strict=True):
            mine.insert(0, more)
    encoded: list[dict[str, UInt]] = []
    for i in range(n):
        tables = [rans.pack_table(freqs[i]) for _, _, freqs in coded]
        lengths = np.array([table.size // 3 - 1 for table in tables], np.uint8)
        encoded.append(
            {
                "tables": np.concatenate([lengths, *tables]),
                "states": states[i],
                "words": np.concatenate([np.zeros(0, np.uint16), *words[i]]),
                "raw": payloads[i][2 * lanes :],
            }
        )
    return encoded


def decode_parts(
    rows: list[Row], parts: tuple[Section, ...], valid: Ints, spec: BlockSpec
) -> dict[str, U8]:
    """Whole parts [n, nbytes] of coded rows, zeros in unused entries."""
    if not valid.all():
        raise CorruptDataError("stack: a coded row without valid tokens")
    full, lanes = spec.block_size, rans.num_lanes(spec.nbytes)
    tables = [stack.read_tables(row.parts["tables"], parts) for row in rows]
    reader = _rans_vector.Reader(
        np.stack([row.parts["states"] for row in rows]), [row.parts["words"] for row in rows]
    )
    symbols = {}
    for s in parts:
        if s.coding != "raw":
            size, unit = stack.num_symbols(s, full), rans.GROUP * lanes
            counts = np.array([stack.num_symbols(s, v) for v in valid.tolist()])
            freqs = np.stack([table[s.name] for table in tables])
            symbols[s.name] = reader.plane(freqs, counts, -(-size // unit) * unit)[:, :size]
    seeds = reader.finish().astype("<u2").view(np.uint8)
    planes = {
        s.name: [np.zeros((len(rows), size), np.uint8) for size in stack.raw_nbytes(s, full)]
        for s in parts
    }
    for i, (row, v) in enumerate(zip(rows, valid.tolist(), strict=True)):
        cuts = [(s.name, p, k) for s in parts for p, k in enumerate(stack.raw_nbytes(s, v))]
        total = sum(size for _, _, size in cuts)
        payload = np.concatenate([seeds[i, :total], row.parts["raw"]])
        if payload.size != total:
            wanted = total - min(total, 2 * lanes)
            raise CorruptDataError(
                f"stack: raw part has {row.parts['raw'].size} bytes, wanted {wanted}"
            )
        begin = 0
        for name, p, size in cuts:
            planes[name][p][i, :size] = payload[begin : begin + size]
            begin += size
    whole = {s.name: join_parts(symbols.get(s.name), planes[s.name], s.coding) for s in parts}
    for s in parts:
        for data, v in zip(whole[s.name], valid.tolist(), strict=True):
            data[s.used_nbytes(v) :] = 0
    return whole


def join_parts(symbols: U8 | None, planes: list[U8], coding: str) -> U8:
    """Inverse of `split_parts`; what lies past a row's symbols means nothing."""
    fmt = stack.float_format(coding)
    if symbols is None:
        return planes[0]
    if fmt is None:
        return stack.join_part(symbols, [], coding)
    raw: UInt = np.zeros(symbols.shape, f"<u{fmt.itemsize}")
    shift = 0
    for plane, width in zip(planes, plane_widths(fmt.raw_bits), strict=True):
        raw |= unpack_plane(plane, width)[:, : raw.shape[1]].astype(raw.dtype) << shift
        shift += width
    return join_fields(symbols, raw, fmt).view(np.uint8)


CODER = HostCoder(encode_rows, decode_rows)
