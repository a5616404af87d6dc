"""Conversions between floats and their fields for Triton kernels, in integer code.

Together they are `kvcodec.exact.widen` and `narrow`, for bf16, fp16, fp32, e4m3fn and e5m2, with
the same bits on every target and in the interpreter. Library casts (`.to(tl.bfloat16)`, `.to` of an
fp8 type) differ between targets, and the interpreter's are wrong: docs/numerics.md.

A format is given by its widths, E exponent bits and M mantissa bits. Patterns are uint32, whatever
the width of the format; a magnitude is a pattern without its sign.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_bits(ptr, mask):
    """Patterns behind a pointer to int8, int16 or int32, as uint32; 0 outside the mask."""
    raw = tl.load(ptr, mask=mask, other=0)
    WIDTH: tl.constexpr = raw.dtype.primitive_bitwidth
    if WIDTH == 8:
        bits = raw.to(tl.uint8, bitcast=True).to(tl.uint32)
    elif WIDTH == 16:
        bits = raw.to(tl.uint16, bitcast=True).to(tl.uint32)
    else:
        bits = raw.to(tl.uint32, bitcast=True)
    return bits


@triton.jit
def is_nan(magnitude, E: tl.constexpr, M: tl.constexpr):
    """NaN by bits; e4m3fn (E = 4) has one NaN code and no infinity."""
    TOP: tl.constexpr = 0x7E if E == 4 else ((1 << E) - 1) << M
    return magnitude > TOP


@triton.jit
def finite(magnitude, E: tl.constexpr, M: tl.constexpr):
    """The magnitude, or 0 for infinity and NaN; ordered like the values, so integer max works."""
    MAX: tl.constexpr = 0x7E if E == 4 else (((1 << E) - 1) << M) - 1
    return tl.where(magnitude > MAX, 0, magnitude)


@triton.jit
def widen(magnitude, E: tl.constexpr, M: tl.constexpr):
    """fp32 value of a magnitude, exactly. Anything for NaN: ask `is_nan`."""
    BIAS: tl.constexpr = (1 << (E - 1)) - 1
    INF: tl.constexpr = ((1 << E) - 1) << M
    value = (magnitude << (23 - M)).to(tl.float32, bitcast=True)
    if E != 8:
        value *= 2.0 ** (127 - BIAS)  # exact: a subnormal is one of fp32 before
        if E != 4:
            value = tl.where(magnitude == INF, float("inf"), value)
    return value


@triton.jit
def round_high(bits, DROP: tl.constexpr):
    """uint32 that have, above their DROP lowest bits, the nearest multiple of 2^DROP, even."""
    return bits + ((1 << (DROP - 1)) - 1) + ((bits >> DROP) & 1)


@triton.jit
def narrow(value, E: tl.constexpr, M: tl.constexpr):
    """A format's magnitude of fp32 values >= 0: nearest even, saturating. Anything for NaN."""
    BIAS: tl.constexpr = (1 << (E - 1)) - 1
    DROP: tl.constexpr = 23 - M
    MAX: tl.constexpr = 0x7E if E == 4 else (((1 << E) - 1) << M) - 1
    # the largest magnitude, as fp32
    TOP: tl.constexpr = (MAX << DROP) + ((127 - BIAS) << 23)
    a = tl.minimum(value.to(tl.uint32, bitcast=True), TOP)
    if M == 23:
        code = a
    else:
        code = round_high(a - ((127 - BIAS) << 23), DROP) >> DROP
    if E != 8:
        # a sum with this power of two is rounded to a multiple of the smallest subnormal
        ONE: tl.constexpr = 151 - BIAS - M
        tiny = (a.to(tl.float32, bitcast=True) + 2.0 ** (ONE - 127)).to(tl.uint32, bitcast=True)
        code = tl.where(a < (128 - BIAS) << 23, tiny - (ONE << 23), code)
    return code


@triton.jit
def pattern(magnitude, nan, negative, E: tl.constexpr, M: tl.constexpr):
    """Pattern of a magnitude, or the NaN that we write; negative is 0 or 1."""
    NAN: tl.constexpr = 0x7F if E + M == 7 else (((1 << E) - 1) << M) | (1 << (M - 1))
    return tl.where(nan, NAN, magnitude) | (negative << (E + M))
