"""Channel centring of formats/split.md, mode 2, in Triton. Integers only."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._bits_triton import exponent_of, load_fields
from kvcodec.kernels._float_triton import load_bits
from kvcodec.kernels._rows_triton import align16, block_offset


@triton.jit
def load_exponents(
    cache_ptr, begin, channel, tokens,
    stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Exponents [TOKENS, CHANNELS] from token `begin`, and which of them there are."""
    token = begin + tl.arange(0, TOKENS)
    live = (token < tokens)[:, None] & (channel < H * D)[None, :]
    element = token[:, None] * (H * D) + channel[None, :]
    offset = block_offset(element, stride_token, stride_head, stride_dim, H, D)
    return exponent_of(load_bits(cache_ptr + offset, live), E, M), live


@triton.jit
def measure_centres(
    cache_ptr, first_channel, tokens,
    stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    CHANNELS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Centres [CHANNELS], int32: the largest exponent less the rounded mean of what others lack."""
    channel = first_channel + tl.arange(0, CHANNELS)
    most = tl.zeros((CHANNELS,), tl.int32)
    begin = 0
    while begin < tokens:
        exponent, _ = load_exponents(
            cache_ptr, begin, channel, tokens, stride_token, stride_head, stride_dim,
            H, D, E, M, TOKENS,
        )  # fmt: skip
        most = tl.maximum(most, tl.max(exponent, 0))
        begin += TOKENS
    below = tl.zeros((CHANNELS,), tl.int32)
    begin = 0
    while begin < tokens:
        exponent, live = load_exponents(
            cache_ptr, begin, channel, tokens, stride_token, stride_head, stride_dim,
            H, D, E, M, TOKENS,
        )  # fmt: skip
        lacks = tl.minimum(most[None, :] - exponent, 2)
        below += tl.sum(tl.where(live, lacks, 0), 0)
        begin += TOKENS
    return most - (2 * below > tokens).to(tl.int32) - (2 * below > 3 * tokens).to(tl.int32)


@triton.jit
def estimate(counts, freqs):
    """Bytes that a table and its words take, nearly, from counts and frequencies, int32 [k]."""
    freq = tl.maximum(freqs, 1)
    power = tl.zeros(freq.shape, tl.int32)
    for i in tl.static_range(1, 13):
        power += (freq >= (1 << i)).to(tl.int32)
    x = (freq << (12 - power)) - 4096
    cost = ((12 - power) << 12) - x - ((x * (4096 - x) * 11) >> 17)
    total = tl.sum(counts.to(tl.int64) * cost)
    return align16(3 * tl.sum((freqs > 0).to(tl.int32))) + (total >> 15)


@triton.jit
def write_origins(
    row_ptr,  # uint8, a row whose centres begin at centres_at
    origins_ptr,  # uint8 [C]
    centred, centres_at,
    C: tl.constexpr,
):  # fmt: skip
    """Expand the centres of a row; zeros if it has none."""
    channel = tl.arange(0, triton.next_power_of_2(C))
    live = channel < C
    low_ptr = row_ptr + centres_at
    high_ptr = low_ptr + (C + 3) // 4
    known = channel < tl.where(centred, C, 0)
    field = load_fields(low_ptr, channel, known, 2) | load_fields(high_ptr, channel, known, 1) << 2
    base = tl.load(high_ptr + (C + 7) // 8, mask=centred, other=0).to(tl.uint32)
    tl.store(origins_ptr + channel, (field + base).to(tl.uint8), mask=live)


@triton.jit
def write_centres(
    out_ptr,  # uint8, where the part begins
    origins_ptr,  # uint8 [C + 1]: origins, then the base
    side,  # bytes to write, with padding; 0 for a row that is not centred
    C: tl.constexpr,
):  # fmt: skip
    """Pack the centres part of a row."""
    LOW: tl.constexpr = (C + 3) // 4
    HIGH: tl.constexpr = (C + 7) // 8
    base = tl.load(origins_ptr + C).to(tl.uint32)
    byte = tl.arange(0, triton.next_power_of_2(LOW + HIGH + 16))
    packed = tl.where(byte == LOW + HIGH, base, 0)
    for i in tl.static_range(8):
        channel = tl.where(byte < LOW, 4 * byte + i, 8 * (byte - LOW) + i)
        live = ((byte < LOW) & (i < 4)) | ((byte >= LOW) & (byte < LOW + HIGH))
        live = live & (channel < C)
        origin = tl.load(origins_ptr + channel, mask=live, other=0).to(tl.uint32)
        field = (origin - base) & 7
        bits = tl.where(byte < LOW, (field & 3) << (2 * i % 8), (field >> 2) << i)
        packed = packed | tl.where(live, bits, 0)
    tl.store(out_ptr + byte, packed.to(tl.uint8), mask=byte < side)
