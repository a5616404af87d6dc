"""The two kernels that encode split rows with a profile: code, write. Integers only."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._bits_triton import exponent_of, plane_nbytes, raw_nbytes, split4
from kvcodec.kernels._float_triton import load_bits
from kvcodec.kernels._rans_triton import encode_step
from kvcodec.kernels._rows_triton import align16, block_offset, valid_tokens


@triton.jit
def bucket_of(symbol):
    """The magnitude as a context of the sign, 0..4."""
    return tl.minimum(tl.maximum(symbol - 9, 0), 12) // 3


@triton.jit
def load_low(
    cache_ptr, channels_ptr, element, n, live,
    stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Low mantissa bits of elements [tokens, live], uint32; 0 past n."""
    wide = tl.maximum(live, 1)
    number = tl.load(channels_ptr + element % wide, mask=element < n, other=0)
    place = element // wide * (H * D) + number
    offset = block_offset(place, stride_token, stride_head, stride_dim, H, D)
    return load_bits(cache_ptr + offset, element < n) & ((1 << LOW) - 1)


@triton.jit
def bits_left_out(
    cache_ptr, dead_ptr, tokens, num_dead,
    stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """1 if an element is not zero that the tables take for zero, else 0."""
    seen = tl.zeros((TILE,), tl.uint32)
    begin = 0
    while begin < tokens * num_dead:
        at = begin + tl.arange(0, TILE)
        there = at < tokens * num_dead
        number = tl.load(dead_ptr + at % num_dead, mask=there, other=0)
        place = at // num_dead * (H * D) + number
        offset = block_offset(place, stride_token, stride_head, stride_dim, H, D)
        seen = seen | load_bits(cache_ptr + offset, there)
        begin += TILE
    return tl.max((seen != 0).to(tl.int32))


@triton.jit
def profile_encode_kernel(
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    valid_ptr,  # int32 [n]; unused unless HAS_VALID
    channels_ptr,  # int32 [5, live]: see DeviceTables, also for the next four
    dead_ptr, exponents_ptr, begins_ptr, mantissas_ptr,
    nbytes_ptr,  # int32 [n], strided: of the rows there are; of a shorter row, its own
    sizes_ptr,  # int32 [n]: words in the stream, -1 if the row is not shorter
    states_ptr,  # uint32 [n, LANES]
    words_ptr,  # uint16 [n, MAX_WORDS], each row filled from its end
    live, num_dead, stride_block, stride_token, stride_head, stride_dim, stride_nbytes,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_VALID: tl.constexpr,
    E: tl.constexpr, M: tl.constexpr, LOW: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, Q: tl.constexpr,
    LANES: tl.constexpr, MAX_WORDS: tl.constexpr, DEAD: tl.constexpr = 256,
):  # fmt: skip
    """rANS over one block, last step first. Reads the block, writes its words and states."""
    row = tl.program_id(0).to(tl.int64)
    tokens = valid_tokens(valid_ptr, row, T, HAS_VALID)
    n = tokens * live
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    words_ptr += row * MAX_WORDS
    lane = tl.arange(0, LANES)
    state = tl.full((LANES,), 65536, tl.uint32)
    if LOW > 0:
        element = 4 * lane[:, None] + tl.arange(0, 4)[None, :]
        low = load_low(
            cache_ptr, channels_ptr, element, n, live, stride_token, stride_head, stride_dim,
            H, D, LOW,
        )  # fmt: skip
        a, b, c, d = split4(low & ((1 << W0) - 1), LANES)
        state = state | a | b << W0
        if Q == 4:
            state = state | c << (2 * W0) | d << (3 * W0)

    end = MAX_WORDS
    first = (live - 1) // LANES * LANES
    while first >= 0:
        at = first + lane
        alive = at < live
        number = tl.load(channels_ptr + at, mask=alive, other=0)
        kind = tl.load(channels_ptr + live + at, mask=alive, other=0)
        lowest = tl.load(channels_ptr + 2 * live + at, mask=alive, other=0)
        flip = tl.load(channels_ptr + 3 * live + at, mask=alive, other=0)
        sign_kind = tl.load(channels_ptr + 4 * live + at, mask=alive, other=0)
        t = tokens - 1
        while t >= 0:
            offset = block_offset(t * (H * D) + number, stride_token, stride_head, stride_dim, H, D)
            bits = load_bits(cache_ptr + offset, alive)
            exponent = exponent_of(bits, E, M)
            symbol = exponent - lowest
            symbol = tl.where((symbol < 0) | (symbol > 24), 24, symbol)
            sign = (bits >> (E + M)).to(tl.int32) ^ flip
            lead = ((bits >> LOW) & ((1 << (M - LOW)) - 1)).to(tl.int32)
            table = kind * 25 + symbol
            entry = tl.load(mantissas_ptr + table * 8 + lead, mask=alive, other=4096)
            begin = tl.load(begins_ptr + sign_kind * 5 + bucket_of(symbol), mask=alive, other=4096)
            signs = tl.where(sign == 1, (4096 - begin) | begin << 16, begin)
            signs = tl.where(alive, signs, 4096).to(tl.uint32)
            coded = tl.load(exponents_ptr + table, mask=alive, other=4096)
            escaped = alive & (symbol == 24)
            state, end = encode_step(state, entry, words_ptr, end)
            state, end = encode_step(state, signs, words_ptr, end)
            if tl.max(escaped.to(tl.int32)) > 0:
                literal = tl.where(escaped, 16 | exponent << 20, 4096).to(tl.uint32)
                state, end = encode_step(state, literal, words_ptr, end)
            state, end = encode_step(state, coded, words_ptr, end)
            t -= 1
        first -= LANES
    tl.store(states_ptr + row * LANES + lane, state)

    seen = bits_left_out(
        cache_ptr, dead_ptr, tokens, num_dead, stride_token, stride_head, stride_dim, H, D, DEAD
    )
    num_words = MAX_WORDS - end
    size = 16 + 4 * LANES + align16(2 * num_words)
    size += align16(raw_nbytes(n, Q, W0, W1, W2, LANES))
    shorter = size < tl.load(nbytes_ptr + row * stride_nbytes)
    shorter = shorter & (tokens > 0) & (seen == 0)
    tl.store(sizes_ptr + row, tl.where(shorter, num_words, -1))
    tl.store(nbytes_ptr + row * stride_nbytes, size, mask=shorter)


@triton.jit
def store_low_plane(
    out_ptr,  # uint8 [nbytes]
    byte, element,  # int32: bytes of the plane, and the first element in each
    n, nbytes, live,
    cache_ptr, channels_ptr, stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr, LOW: tl.constexpr, SHIFT: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Pack W bits from bit SHIFT of the low mantissa bits into bytes of a plane."""
    packed = tl.zeros(byte.shape, tl.uint32)
    for i in tl.static_range(8 // W):
        low = load_low(
            cache_ptr, channels_ptr, element + i, tl.where(byte < nbytes, n, 0), live,
            stride_token, stride_head, stride_dim, H, D, LOW,
        )  # fmt: skip
        packed = packed | ((low >> SHIFT) & ((1 << W) - 1)) << (i * W)
    tl.store(out_ptr + byte, packed.to(tl.uint8), mask=byte < nbytes)


@triton.jit
def profile_write_kernel(
    cache_ptr, ids_ptr, valid_ptr, channels_ptr,  # as above
    rows_ptr,  # uint8 [n, row_nbytes], 16-byte aligned
    sizes_ptr, states_ptr, words_ptr,  # as above
    live, stride_block, stride_token, stride_head, stride_dim, stride_row,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_VALID: tl.constexpr,
    E: tl.constexpr, M: tl.constexpr, LOW: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, Q: tl.constexpr,
    LANES: tl.constexpr, MAX_WORDS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of every part of one row, if it is shorter. Reads the block, writes the row."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    num_words = tl.load(sizes_ptr + row)
    if num_words >= 0:
        valid = valid_tokens(valid_ptr, row, T, HAS_VALID)
        n = valid * live
        cache_ptr += tl.load(ids_ptr + row) * stride_block
        row_ptr = rows_ptr + row * stride_row
        raw_size = raw_nbytes(n, Q, W0, W1, W2, LANES)
        raw_ptr = row_ptr + 16 + 4 * LANES + align16(2 * num_words)
        at = tile * TILE + tl.arange(0, TILE)
        size0 = plane_nbytes(n, Q, W0, LANES)
        HEAD: tl.constexpr = LANES * (4 - Q) * W0 // 8  # bytes that the first groups leave
        if tile == 0:
            head_ptr = row_ptr.to(tl.pointer_type(tl.int32))
            tl.store(head_ptr, 3 | valid << 16)
            tl.store(head_ptr + 1, num_words)
            tl.store(head_ptr + 2, raw_size)
            tl.store(head_ptr + 3, 0)
            lane = tl.arange(0, LANES)
            out_ptr = (row_ptr + 16).to(tl.pointer_type(tl.uint32))
            tl.store(out_ptr + lane, tl.load(states_ptr + row * LANES + lane))
            pad = raw_size + tl.arange(0, 16)
            tl.store(raw_ptr + pad, tl.zeros((16,), tl.uint8), mask=pad < align16(raw_size))
            if HEAD > 0:
                byte = tl.arange(0, HEAD)
                store_low_plane(
                    raw_ptr, byte, byte // (4 - Q) * 4 + Q + byte % (4 - Q), n, size0, live,
                    cache_ptr, channels_ptr, stride_token, stride_head, stride_dim,
                    H, D, LOW, 0, W0,
                )  # fmt: skip
        words = tl.load(
            words_ptr + row * MAX_WORDS + MAX_WORDS - num_words + at, mask=at < num_words, other=0
        )
        out_ptr = (row_ptr + 16 + 4 * LANES).to(tl.pointer_type(tl.uint16))
        tl.store(out_ptr + at, words, mask=at < align16(2 * num_words) // 2)
        if LOW > 0:
            store_low_plane(
                raw_ptr, HEAD + at, 4 * LANES + at * (8 // W0), n, size0, live,
                cache_ptr, channels_ptr, stride_token, stride_head, stride_dim, H, D, LOW, 0, W0,
            )  # fmt: skip
            if W1 > 0:
                size1 = plane_nbytes(n, 0, W1, LANES)
                store_low_plane(
                    raw_ptr + size0, at, at * (8 // W1), n, size1, live,
                    cache_ptr, channels_ptr, stride_token, stride_head, stride_dim,
                    H, D, LOW, W0, W1,
                )  # fmt: skip
                if W2 > 0:
                    store_low_plane(
                        raw_ptr + size0 + size1, at, at * (8 // W2), n,
                        plane_nbytes(n, 0, W2, LANES), live,
                        cache_ptr, channels_ptr, stride_token, stride_head, stride_dim,
                        H, D, LOW, W0 + W1, W2,
                    )  # fmt: skip
