"""The arithmetic that may decide a byte. docs/numerics.md says why these and no others.

Single-precision multiply and divide are correctly rounded and never fused; every conversion is
integer code; maxima are taken over integer magnitudes. Subnormals are kept. A lint
(tests/test_lint_exact.py) keeps library math out of the codecs' references.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcodec.bits import FORMATS, FloatFormat, UInt

F32 = npt.NDArray[np.float32]

_INF = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_MAX_CODES = {"bf16": 0x7F7F, "fp16": 0x7BFF, "fp32": 0x7F7FFFFF, "e4m3fn": 0x7E, "e5m2": 0x7B}
_MAX_CODES["e2m1"] = 0x7
_NAN_CODES = {"bf16": 0x7FC0, "fp16": 0x7E00, "fp32": 0x7FC00000, "e4m3fn": 0x7F, "e5m2": 0x7F}
_NAN_CODES["e2m1"] = 0x7  # no NaN: it becomes the largest
_INF_CODES = {"bf16": 0x7F80, "fp16": 0x7C00, "fp32": 0x7F800000, "e5m2": 0x7C}


@dataclass(frozen=True, slots=True)
class Codes:
    """Magnitude codes of a format: largest finite, the NaN we write, infinity if it has one."""

    bias: int
    max: int
    nan: int
    inf: int | None


def codes_of(fmt: FloatFormat) -> Codes:
    """Special codes of bf16, fp16, fp32, e4m3fn, e5m2 or e2m1."""
    name = fmt.name
    bias = (1 << (fmt.exponent_bits - 1)) - 1
    return Codes(bias, _MAX_CODES[name], _NAN_CODES[name], _INF_CODES.get(name))


def mul(a: F32, b: F32) -> F32:
    """a * b, correctly rounded; overflow gives infinity."""
    with np.errstate(all="ignore"):
        return np.multiply(a, b, dtype=np.float32)


def scale_by(values: F32, scales: F32) -> F32:
    """values * scales; NaN, whatever made it, is 0x7FC00000 with the sign of the value.

    Processors give a NaN product the sign of one operand or of none.
    """
    product = mul(values, scales)
    sign = np.ascontiguousarray(values).view(np.uint32) & ~_MAGNITUDE
    nan = (sign | np.uint32(0x7FC00000)).view(np.float32)
    return np.where(is_nan(product), nan, product)


def div(a: F32, b: F32) -> F32:
    """a / b, correctly rounded."""
    with np.errstate(all="ignore"):
        return np.divide(a, b, dtype=np.float32)


def add(a: F32, b: F32) -> F32:
    """a + b, correctly rounded; overflow gives infinity."""
    with np.errstate(all="ignore"):
        return np.add(a, b, dtype=np.float32)


def sub(a: F32, b: F32) -> F32:
    """a - b, correctly rounded; overflow gives infinity."""
    with np.errstate(all="ignore"):
        return np.subtract(a, b, dtype=np.float32)


def sqrt(a: F32) -> F32:
    """Square root of values >= 0, correctly rounded (`torch.sqrt` is not, on a CPU)."""
    with np.errstate(all="ignore"):
        return np.sqrt(a, dtype=np.float32)  # exact: correctly rounded by IEEE 754


def round_half_even(a: F32) -> npt.NDArray[np.int64]:
    """Nearest integer of finite values, ties to even."""
    return np.rint(a).astype(np.int64)  # exact: an fp32 of 2^23 or more is an integer already


def widen(bits: UInt, fmt: FloatFormat) -> F32:
    """Exact fp32 values of bit patterns; NaN of any payload becomes the quiet NaN 0x7FC00000."""
    codes = codes_of(fmt)
    m = fmt.mantissa_bits
    magnitude = bits.astype(np.uint32) & np.uint32((1 << (m + fmt.exponent_bits)) - 1)
    sign = bits.astype(np.uint32) >> np.uint32(m + fmt.exponent_bits) << np.uint32(31)
    if codes.bias == 127:
        value = magnitude << np.uint32(23 - m)
    else:
        normal = (magnitude << np.uint32(23 - m)) + np.uint32((127 - codes.bias) << 23)
        step = np.float32(2.0 ** (1 - codes.bias - m))
        small = magnitude.astype(np.float32)  # exact: integers below 2^16
        tiny = mul(small, step).view(np.uint32)
        value = np.where(magnitude < 1 << m, tiny, normal)
    top = codes.max if codes.inf is None else codes.inf
    if codes.inf is not None:
        value = np.where(magnitude == codes.inf, _INF, value)
    value = np.where(magnitude > top, np.uint32(0x7FC00000), value)
    return (value | sign).astype(np.uint32).view(np.float32)


def narrow(x: F32, fmt: FloatFormat) -> UInt:
    """Bit patterns of fp32 values, rounded once to nearest even.

    Finite overflow and infinity saturate to the largest finite value; NaN becomes the format's
    quiet NaN; the sign always stays.
    """
    codes = codes_of(fmt)
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    a = (u & _MAGNITUDE).astype(np.int64)
    shift = 23 - fmt.mantissa_bits
    low = (127 - codes.bias + 1) << 23  # smallest normal of the format, unless it is fp32's own
    significand = (a & 0x7FFFFF) | 0x800000
    deep = np.clip(shift + (127 - codes.bias + 1) - (a >> 23), shift, 26)
    code = _round_shift(a, np.int64(shift)) - ((127 - codes.bias) << fmt.mantissa_bits)
    if codes.bias != 127:
        code = np.where(a < low, _round_shift(significand, deep), code)
    code = np.minimum(code, codes.max)
    code = np.where(a > int(_INF), codes.nan, code)
    sign = (u >> np.uint32(31)).astype(np.int64) << (fmt.mantissa_bits + fmt.exponent_bits)
    return (code | sign).astype(f"u{fmt.itemsize}")


def _round_shift(value: npt.NDArray[np.int64], shift: Any) -> npt.NDArray[np.int64]:
    """value / 2^shift, ties to even. A shift of 0 returns the value."""
    half = (np.int64(1) << shift) >> 1
    odd = (value >> shift) & 1
    return (value + np.maximum(half - 1, 0) + np.where(half > 0, odd, 0)) >> shift


def finite_amax(x: F32, axis: tuple[int, ...]) -> F32:
    """Largest finite magnitude along the axes (kept, size 1); infinities and NaN count as 0."""
    magnitude = np.ascontiguousarray(x).view(np.uint32) & _MAGNITUDE
    finite = np.where(magnitude < _INF, magnitude, np.uint32(0))
    return finite.max(axis=axis, keepdims=True, initial=0).astype(np.uint32).view(np.float32)


def is_nan(x: F32) -> npt.NDArray[np.bool_]:
    """NaN by bit pattern."""
    return (np.ascontiguousarray(x).view(np.uint32) & _MAGNITUDE) > _INF


__all__ = [
    "FORMATS", "Codes", "add", "codes_of", "div", "finite_amax", "is_nan", "mul", "narrow",
    "round_half_even", "scale_by", "sqrt", "sub", "widen",
]  # fmt: skip
