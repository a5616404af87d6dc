"""The codebooks of turboquant: Lloyd-Max quantizers of the normal distribution, in doubles.

A level is the mean of its cell, a threshold the midpoint of two levels; repeated until both agree.
Prints the fp32 patterns that formats/turboquant.md and kvcodec/codecs/turboquant.py hold, and the
mean squared error of each.
"""

from __future__ import annotations

import itertools
import math
import struct


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def tail(x: float) -> float:
    """Probability above x."""
    return math.erfc(x / math.sqrt(2)) / 2


def codebook(bits: int) -> list[float]:
    """Positive levels, ascending; the quantizer is symmetric about 0."""
    count = 1 << (bits - 1)
    levels = [(i + 0.5) * 3 / count for i in range(count)]
    while True:
        edges = [0.0, *((a + b) / 2 for a, b in itertools.pairwise(levels)), math.inf]
        cells = list(itertools.pairwise(edges))
        means = [(density(a) - density(b)) / (tail(a) - tail(b)) for a, b in cells]
        if max(abs(a - b) for a, b in zip(levels, means, strict=True)) < 1e-15:
            return means
        levels = means


def mean_squared_error(levels: list[float]) -> float:
    """Of levels that are the means of their cells."""
    edges = [0.0, *((a + b) / 2 for a, b in itertools.pairwise(levels)), math.inf]
    cells = zip(levels, itertools.pairwise(edges), strict=True)
    return 1 - sum(2 * (tail(a) - tail(b)) * level**2 for level, (a, b) in cells)


def fp32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def pattern(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def tables(bits: int) -> tuple[list[int], list[int]]:
    """fp32 patterns of the positive levels, and of the midpoints of those rounded levels."""
    levels = [fp32(level) for level in codebook(bits)]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(levels)]
    return [pattern(level) for level in levels], [pattern(middle) for middle in middles]


def main() -> None:
    for bits in (1, 2, 3, 4):
        levels, thresholds = tables(bits)
        print(f"{bits} bits, mean squared error {mean_squared_error(codebook(bits)):.6f}")
        print("  levels    ", " ".join(f"{level:08X}" for level in levels))
        print("  thresholds", " ".join(f"{threshold:08X}" for threshold in thresholds))


if __name__ == "__main__":
    main()
