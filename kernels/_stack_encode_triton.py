"""The kernels that code plain rows: count, pack, encode, write. See kernels/stack_triton.py.

A part is given by BEGIN, its first byte in a plain row; TOKENS, tokens of an entry (0: the part
belongs to the block); PER, symbols of an entry; SIZE, bytes of an element (0: nibbles); and by the
widths E and M of its elements' fields: a byte has E = 8, a nibble E = 4, raw bytes M = 7.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._bits_triton import exponent_of, raw_of, split4
from kvcodec.kernels._rans_triton import encode_step, normalize
from kvcodec.kernels._rows_triton import align16


@triton.jit
def valid_of(row_ptr, T: tl.constexpr):
    """Valid tokens that a row states, drawn inside 0..T."""
    valid = tl.load(row_ptr + 2).to(tl.int32) | tl.load(row_ptr + 3).to(tl.int32) << 8
    return tl.minimum(valid, T)


@triton.jit
def elements_of(valid, TOKENS: tl.constexpr, PER: tl.constexpr):
    """Elements of a part that belong to the valid tokens."""
    if TOKENS == 0:
        n = valid * 0 + PER
    else:
        n = (valid + TOKENS - 1) // TOKENS * PER
    return n


@triton.jit
def load_elements(part_ptr, i, mask, SIZE: tl.constexpr, CANON: tl.constexpr):
    """Elements of a part by number, uint32; CANON turns the nibble 8 into 0."""
    if SIZE == 0:
        byte = tl.load(part_ptr + i // 2, mask=mask, other=0).to(tl.uint32)
        bits = (byte >> (i % 2 * 4).to(tl.uint32)) & 15
        if CANON:
            bits = tl.where(bits == 8, 0, bits)
    elif SIZE == 1:
        bits = tl.load(part_ptr + i, mask=mask, other=0).to(tl.uint32)
    elif SIZE == 2:
        ptr = part_ptr.to(tl.pointer_type(tl.uint16))
        bits = tl.load(ptr + i, mask=mask, other=0).to(tl.uint32)
    else:
        bits = tl.load(part_ptr.to(tl.pointer_type(tl.uint32)) + i, mask=mask, other=0)
    return bits


@triton.jit
def count_kernel(
    plain_ptr,  # uint8 [n, plain row], 16-byte aligned
    tables_ptr,  # uint32 [n, P, 256], frequency | first slot << 16
    sizes_ptr,  # int32 [n, P + 1]: symbols in each table, and where the words begin
    stride_plain,
    T: tl.constexpr, BEGIN: tl.constexpr, TOKENS: tl.constexpr, PER: tl.constexpr,
    SIZE: tl.constexpr, CANON: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    PART: tl.constexpr, P: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Symbol table of one part of one row. Reads the part, writes 1 KiB."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = plain_ptr + row * stride_plain
    n = elements_of(valid_of(row_ptr, T), TOKENS, PER)
    counts = tl.zeros((256,), tl.int32)
    begin = 0
    while begin < n:
        element = begin + tl.arange(0, TILE)
        bits = load_elements(row_ptr + BEGIN, element, element < n, SIZE, CANON)
        counts += tl.histogram(exponent_of(bits, E, M), 256)
        begin += TILE
    symbol = tl.arange(0, 256)
    counts -= tl.where(symbol == 0, begin - n, 0)  # the last tile's elements past n count as zeros
    if n > 0:
        freqs = normalize(counts, n)
        first = tl.cumsum(freqs) - freqs
        table_ptr = tables_ptr + (row * P + PART) * 256
        tl.store(table_ptr + symbol, (freqs | first << 16).to(tl.uint32))
        tl.store(sizes_ptr + row * (P + 1) + PART, tl.sum((freqs > 0).to(tl.int32)))


@triton.jit
def store_plane(
    out_ptr, part_ptr, byte, n,
    SIZE: tl.constexpr, E: tl.constexpr, M: tl.constexpr, SHIFT: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Bytes of a raw plane: W bits from bit SHIFT of each element's field."""
    nbytes = (n * W + 7) // 8
    packed = tl.zeros(byte.shape, tl.uint32)
    for i in tl.static_range(8 // W):
        element = byte * (8 // W) + i
        bits = load_elements(part_ptr, element, (byte < nbytes) & (element < n), SIZE, False)
        packed = packed | ((raw_of(bits, E, M) >> SHIFT) & ((1 << W) - 1)) << (i * W)
    tl.store(out_ptr + byte, packed.to(tl.uint8), mask=byte < nbytes)


@triton.jit
def pack_kernel(
    plain_ptr,  # as count_kernel
    raw_ptr,  # uint8 [n, RAW]
    layout_ptr,  # int32 [T + 1, LAYOUT]: where each raw plane begins, and where all end
    stride_plain,
    T: tl.constexpr, BEGIN: tl.constexpr, TOKENS: tl.constexpr, PER: tl.constexpr,
    SIZE: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, PLANE: tl.constexpr,
    RAW: tl.constexpr, LAYOUT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of each raw plane of one part. Reads the part, writes the planes."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = plain_ptr + row * stride_plain
    valid = valid_of(row_ptr, T)
    n = elements_of(valid, TOKENS, PER)
    raw_ptr += row * RAW
    layout_ptr += valid * LAYOUT + PLANE
    byte = tl.program_id(1) * TILE + tl.arange(0, TILE)
    part_ptr = row_ptr + BEGIN
    store_plane(raw_ptr + tl.load(layout_ptr), part_ptr, byte, n, SIZE, E, M, 0, W0)
    if W1 > 0:
        store_plane(raw_ptr + tl.load(layout_ptr + 1), part_ptr, byte, n, SIZE, E, M, W0, W1)
    if W2 > 0:
        store_plane(raw_ptr + tl.load(layout_ptr + 2), part_ptr, byte, n, SIZE, E, M, W0 + W1, W2)


@triton.jit
def encode_kernel(
    plain_ptr, tables_ptr, sizes_ptr,  # as count_kernel
    raw_ptr, layout_ptr,  # as pack_kernel
    states_ptr,  # uint32 [n, LANES]
    words_ptr,  # uint16 [n, MAX_WORDS], each row filled from its end
    stride_plain,
    T: tl.constexpr, BEGIN: tl.constexpr, TOKENS: tl.constexpr, PER: tl.constexpr,
    SIZE: tl.constexpr, CANON: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    PART: tl.constexpr, P: tl.constexpr, FIRST: tl.constexpr,
    RAW: tl.constexpr, LAYOUT: tl.constexpr, LANES: tl.constexpr, MAX_WORDS: tl.constexpr,
):  # fmt: skip
    """rANS over one part, last step first; goes on from the part behind it unless FIRST."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = plain_ptr + row * stride_plain
    valid = valid_of(row_ptr, T)
    n = elements_of(valid, TOKENS, PER)
    tables_ptr += (row * P + PART) * 256
    words_ptr += row * MAX_WORDS
    states_ptr += row * LANES
    sizes_ptr += row * (P + 1) + P
    lane = tl.arange(0, LANES)
    if FIRST:
        total = tl.load(layout_ptr + valid * LAYOUT + LAYOUT - 1)
        low = tl.load(raw_ptr + row * RAW + 2 * lane, mask=2 * lane < total, other=0)
        high = tl.load(raw_ptr + row * RAW + 2 * lane + 1, mask=2 * lane + 1 < total, other=0)
        state = 65536 | low.to(tl.uint32) | high.to(tl.uint32) << 8
        end = MAX_WORDS
    else:
        state = tl.load(states_ptr + lane)
        end = tl.load(sizes_ptr)
    element = 4 * lane[:, None] + tl.arange(0, 4)[None, :]  # [LANES, 4], of round 0
    begin = ((n + 4 * LANES - 1) // (4 * LANES) - 1) * (4 * LANES)  # first of the last round
    part_ptr = row_ptr + BEGIN
    live = (begin + element).to(tl.uint32) < n  # none below 0, which unsigned is not below n
    bits = load_elements(part_ptr, begin + element, live, SIZE, CANON)
    while begin >= 0:
        entry = tl.load(tables_ptr + exponent_of(bits, E, M), mask=live, other=4096)
        a, b, c, d = split4(entry, LANES)
        begin -= 4 * LANES
        # the elements of the next round, under way while this one is coded
        live = (begin + element).to(tl.uint32) < n
        bits = load_elements(part_ptr, begin + element, live, SIZE, CANON)
        state, end = encode_step(state, d, words_ptr, end)
        state, end = encode_step(state, c, words_ptr, end)
        state, end = encode_step(state, b, words_ptr, end)
        state, end = encode_step(state, a, words_ptr, end)
    tl.store(states_ptr + lane, state)
    tl.store(sizes_ptr, end)


@triton.jit
def write_side(
    row_ptr, valid, tables_size, num_words, raw_size, tables_ptr, sizes_ptr, states_ptr,
    P: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Prefix, tables and states of a coded row, and the padding between them."""
    head_ptr = row_ptr.to(tl.pointer_type(tl.int32))
    tl.store(head_ptr, 1 | valid << 16)
    tl.store(head_ptr + 1, tables_size)
    tl.store(head_ptr + 2, num_words)
    tl.store(head_ptr + 3, raw_size)
    symbol = tl.arange(0, 256)
    at = row_ptr + 16 + P
    for part in tl.static_range(P):
        k = tl.load(sizes_ptr + part)
        tl.store(row_ptr + 16 + part, (k - 1).to(tl.uint8))
        freq = tl.load(tables_ptr + part * 256 + symbol) & 0xFFFF
        present = freq > 0
        rank = tl.cumsum(present.to(tl.int32)) - 1
        tl.store(at + 2 * rank, freq.to(tl.uint8), mask=present)  # tables lie at any byte
        tl.store(at + 2 * rank + 1, (freq >> 8).to(tl.uint8), mask=present)
        tl.store(at + 2 * k + rank, symbol.to(tl.uint8), mask=present)
        at += 3 * k
    small = tl.arange(0, 16)
    states_at = 16 + align16(tables_size)
    pad = 16 + tables_size + small
    tl.store(row_ptr + pad, tl.zeros((16,), tl.uint8), mask=pad < states_at)
    lane = tl.arange(0, LANES)
    out_ptr = (row_ptr + states_at).to(tl.pointer_type(tl.uint32))
    tl.store(out_ptr + lane, tl.load(states_ptr + lane))


@triton.jit
def write_kernel(
    plain_ptr, tables_ptr, sizes_ptr, raw_ptr, layout_ptr, states_ptr, words_ptr,  # as above
    rows_ptr,  # uint8 [n, row], 16-byte aligned
    nbytes_ptr,  # int32 [n], strided
    stride_plain, stride_row, stride_nbytes,
    T: tl.constexpr, P: tl.constexpr, PLAIN: tl.constexpr,
    CANON_BEGIN: tl.constexpr, CANON_END: tl.constexpr,
    RAW: tl.constexpr, LAYOUT: tl.constexpr, LANES: tl.constexpr, MAX_WORDS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """One tile of every part of one row, in the shorter mode. Reads what it writes once."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    plain_ptr += row * stride_plain
    row_ptr = rows_ptr + row * stride_row
    valid = valid_of(plain_ptr, T)
    sizes_ptr += row * (P + 1)
    tables_size = P
    num_words = 0
    coded_size = PLAIN
    raw_size = 0
    if valid > 0:
        for part in tl.static_range(P):
            tables_size += 3 * tl.load(sizes_ptr + part)
        num_words = MAX_WORDS - tl.load(sizes_ptr + P)
        raw_size = tl.maximum(tl.load(layout_ptr + valid * LAYOUT + LAYOUT - 1) - 2 * LANES, 0)
        coded_size = 16 + align16(tables_size) + 4 * LANES
        coded_size += align16(2 * num_words) + align16(raw_size)
    if coded_size < PLAIN:
        words_at = 16 + align16(tables_size) + 4 * LANES
        if tl.program_id(1) == 0:
            tl.store(nbytes_ptr + row * stride_nbytes, coded_size)
            write_side(
                row_ptr, valid, tables_size, num_words, raw_size,
                tables_ptr + row * (P * 256), sizes_ptr, states_ptr + row * LANES, P, LANES,
            )  # fmt: skip
        words = tl.load(
            words_ptr + row * MAX_WORDS + MAX_WORDS - num_words + at, mask=at < num_words, other=0
        )
        out_ptr = (row_ptr + words_at).to(tl.pointer_type(tl.uint16))
        tl.store(out_ptr + at, words, mask=at < align16(2 * num_words) // 2)
        raw = tl.load(raw_ptr + row * RAW + 2 * LANES + at, mask=at < raw_size, other=0)
        out_ptr = row_ptr + words_at + align16(2 * num_words)
        tl.store(out_ptr + at, raw, mask=at < align16(raw_size))
    else:
        if tl.program_id(1) == 0:
            tl.store(nbytes_ptr + row * stride_nbytes, PLAIN)
        data = tl.load(plain_ptr + at, mask=at < PLAIN, other=0)
        if CANON_END > 0:
            low = tl.where(data & 15 == 8, 0, data & 15)
            high = tl.where(data & 240 == 128, 0, data & 240)
            data = tl.where((at >= CANON_BEGIN) & (at < CANON_END), low | high, data)
        tl.store(row_ptr + at, data, mask=at < PLAIN)
