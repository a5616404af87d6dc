"""The three kernels that encode split rows: count, code, write.

A launch never loads what another thread of it stored: a barrier inside a kernel does not wait for
stores on every GPU.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._bits_triton import exponent_of, plane_nbytes, raw_nbytes, raw_of, split4
from kvcodec.kernels._centring_triton import (
    estimate,
    load_exponents,
    measure_centres,
    write_centres,
)
from kvcodec.kernels._float_triton import load_bits
from kvcodec.kernels._rans_triton import encode_step, normalize
from kvcodec.kernels._rows_triton import align16, block_offset, valid_tokens


@triton.jit
def count_kernel(
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    valid_ptr,  # int32 [n]; unused unless HAS_VALID
    tables_ptr,  # uint32 [n, 2^E], frequency | first slot << 16
    sizes_ptr,  # int32 [n, 2]: symbols in the table, words in the stream
    stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_VALID: tl.constexpr,
    E: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr,
    origins_ptr=None,  # uint8 [n, C + 2]: a channel's origin each, the base, 1 if they are used
    CENTRED: tl.constexpr = False, CHANNELS: tl.constexpr = 128, TOKENS: tl.constexpr = 8,
):  # fmt: skip
    """Frequencies of the symbols of one block. Reads the block, writes 4 * 2^E bytes.

    Centred, it first measures the channels, and reads the block three times more, from a cache.
    """
    row = tl.program_id(0).to(tl.int64)
    n = valid_tokens(valid_ptr, row, T, HAS_VALID) * (H * D)
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    counts = tl.zeros((1 << E,), tl.int32)
    begin = 0
    while begin < n:
        element = begin + tl.arange(0, TILE)
        offset = block_offset(element, stride_token, stride_head, stride_dim, H, D)
        bits = load_bits(cache_ptr + offset, element < n)
        counts += tl.histogram(exponent_of(bits, E, M), 1 << E)
        begin += TILE
    symbol = tl.arange(0, 1 << E)
    counts -= tl.where(symbol == 0, begin - n, 0)  # the last tile's elements past n count as zeros
    if n > 0:
        freqs = normalize(counts, n)
        if CENTRED:
            C: tl.constexpr = H * D
            origins_ptr += row * (C + 2)
            tokens = n // C
            total = tl.zeros((CHANNELS,), tl.int32)
            begin = 0
            while begin < C:
                centre = measure_centres(
                    cache_ptr, begin, tokens, stride_token, stride_head, stride_dim,
                    H, D, E, M, CHANNELS, TOKENS,
                )  # fmt: skip
                channel = begin + tl.arange(0, CHANNELS)
                total += tl.where(channel < C, centre, 0)
                begin += CHANNELS
            low = (2 * tl.sum(total) + C) // (2 * C) - 3
            base = low - (1 << (E - 1))
            centred = tl.zeros((1 << E,), tl.int32)
            begin = 0
            while begin < C:
                centre = measure_centres(
                    cache_ptr, begin, tokens, stride_token, stride_head, stride_dim,
                    H, D, E, M, CHANNELS, TOKENS,
                )  # fmt: skip
                channel = begin + tl.arange(0, CHANNELS)
                origin = tl.minimum(tl.maximum(centre - low, 0), 7) + base
                tl.store(origins_ptr + channel, (origin & 255).to(tl.uint8), mask=channel < C)
                at = 0
                while at < tokens:
                    exponent, live = load_exponents(
                        cache_ptr, at, channel, tokens, stride_token, stride_head, stride_dim,
                        H, D, E, M, TOKENS,
                    )  # fmt: skip
                    symbols = (exponent - origin[None, :]) & ((1 << E) - 1)
                    symbols = tl.reshape(tl.where(live, symbols, 0), (TOKENS * CHANNELS,))
                    centred += tl.histogram(symbols, 1 << E)
                    centred -= tl.where(
                        symbol == 0, TOKENS * CHANNELS - tl.sum(live.to(tl.int32)), 0
                    )
                    at += TOKENS
                begin += CHANNELS
            centred_freqs = normalize(centred, n)
            SIDE: tl.constexpr = (C + 3) // 4 + (C + 7) // 8 + 1
            side = (SIDE + 15) // 16 * 16
            use = estimate(centred, centred_freqs) + side < estimate(counts, freqs)
            freqs = tl.where(use, centred_freqs, freqs)
            tl.store(origins_ptr + C, (base & 255).to(tl.uint8))
            tl.store(origins_ptr + C + 1, use.to(tl.uint8))
        first = tl.cumsum(freqs) - freqs
        tl.store(tables_ptr + row * (1 << E) + symbol, (freqs | first << 16).to(tl.uint32))
        tl.store(sizes_ptr + 2 * row, tl.sum((freqs > 0).to(tl.int32)))


@triton.jit
def encode_kernel(
    cache_ptr, ids_ptr, valid_ptr, tables_ptr, sizes_ptr,  # as count_kernel; fills in the words
    states_ptr,  # uint32 [n, LANES]
    words_ptr,  # uint16 [n, MAX_WORDS], each row filled from its end
    stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_VALID: tl.constexpr,
    E: tl.constexpr, M: tl.constexpr, W0: tl.constexpr, Q: tl.constexpr,
    LANES: tl.constexpr, MAX_WORDS: tl.constexpr,
    origins_ptr=None, CENTRED: tl.constexpr = False,  # as count_kernel
):  # fmt: skip
    """rANS over one block, last step first. Reads the block, writes its words and states."""
    row = tl.program_id(0).to(tl.int64)
    n = valid_tokens(valid_ptr, row, T, HAS_VALID) * (H * D)
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    tables_ptr += row * (1 << E)
    words_ptr += row * MAX_WORDS
    lane = tl.arange(0, LANES)
    element = 4 * lane[:, None] + tl.arange(0, 4)[None, :]  # [LANES, 4], of round 0

    offset = block_offset(element, stride_token, stride_head, stride_dim, H, D)
    bits = load_bits(cache_ptr + offset, element < n)
    a, b, c, d = split4(raw_of(bits, E, M) & ((1 << W0) - 1), LANES)
    seed = a | b << W0
    if Q == 4:
        seed = seed | c << (2 * W0) | d << (3 * W0)
    state = 65536 | seed

    end = MAX_WORDS
    # first element of the last round; negative if there is none, and unsigned not below n
    begin = ((n + 4 * LANES - 1) // (4 * LANES) - 1) * (4 * LANES)
    offset = block_offset(begin + element, stride_token, stride_head, stride_dim, H, D)
    bits = load_bits(cache_ptr + offset, (begin + element).to(tl.uint32) < n)
    used = 0
    if CENTRED:
        origins_ptr += row * (H * D + 2)
        used = tl.load(origins_ptr + (H * D + 1), mask=n > 0, other=0).to(tl.int32)
    while begin >= 0:
        live = begin + element < n
        symbol = exponent_of(bits, E, M)
        if CENTRED:
            # of a row that is not centred, origins count for nothing
            origin = tl.load(origins_ptr + (begin + element) % (H * D), mask=live, other=0)
            symbol = (symbol - origin.to(tl.int32) * used) & ((1 << E) - 1)
        entry = tl.load(tables_ptr + symbol, mask=live, other=4096)
        a, b, c, d = split4(entry, LANES)
        begin -= 4 * LANES
        # the elements of the next round, under way while this one is coded
        offset = block_offset(begin + element, stride_token, stride_head, stride_dim, H, D)
        bits = load_bits(cache_ptr + offset, (begin + element).to(tl.uint32) < n)
        state, end = encode_step(state, d, words_ptr, end)
        state, end = encode_step(state, c, words_ptr, end)
        state, end = encode_step(state, b, words_ptr, end)
        state, end = encode_step(state, a, words_ptr, end)
    tl.store(states_ptr + row * LANES + lane, state)
    tl.store(sizes_ptr + 2 * row + 1, MAX_WORDS - end)


@triton.jit
def store_plane(
    out_ptr,  # uint8 [nbytes]
    byte, element,  # int32: bytes of the plane, and the first element in each
    n, nbytes,
    cache_ptr, stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    SHIFT: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Pack W bits from bit SHIFT of the sign-mantissa fields into bytes of a plane."""
    packed = tl.zeros(byte.shape, tl.uint32)
    for i in tl.static_range(8 // W):
        offset = block_offset(element + i, stride_token, stride_head, stride_dim, H, D)
        bits = load_bits(cache_ptr + offset, (byte < nbytes) & (element + i < n))
        packed = packed | ((raw_of(bits, E, M) >> SHIFT) & ((1 << W) - 1)) << (i * W)
    tl.store(out_ptr + byte, packed.to(tl.uint8), mask=byte < nbytes)


@triton.jit
def write_side(
    row_ptr, raw_ptr, words_at,
    num_symbols, num_words, raw_size, valid, table_ptr, states_ptr,
    E: tl.constexpr, LANES: tl.constexpr, mode, side,
):  # fmt: skip
    """Prefix, table, states and padding of a coded row; `side` bytes before the states are free."""
    head_ptr = row_ptr.to(tl.pointer_type(tl.int32))
    tl.store(head_ptr, mode | valid << 16)
    tl.store(head_ptr + 1, 3 * num_symbols)
    tl.store(head_ptr + 2, num_words)
    tl.store(head_ptr + 3, raw_size)
    symbol = tl.arange(0, 1 << E)
    freq = tl.load(table_ptr + symbol) & 0xFFFF
    present = freq > 0
    rank = tl.cumsum(present.to(tl.int32)) - 1
    freqs_ptr = (row_ptr + 16).to(tl.pointer_type(tl.uint16))
    tl.store(freqs_ptr + rank, freq.to(tl.uint16), mask=present)
    tl.store(row_ptr + 16 + 2 * num_symbols + rank, symbol.to(tl.uint8), mask=present)
    small = tl.arange(0, 16)
    zero = tl.zeros((16,), tl.uint8)
    states_at = words_at - 4 * LANES
    pad = 16 + 3 * num_symbols + small
    tl.store(row_ptr + pad, zero, mask=pad < states_at - side)
    lane = tl.arange(0, LANES)
    out_ptr = (row_ptr + states_at).to(tl.pointer_type(tl.uint32))
    tl.store(out_ptr + lane, tl.load(states_ptr + lane))
    pad = raw_size + small
    tl.store(raw_ptr + pad, zero, mask=pad < align16(raw_size))


@triton.jit
def write_kernel(
    cache_ptr, ids_ptr, valid_ptr, tables_ptr, sizes_ptr, states_ptr, words_ptr,  # as above
    rows_ptr,  # uint8 [n, row_nbytes], 16-byte aligned
    nbytes_ptr,  # int32 [n], strided
    stride_block, stride_token, stride_head, stride_dim, stride_row, stride_nbytes,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_VALID: tl.constexpr,
    E: tl.constexpr, M: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    Q: tl.constexpr, LANES: tl.constexpr, MAX_WORDS: tl.constexpr, TILE: tl.constexpr,
    origins_ptr=None, CENTRED: tl.constexpr = False,  # as count_kernel
):  # fmt: skip
    """One tile of every part of one row, in the shorter mode. Reads the block, writes the row."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    valid = valid_tokens(valid_ptr, row, T, HAS_VALID)
    n = valid * (H * D)
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    num_symbols = tl.load(sizes_ptr + 2 * row)
    num_words = tl.load(sizes_ptr + 2 * row + 1)
    mode, side = 1, 0  # bytes of the centres
    if CENTRED:
        origins_ptr += row * (H * D + 2)
        used = tl.load(origins_ptr + (H * D + 1), mask=n > 0, other=0).to(tl.int32)
        mode += used
        side += used * align16((H * D + 3) // 4 + (H * D + 7) // 8 + 1)
    words_at = 16 + align16(3 * num_symbols) + side + 4 * LANES
    raw_at = words_at + align16(2 * num_words)
    raw_size = raw_nbytes(n, Q, W0, W1, W2, LANES)
    coded_size = raw_at + align16(raw_size)
    ITEMSIZE: tl.constexpr = (1 + E + M) // 8
    plain_size = 16 + align16(n * ITEMSIZE)
    row_ptr = rows_ptr + row * stride_row
    at = tile * TILE + tl.arange(0, TILE)

    if (n > 0) & (coded_size < plain_size):
        raw_ptr = row_ptr + raw_at
        size0 = plane_nbytes(n, Q, W0, LANES)
        HEAD: tl.constexpr = LANES * (4 - Q) * W0 // 8  # bytes that the lanes' first groups leave
        if tile == 0:
            tl.store(nbytes_ptr + row * stride_nbytes, coded_size)
            write_side(
                row_ptr, raw_ptr, words_at, num_symbols, num_words, raw_size, valid,
                tables_ptr + row * (1 << E), states_ptr + row * LANES, E, LANES, mode, side,
            )  # fmt: skip
            if CENTRED:
                centres_at = 16 + align16(3 * num_symbols)
                write_centres(row_ptr + centres_at, origins_ptr, side, H * D)
            if Q < 4:
                byte = tl.arange(0, HEAD)
                store_plane(
                    raw_ptr, byte, byte // (4 - Q) * 4 + Q + byte % (4 - Q), n, size0,
                    cache_ptr, stride_token, stride_head, stride_dim, H, D, E, M, 0, W0,
                )  # fmt: skip
        words = tl.load(
            words_ptr + row * MAX_WORDS + MAX_WORDS - num_words + at, mask=at < num_words, other=0
        )
        out_ptr = (row_ptr + words_at).to(tl.pointer_type(tl.uint16))
        tl.store(out_ptr + at, words, mask=at < align16(2 * num_words) // 2)
        store_plane(
            raw_ptr, HEAD + at, 4 * LANES + at * (8 // W0), n, size0,
            cache_ptr, stride_token, stride_head, stride_dim, H, D, E, M, 0, W0,
        )  # fmt: skip
        if W1 > 0:
            size1 = plane_nbytes(n, 0, W1, LANES)
            store_plane(
                raw_ptr + size0, at, at * (8 // W1), n, size1,
                cache_ptr, stride_token, stride_head, stride_dim, H, D, E, M, W0, W1,
            )  # fmt: skip
            if W2 > 0:
                store_plane(
                    raw_ptr + size0 + size1, at, at * (8 // W2), n, plane_nbytes(n, 0, W2, LANES),
                    cache_ptr, stride_token, stride_head, stride_dim, H, D, E, M, W0 + W1, W2,
                )  # fmt: skip
    else:
        if tile == 0:
            tl.store(nbytes_ptr + row * stride_nbytes, plain_size)
            head_ptr = row_ptr.to(tl.pointer_type(tl.int32))
            tl.store(head_ptr, valid << 16)
            tl.store(head_ptr + 1, n * ITEMSIZE)
            tl.store(head_ptr + 2, 0)
            tl.store(head_ptr + 3, 0)
        offset = block_offset(at, stride_token, stride_head, stride_dim, H, D)
        elements = tl.load(cache_ptr + offset, mask=at < n, other=0)
        elements_ptr = (row_ptr + 16).to(tl.pointer_type(cache_ptr.dtype.element_ty))
        tl.store(elements_ptr + at, elements, mask=at < align16(n * ITEMSIZE) // ITEMSIZE)
