"""n directions around the circle, and which of them is nearest to a point, without atan2.

Tables of cosines and sines come from integers and are frozen; points are compared with the
boundaries between directions by two fp32 products: formats/turboangle.md.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kvcodec import exact

FIXED = 160  # fraction bits of the table generator; fp32 needs 24, and no entry is near a tie


@lru_cache(maxsize=64)
def directions(n: int) -> exact.F32:
    """(cos, sin) of 2 pi k / n, each rounded to fp32: [n, 2]."""
    return _table(n, [(k, n) for k in range(n)])


@lru_cache(maxsize=64)
def boundaries(n: int) -> exact.F32:
    """(cos, sin) of 2 pi (k + 1/2) / n, between directions k and k + 1, rounded to fp32: [n, 2]."""
    return _table(n, [(2 * k + 1, 2 * n) for k in range(n)])


def quadrant(x: exact.F32, y: exact.F32) -> npt.NDArray[np.int64]:
    """0 for [0, 90) degrees and the origin, 1 for [90, 180), 2, 3; exact, by signs."""
    upper = np.where(x > 0, 0, 1)
    lower = np.where(x < 0, 2, 3)
    found = np.where((y > 0) | ((y == 0) & (x > 0)), upper, lower)
    return np.where((x == 0) & (y == 0), 0, found)


def nearest(x: exact.F32, y: exact.F32, n: int) -> npt.NDArray[np.int64]:
    """Code k of the direction nearest to (x, y): as many boundaries as the point is past, mod n.

    Past are the boundaries of lower quadrants, and those (bx, by) of its own for which
    fl(y bx) > fl(x by). On a boundary the lower code wins, and the origin has code 0. The products
    must not underflow: magnitudes are 0 or at least 2^-100.
    """
    edges = boundaries(n)
    quadrants = (4 * np.arange(n) + 2) // n  # of boundary k
    own = quadrant(x, y)
    code = np.zeros(x.shape, np.int64)
    for q in range(4):
        here = own == q
        bx, by = edges[quadrants == q].T
        past = exact.mul(y[here][:, None], bx) > exact.mul(x[here][:, None], by)
        code[here] = np.searchsorted(quadrants, q) + past.sum(-1, dtype=np.int64)
    return code % n


def _table(n: int, turns: list[tuple[int, int]]) -> exact.F32:
    """(cos, sin) of fractions p / q of a turn, rounded to fp32."""
    values = [[_to_fp32(v) for v in _cos_sin(p, q)] for p, q in turns]
    table = np.array(values, np.float32)
    table.flags.writeable = False
    return table


def _cos_sin(p: int, q: int) -> tuple[int, int]:
    """cos and sin of p / q of a turn in fixed point: Taylor series within the quadrant."""
    quarter, rest = divmod(4 * p, q)
    angle = rest * _pi() // (2 * q)
    term, series = 1 << FIXED, [0, 0, 0, 0]  # sums of terms 0, 1, 2, 3 mod 4
    degree = 0
    while term:
        series[degree % 4] += term
        degree += 1
        term = (term * angle >> FIXED) // degree
    cos, sin = series[0] - series[2], series[1] - series[3]
    return ((cos, sin), (-sin, cos), (-cos, -sin), (sin, -cos))[quarter % 4]


@lru_cache(maxsize=1)
def _pi() -> int:
    """pi in fixed point, by Machin's formula: 16 arctan(1/5) - 4 arctan(1/239)."""

    def arctan_inverse(m: int) -> int:
        power, total, k = (1 << FIXED + 16) // m, 0, 1
        while power:
            total += (power // k) * (1 if k % 4 == 1 else -1)
            power, k = power // (m * m), k + 2
        return total

    return (16 * arctan_inverse(5) - 4 * arctan_inverse(239)) >> 16


def _to_fp32(fixed: int) -> float:
    """Fixed point, 0 or of a size of at least 2^-126, to the nearest fp32."""
    drop = abs(fixed).bit_length() - 24
    if fixed == 0:
        return 0.0
    significand = (abs(fixed) + (1 << drop >> 1)) >> drop
    return math.copysign(math.ldexp(significand, drop - FIXED), fixed)
