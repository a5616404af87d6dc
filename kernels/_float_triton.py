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
    value = (magnitude << (23 - M)) + ((127 - BIAS) << 23)
    if E != 8:
        tiny = magnitude.to(tl.float32) * (2.0 ** (1 - BIAS - M))  # exact: under 2^11 times 2^-k
        value = tl.where(magnitude < (1 << M), tiny.to(tl.uint32, bitcast=True), value)
        if E != 4:
            value = tl.where(magnitude == INF, 0x7F800000, value)
    return value.to(tl.float32, bitcast=True)


@triton.jit
def narrow(value, E: tl.constexpr, M: tl.constexpr):
    """A format's magnitude of fp32 values >= 0: nearest even, saturating. Anything for NaN."""
    BIAS: tl.constexpr = (1 << (E - 1)) - 1
    DROP: tl.constexpr = 23 - M
    MAX: tl.constexpr = 0x7E if E == 4 else (((1 << E) - 1) << M) - 1
    a = value.to(tl.uint32, bitcast=True)
    if M == 23:
        code = a
    elif E == 8:
        code = (a + ((1 << (DROP - 1)) - 1) + ((a >> DROP) & 1)) >> DROP
    else:
        LOW: tl.constexpr = 128 - BIAS  # fp32 exponent field of the smallest normal
        exponent = a >> 23
        base = tl.maximum(exponent, LOW)
        drop = tl.minimum(base - exponent, M + 2) + DROP  # a subnormal drops more; 25 drops all
        significand = (a & 0x7FFFFF) | 0x800000
        below_half = 0xFFFFFF >> (25 - drop)
        rounded = (significand + below_half + ((significand >> drop) & 1)) >> drop
        code = rounded + ((base - LOW) << M)  # a normal's leading bit adds one to the exponent
    return tl.minimum(code, MAX)


@triton.jit
def pattern(magnitude, nan, negative, E: tl.constexpr, M: tl.constexpr):
    """Pattern of a magnitude, or the NaN that we write; negative is 0 or 1."""
    NAN: tl.constexpr = 0x7F if E + M == 7 else (((1 << E) - 1) << M) | (1 << (M - 1))
    return tl.where(nan, NAN, magnitude) | (negative << (E + M))
