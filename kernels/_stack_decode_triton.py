"""The kernels that turn coded rows into plain ones: begin, slots, decode, fill.

Parts are given as in kernels/_stack_encode_triton.py.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._bits_triton import join4, join_fields
from kvcodec.kernels._rans_triton import decode_step, first_entry, symbol_of
from kvcodec.kernels._rows_triton import align16
from kvcodec.kernels._stack_encode_triton import elements_of


@triton.jit
def read_prefix(
    row_ptr, nbytes, row_nbytes, layout_ptr,
    T: tl.constexpr, P: tl.constexpr, PLAIN: tl.constexpr, LAYOUT: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Mode, valid tokens, bytes of tables and words of a row; mode -1, no tokens if damaged.

    Mode 0 or 1 promises that the parts have their sizes and tile the row, inside its slot.
    """
    head_ptr = row_ptr.to(tl.pointer_type(tl.uint32))
    head = tl.load(head_ptr)
    mode = (head & 0xFFFF).to(tl.int32)  # with the reserved byte, which is zero
    valid = (head >> 16).to(tl.int32)
    count0 = tl.load(head_ptr + 1).to(tl.int64)
    count1 = tl.load(head_ptr + 2).to(tl.int64)
    count2 = tl.load(head_ptr + 3).to(tl.int64)
    tables_size = count0 * 0 + P
    for part in tl.static_range(P):
        k = tl.load(row_ptr + 16 + part, mask=16 + part < nbytes, other=0)
        tables_size += 3 * (k.to(tl.int64) + 1)
    total = tl.load(layout_ptr + tl.minimum(valid, T) * LAYOUT + LAYOUT - 1)
    coded = (valid > 0) & (count0 == tables_size) & (count2 == tl.maximum(total - 2 * LANES, 0))
    parts = align16(count0) + 4 * LANES + align16(2 * count1) + align16(count2)
    coded = coded & (nbytes == 16 + parts)
    sound = ((mode == 0) & (nbytes == PLAIN)) | ((mode == 1) & coded)
    sound = sound & (nbytes >= 16) & (nbytes <= row_nbytes) & (valid <= T)
    mode = tl.where(sound, mode, -1)
    valid = tl.where(sound, valid, 0)
    return mode, valid, count0.to(tl.int32), count1.to(tl.int32)


