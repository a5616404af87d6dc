"""The two kernels that decode split rows with a profile: decode, add low bits. Integers only."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._bits_triton import raw_nbytes
from kvcodec.kernels._float_triton import load_bits
from kvcodec.kernels._profile_encode_triton import bucket_of
from kvcodec.kernels._rows_triton import align16, block_offset
from kvcodec.kernels._split_decode_triton import load_raw


@triton.jit
def read_profile_prefix(
    row_ptr, nbytes, row_nbytes, live,
    T: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, Q: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Valid tokens and words of a row of mode 3; no tokens of any other, or of a damaged one."""
    head_ptr = row_ptr.to(tl.pointer_type(tl.uint32))
    head = tl.load(head_ptr)
    valid = (head >> 16).to(tl.int32)
    num_words = tl.load(head_ptr + 1).to(tl.int64)
    raw_size = tl.load(head_ptr + 2).to(tl.int64)
    sound = ((head & 0xFFFF) == 3) & (valid <= T)  # with the reserved byte, which is zero
    wanted = raw_nbytes(tl.minimum(valid, T) * live, Q, W0, W1, W2, LANES)
    sound = sound & (raw_size == wanted)
    sound = sound & (nbytes == 16 + 4 * LANES + align16(2 * num_words) + align16(raw_size))
    sound = sound & (nbytes >= 16) & (nbytes <= row_nbytes)
    return tl.where(sound, valid, 0), num_words.to(tl.int32)


@triton.jit
def advance(state, coded, live, words_ptr, read, num_words):
    """The next states of live lanes, refilled; a damaged stream that asks for more reads zeros."""
    state = tl.where(live, coded, state)
    need = state < 65536
    needed = need.to(tl.int32)
    at = read + tl.cumsum(needed) - 1
    word = tl.load(words_ptr + at, mask=need & (at < num_words), other=0).to(tl.uint32)
    return tl.where(need, (state << 16) | word, state), read + tl.sum(needed)


@triton.jit
def later(table_ptr, symbol, slot, STEP: tl.constexpr):
    """The symbol that many further where that one begins at the slot or before."""
    begins = tl.load(table_ptr + symbol + STEP) >> 16
    return symbol + tl.where(begins <= slot, STEP, 0)


