"""Floats as exact rationals: an oracle of conversions that shares no code with the library.

A format is its (exponent bits, mantissa bits); e4m3fn is the one with neither infinity nor more
than one NaN. Python's `round` of a Fraction goes to the nearest integer, ties to even.
"""

from fractions import Fraction
from functools import cache
from itertools import pairwise

WIDTHS = {"bf16": (8, 7), "fp16": (5, 10), "fp32": (8, 23), "e4m3fn": (4, 3), "e5m2": (5, 2)}
NAN = {"bf16": 0x7FC0, "fp16": 0x7E00, "fp32": 0x7FC00000, "e4m3fn": 0x7F, "e5m2": 0x7F}


def top_finite(name: str) -> int:
    """Magnitude code of the largest finite value."""
    e, m = WIDTHS[name]
    return 0x7E if name == "e4m3fn" else (((1 << e) - 1) << m) - 1


@cache
def value_of(magnitude: int, name: str) -> Fraction | str:
    """Value of a magnitude code: a rational, "inf" or "nan"."""
    e, m = WIDTHS[name]
    if magnitude > top_finite(name):
        return "inf" if name != "e4m3fn" and magnitude == top_finite(name) + 1 else "nan"
    exponent, mantissa = divmod(magnitude, 1 << m)
    unit = Fraction(2) ** (max(exponent, 1) - (1 << (e - 1)) + 1 - m)
    return unit * (mantissa + (1 << m if exponent else 0))


def round_to(value: Fraction, name: str) -> int:
    """Magnitude code nearest to a rational >= 0, ties to even, saturating."""
    e, m = WIDTHS[name]
    lowest = 2 - (1 << (e - 1))  # exponent of the smallest normal, and of all subnormals
    exponent = lowest
    if value:
        exponent = value.numerator.bit_length() - value.denominator.bit_length()
        exponent = max(exponent - (value < Fraction(2) ** exponent), lowest)
    steps = round(value / Fraction(2) ** (exponent - m))
    return min(((exponent - lowest) << m) + steps, top_finite(name))


@cache
def convert_magnitude(magnitude: int, source: str, target: str) -> int:
    """Magnitude code in `target` of a magnitude code in `source`."""
    value = value_of(magnitude, source)
    if value == "nan":
        return NAN[target]
    return top_finite(target) if value == "inf" else round_to(value, target)


def convert(bits: int, source: str, target: str) -> int:
    """Pattern in `target` of a pattern in `source`; the sign stays."""
    sign, magnitude = divmod(bits, 1 << sum(WIDTHS[source]))
    return sign << sum(WIDTHS[target]) | convert_magnitude(magnitude, source, target)


@cache
def midpoints(target: str) -> tuple[int, ...]:
    """fp32 magnitudes halfway between neighbours of a narrow format, and one ulp to each side.

    Half of the smallest value and the first value that would overflow are among them.
    """
    top = top_finite(target)
    values = [value_of(code, target) for code in range(top + 1)]
    values.append(2 * values[-1] - values[-2])
    found = [round_to((a + b) / 2, "fp32") for a, b in pairwise(values)]
    return tuple(bits + step for bits in found for step in (-1, 0, 1))