@triton.jit
def begin_kernel(
    rows_ptr,  # uint8 [n, row_nbytes], 16-byte aligned
    nbytes_ptr,  # int32 [n], strided
    layout_ptr,  # int32 [T + 1, LAYOUT]: where each raw plane begins, and where all end
    plain_ptr,  # uint8 [n, plain row], 16-byte aligned
    sizes_ptr,  # int32 [n], strided: bytes of the plain rows
    stride_row, stride_nbytes, row_nbytes, stride_plain, stride_sizes,
    T: tl.constexpr, P: tl.constexpr, PLAIN: tl.constexpr, LAYOUT: tl.constexpr,
    LANES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of a plain row: a plain row's bytes, or the prefix and zeros to be filled."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + row * stride_row
    mode, valid, _, _ = read_prefix(
        row_ptr, tl.load(nbytes_ptr + row * stride_nbytes), row_nbytes, layout_ptr,
        T, P, PLAIN, LAYOUT, LANES,
    )  # fmt: skip
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    data = tl.load(row_ptr + at, mask=at < tl.where(mode == 0, PLAIN, 0), other=0)
    count = tl.where(at == 2, valid & 0xFF, tl.where(at == 3, valid >> 8, 0))
    data = tl.where(mode == 1, count.to(tl.uint8), data)
    tl.store(plain_ptr + row * stride_plain + at, data, mask=at < PLAIN)
    if tl.program_id(1) == 0:
        tl.store(sizes_ptr + row * stride_sizes, PLAIN)


@triton.jit
def slots_kernel(
    rows_ptr, nbytes_ptr, layout_ptr,  # as begin_kernel
    slots_ptr,  # uint32 [n, 4096], as `_rans_triton.write_slots`
    stride_row, stride_nbytes, row_nbytes,
    T: tl.constexpr, PART: tl.constexpr, P: tl.constexpr, PLAIN: tl.constexpr,
    LAYOUT: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Decoding table of one part of one coded row. Reads the row's table, writes 16 KiB."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + row * stride_row
    mode, _, _, _ = read_prefix(
        row_ptr, tl.load(nbytes_ptr + row * stride_nbytes), row_nbytes, layout_ptr,
        T, P, PLAIN, LAYOUT, LANES,
    )  # fmt: skip
    if mode == 1:
        table_ptr = row_ptr + 16 + P
        for part in tl.static_range(PART):
            table_ptr += 3 * (tl.load(row_ptr + 16 + part).to(tl.int32) + 1)
        num_symbols = tl.load(row_ptr + 16 + PART).to(tl.int32) + 1
        slot = tl.arange(0, 4096).to(tl.uint32)
        entry = tl.zeros((4096,), tl.uint32)
        begin = num_symbols.to(tl.uint32) * 0
        k = 0
        while k < num_symbols:
            low = tl.load(table_ptr + 2 * k).to(tl.uint32)  # tables lie at any byte
            freq = low | tl.load(table_ptr + 2 * k + 1).to(tl.uint32) << 8
            symbol = tl.load(table_ptr + 2 * num_symbols + k).to(tl.uint32)
            entry = tl.where(slot >= begin, slot + first_entry(symbol, freq, begin), entry)
            begin += freq
            k += 1
        tl.store(slots_ptr + row * 4096 + slot, entry)


@triton.jit
def store_symbols(
    part_ptr, a, b, c, d, begin, n,
    SIZE: tl.constexpr, E: tl.constexpr, M: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Symbols of a round's entries at the places of their elements, as exponents or nibbles."""
    a, b, c, d = symbol_of(a), symbol_of(b), symbol_of(c), symbol_of(d)
    if SIZE == 0:
        low, high = (a & 15) | (b & 15) << 4, (c & 15) | (d & 15) << 4
        pairs = tl.reshape(tl.join(low, high), (2 * LANES,))
        byte = begin // 2 + tl.arange(0, 2 * LANES)
        tl.store(part_ptr + byte, pairs.to(tl.uint8), mask=2 * byte < n)
    else:
        element = begin + tl.arange(0, 4 * LANES)
        bits = (join4(a, b, c, d, LANES) & ((1 << E) - 1)) << M
        if SIZE == 1:
            tl.store(part_ptr + element, bits.to(tl.uint8), mask=element < n)
        elif SIZE == 2:
            ptr = part_ptr.to(tl.pointer_type(tl.uint16))
            tl.store(ptr + element, bits.to(tl.uint16), mask=element < n)
        else:
            tl.store(part_ptr.to(tl.pointer_type(tl.uint32)) + element, bits, mask=element < n)


@triton.jit
def decode_kernel(
    rows_ptr, nbytes_ptr, layout_ptr, slots_ptr,  # as slots_kernel
    plain_ptr,  # as begin_kernel
    states_ptr,  # uint32 [n, LANES], in the end 2^16 + the seeds
    reads_ptr,  # int32 [n]: words read
    stride_row, stride_nbytes, row_nbytes, stride_plain,
    T: tl.constexpr, BEGIN: tl.constexpr, TOKENS: tl.constexpr, PER: tl.constexpr,
    SIZE: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    FIRST: tl.constexpr, P: tl.constexpr, PLAIN: tl.constexpr, LAYOUT: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Symbols of one part of one coded row; goes on from the part before it unless FIRST."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + row * stride_row
    mode, valid, tables_size, num_words = read_prefix(
        row_ptr, tl.load(nbytes_ptr + row * stride_nbytes), row_nbytes, layout_ptr,
        T, P, PLAIN, LAYOUT, LANES,
    )  # fmt: skip
    if mode == 1:
        n = elements_of(valid, TOKENS, PER)
        slots_ptr += row * 4096
        states_ptr += row * LANES
        part_ptr = plain_ptr + row * stride_plain + BEGIN
        lane = tl.arange(0, LANES)
        states_at = 16 + align16(tables_size)
        words_ptr = (row_ptr + states_at + 4 * LANES).to(tl.pointer_type(tl.uint16))
        if FIRST:
            state = tl.load((row_ptr + states_at).to(tl.pointer_type(tl.uint32)) + lane)
            read = 0
        else:
            state = tl.load(states_ptr + lane)
            read = tl.load(reads_ptr + row)
        begin = 0
        while begin < n:
            at = begin + 4 * lane
            a, state, read = decode_step(state, at < n, slots_ptr, words_ptr, read, num_words)
            b, state, read = decode_step(state, at + 1 < n, slots_ptr, words_ptr, read, num_words)
            c, state, read = decode_step(state, at + 2 < n, slots_ptr, words_ptr, read, num_words)
            d, state, read = decode_step(state, at + 3 < n, slots_ptr, words_ptr, read, num_words)
            store_symbols(part_ptr, a, b, c, d, begin, n, SIZE, E, M, LANES)
            begin += 4 * LANES
        tl.store(states_ptr + lane, state)
        tl.store(reads_ptr + row, read)


@triton.jit
def load_plane(
    states_ptr, raw_ptr, first, element, mask, W: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """Values of a raw plane that begins at byte `first` of the run of seeds and raw part."""
    byte = first + element * W // 8
    seed = tl.load(states_ptr + byte // 2, mask=mask & (byte < 2 * LANES), other=0)
    seed = seed >> (byte % 2 * 8).to(tl.uint32)
    rest = tl.load(raw_ptr + byte - 2 * LANES, mask=mask & (byte >= 2 * LANES), other=0)
    bits = tl.where(byte < 2 * LANES, seed, rest.to(tl.uint32))
    return (bits >> (element * W % 8).to(tl.uint32)) & ((1 << W) - 1)


@triton.jit
def fill_kernel(
    rows_ptr, nbytes_ptr, layout_ptr, states_ptr, plain_ptr,  # as decode_kernel
    stride_row, stride_nbytes, row_nbytes, stride_plain,
    T: tl.constexpr, BEGIN: tl.constexpr, TOKENS: tl.constexpr, PER: tl.constexpr,
    SIZE: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, PLANE: tl.constexpr,
    P: tl.constexpr, PLAIN: tl.constexpr, LAYOUT: tl.constexpr, LANES: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """One tile of a part: its exponents, which stand there, joined with its raw planes."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + row * stride_row
    mode, valid, tables_size, num_words = read_prefix(
        row_ptr, tl.load(nbytes_ptr + row * stride_nbytes), row_nbytes, layout_ptr,
        T, P, PLAIN, LAYOUT, LANES,
    )  # fmt: skip
    if mode == 1:
        n = elements_of(valid, TOKENS, PER)
        states_ptr += row * LANES
        layout_ptr += valid * LAYOUT + PLANE
        raw_ptr = row_ptr + 16 + align16(tables_size) + 4 * LANES + align16(2 * num_words)
        element = tl.program_id(1) * TILE + tl.arange(0, TILE)
        live = element < n
        raw = load_plane(states_ptr, raw_ptr, tl.load(layout_ptr), element, live, W0, LANES)
        if W1 > 0:
            first = tl.load(layout_ptr + 1)
            raw = raw | load_plane(states_ptr, raw_ptr, first, element, live, W1, LANES) << W0
        if W2 > 0:
            first = tl.load(layout_ptr + 2)
            more = load_plane(states_ptr, raw_ptr, first, element, live, W2, LANES)
            raw = raw | more << (W0 + W1)
        part_ptr = plain_ptr + row * stride_plain + BEGIN
        if SIZE == 1:
            at = part_ptr + element
        elif SIZE == 2:
            at = part_ptr.to(tl.pointer_type(tl.uint16)) + element
        else:
            at = part_ptr.to(tl.pointer_type(tl.uint32)) + element
        exponent = tl.load(at, mask=live, other=0).to(tl.uint32) >> M & ((1 << E) - 1)
        bits = join_fields(exponent, raw, E, M)
        tl.store(at, bits.to(at.dtype.element_ty), mask=live)