@triton.jit
def profile_decode_kernel(
    rows_ptr,  # uint8 [n, row_nbytes], 16-byte aligned
    nbytes_ptr,  # int32 [n], strided
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    channels_ptr, slots_ptr, begins_ptr, mantissas_ptr,  # see DeviceTables
    last_ptr,  # uint32 [n, LANES]: the states after the last step
    live, stride_row, stride_nbytes, row_nbytes,
    stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    LOW: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, Q: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Valid elements of one row, but for their low bits. Reads the words, writes the elements."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + row * stride_row
    tokens, num_words = read_profile_prefix(
        row_ptr, tl.load(nbytes_ptr + row * stride_nbytes), row_nbytes, live,
        T, W0, W1, W2, Q, LANES,
    )  # fmt: skip
    if tokens > 0:
        cache_ptr += tl.load(ids_ptr + row) * stride_block
        lane = tl.arange(0, LANES)
        words_ptr = (row_ptr + 16 + 4 * LANES).to(tl.pointer_type(tl.uint16))
        state = tl.load((row_ptr + 16).to(tl.pointer_type(tl.uint32)) + lane)
        read = 0
        first = 0
        while first < live:
            at = first + lane
            alive = at < live
            number = tl.load(channels_ptr + at, mask=alive, other=0)
            kind = tl.load(channels_ptr + live + at, mask=alive, other=0)
            lowest = tl.load(channels_ptr + 2 * live + at, mask=alive, other=0)
            flip = tl.load(channels_ptr + 3 * live + at, mask=alive, other=0).to(tl.uint32)
            sign_kind = tl.load(channels_ptr + 4 * live + at, mask=alive, other=0)
            t = 0
            while t < tokens:
                entry = tl.load(slots_ptr + kind * 4096 + (state & 4095).to(tl.int32))
                coded = (((entry >> 8) & 0xFFF) + 1) * (state >> 12) + (entry >> 20)
                state, read = advance(state, coded, alive, words_ptr, read, num_words)
                symbol = (entry & 0xFF).to(tl.int32)
                exponent = lowest + symbol
                escaped = alive & (symbol == 24)
                if tl.max(escaped.to(tl.int32)) > 0:
                    slot = state & 4095
                    exponent = tl.where(escaped, (slot >> 4).to(tl.int32), exponent)
                    coded = 16 * (state >> 12) + (slot & 15)
                    state, read = advance(state, coded, escaped, words_ptr, read, num_words)

                begin = tl.load(begins_ptr + sign_kind * 5 + bucket_of(symbol)).to(tl.uint32)
                slot = state & 4095
                negative = slot >= begin
                freq = tl.where(negative, 4096 - begin, begin)
                coded = freq * (state >> 12) + slot - tl.where(negative, begin, 0)
                state, read = advance(state, coded, alive, words_ptr, read, num_words)

                # the last of 8 symbols that begins at the slot or before
                table_ptr = mantissas_ptr + (kind * 25 + symbol) * 8
                slot = state & 4095
                lead = later(table_ptr, tl.zeros((LANES,), tl.int32), slot, 4)
                lead = later(table_ptr, lead, slot, 2)
                lead = later(table_ptr, lead, slot, 1)
                entry = tl.load(table_ptr + lead)
                coded = (entry & 0xFFFF) * (state >> 12) + slot - (entry >> 16)
                state, read = advance(state, coded, alive, words_ptr, read, num_words)

                sign = negative.to(tl.uint32) ^ flip
                bits = (exponent & ((1 << E) - 1)).to(tl.uint32) << M
                bits = bits | sign << (E + M) | lead.to(tl.uint32) << LOW
                offset = block_offset(
                    t * (H * D) + number, stride_token, stride_head, stride_dim, H, D
                )
                tl.store(cache_ptr + offset, bits.to(cache_ptr.dtype.element_ty), mask=alive)
                t += 1
            first += LANES
        tl.store(last_ptr + row * LANES + lane, state)


@triton.jit
def profile_join_kernel(
    rows_ptr, nbytes_ptr, cache_ptr, ids_ptr, channels_ptr, last_ptr,  # as above
    live, stride_row, stride_nbytes, row_nbytes,
    stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    LOW: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, Q: tl.constexpr,
    LANES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of the low mantissa bits, added to the elements. Reads the raw part, the states."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + row * stride_row
    tokens, num_words = read_profile_prefix(
        row_ptr, tl.load(nbytes_ptr + row * stride_nbytes), row_nbytes, live,
        T, W0, W1, W2, Q, LANES,
    )  # fmt: skip
    n = tokens * live
    if tl.program_id(1) * TILE < n:
        at = tl.program_id(1) * TILE + tl.arange(0, TILE)
        alive = at < n
        number = tl.load(channels_ptr + at % live, mask=alive, other=0)
        place = at // live * (H * D) + number
        column, head = at % 4, at < 4 * LANES
        seeded = head & (column < Q)
        seed = tl.load(last_ptr + row * LANES + at // 4, mask=alive & seeded, other=0) & 0xFFFF
        first = tl.where(head, at // 4 * (4 - Q) + column - Q, at - Q * LANES)
        raw_ptr = row_ptr + 16 + 4 * LANES + align16(2 * num_words)
        low = load_raw(raw_ptr, first, at, alive & ~seeded, alive, n, W0, W1, W2, Q, LANES)
        low = low | (seed >> (column * W0).to(tl.uint32)) & ((1 << W0) - 1)
        cache_ptr += tl.load(ids_ptr + row) * stride_block
        offset = block_offset(place, stride_token, stride_head, stride_dim, H, D)
        bits = load_bits(cache_ptr + offset, alive) | low
        tl.store(cache_ptr + offset, bits.to(cache_ptr.dtype.element_ty), mask=alive)
