"""int4 on a GPU: the tile of a program, its groups' scales and zeros, and packed codes.

A tile holds LINES groups. Groups of channels are its rows, [LINES, GROUP], numbered like the row's
scales; groups of tokens are its columns, [GROUP, LINES], one for each channel of all heads.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._float_triton import finite, narrow, widen


@triton.jit
def tile(
    tile_id, token_group,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    GROUP: tl.constexpr, LINES: tl.constexpr, STEP: tl.constexpr, ALONG_TOKENS: tl.constexpr,
):  # fmt: skip
    """Token, head and channel of the elements of a tile, and which of them exist.

    STEP: 1 for the elements, 2 or 4 for the first of each byte of codes.
    """
    if ALONG_TOKENS:
        token = token_group * GROUP + tl.arange(0, GROUP)[:, None]  # [GROUP, 1]
        channel = tile_id * LINES + STEP * tl.arange(0, LINES // STEP)[None, :]  # [1, LINES]
        head, dim = channel // D, channel % D
        inside = (token < T) & (channel < H * D)
    else:
        GROUPS: tl.constexpr = (D + GROUP - 1) // GROUP
        line = tile_id * LINES + tl.arange(0, LINES)[:, None]  # [LINES, 1]
        dim = line % GROUPS * GROUP + STEP * tl.arange(0, GROUP // STEP)[None, :]
        token, head = line // GROUPS // H, line // GROUPS % H
        inside = (token < T) & (dim < D)
    return token, head, dim, inside


@triton.jit
def line_numbers(
    tile_id, token_group,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    GROUP: tl.constexpr, LINES: tl.constexpr, ALONG_TOKENS: tl.constexpr,
):  # fmt: skip
    """Where the scales of a tile's groups stand among the row's, and which exist; [LINES]."""
    line = tile_id * LINES + tl.arange(0, LINES)
    if ALONG_TOKENS:
        number, inside = token_group * H * D + line, line < H * D
    else:
        number, inside = line, line < T * H * ((D + GROUP - 1) // GROUP)
    return number, inside


@triton.jit
def signed(bits, E: tl.constexpr, M: tl.constexpr):
    """fp32 value of patterns; anything for NaN."""
    value = widen(bits & ((1 << (E + M)) - 1), E, M)
    return tl.where((bits >> (E + M)) != 0, -value, value)


@triton.jit
def finite_or_zero(bits, E: tl.constexpr, M: tl.constexpr):
    """fp32 value of stored scales or zeros; what is not finite counts as 0."""
    value = widen(finite(bits & ((1 << (E + M)) - 1), E, M), E, M)
    return tl.where((bits >> (E + M)) != 0, -value, value)


@triton.jit
def round_up(x, E: tl.constexpr, M: tl.constexpr):
    """Pattern of the smallest value that is not below x >= 0; saturates."""
    MAX: tl.constexpr = (((1 << E) - 1) << M) - 1
    code = narrow(x, E, M)
    return code + ((widen(code, E, M) < x) & (code < MAX)).to(tl.uint32)


@triton.jit
def round_down(x, E: tl.constexpr, M: tl.constexpr):
    """Pattern of the largest value that is not above x; saturates."""
    MAX: tl.constexpr = (((1 << E) - 1) << M) - 1
    size, negative = tl.abs(x), x < 0
    code = narrow(size, E, M)
    kept = widen(code, E, M)
    grow = (negative & (kept < size) & (code < MAX)).to(tl.uint32)
    shrink = ((x > 0) & (kept > size)).to(tl.uint32)
    return code + grow - shrink | negative.to(tl.uint32) << (E + M)


@triton.jit
def measure(x, counts, TOP: tl.constexpr, E: tl.constexpr, M: tl.constexpr, AXIS: tl.constexpr):
    """Patterns of the scales and zeros of a tile's groups from the values that count."""
    low = tl.min(tl.where(counts, x, float("inf")), AXIS)
    high = tl.max(tl.where(counts, x, float("-inf")), AXIS)
    none = low > high
    low = tl.where(none | (low == 0), 0.0, low)  # +0 for -0
    high = tl.where(none | (high == 0), 0.0, high)
    zeros = round_down(low, E, M)
    span = high - signed(zeros, E, M)
    span = tl.where(span > 0, span, 0.0)
    return round_up(tl.div_rn(span, TOP * 1.0), E, M), zeros


@triton.jit
def quantize(x, scale, zero, TOP: tl.constexpr):
    """Codes; a quotient that is NaN or not above 0 gives 0."""
    q = tl.div_rn(x - zero, scale)
    q = tl.where(q > 0, q, 0.0)
    q = tl.where(q < TOP * 1.0, q, TOP * 1.0)
    return (q + 8388608.0).to(tl.uint32, bitcast=True) & TOP  # 2^23: rounds to an integer


@triton.jit
def pack(codes, BITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Bytes [ROWS, COLUMNS * BITS / 8] of codes [ROWS, COLUMNS], first code lowest."""
    ROUNDS: tl.constexpr = 1 if BITS == 4 else (2 if BITS == 2 else 3)
    packed = codes
    for k in tl.static_range(ROUNDS):
        even, odd = tl.split(tl.reshape(packed, [ROWS, COLUMNS >> (k + 1), 2]))
        packed = even | odd << (BITS << k)
    return packed.to(tl.uint8)
