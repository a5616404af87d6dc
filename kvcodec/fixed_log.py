"""log2 of fp32 values and its inverse in integers: 16 fraction bits, tables and interpolation.

Both are within 2^-15 octaves of the true value and never decrease. The tables come from
integer roots and are frozen: formats/turboangle.md.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kvcodec.exact import F32

Ints = npt.NDArray[np.int64]
WIDTH = 200  # fraction bits of the table generator


@lru_cache(maxsize=1)
def power_table() -> Ints:
    """2^23 (2^(j/256) - 1), rounded, for j = 0..256."""
    root = 2 << WIDTH
    for _ in range(8):
        root = math.isqrt(root << WIDTH)  # 2^(1/256) in the end
    table, power = [], 1 << WIDTH
    for _ in range(257):
        table.append((power + (1 << (WIDTH - 24)) >> (WIDTH - 23)) - (1 << 23))
        power = power * root >> WIDTH
    return np.array(table, np.int64)


@lru_cache(maxsize=1)
def log_table() -> Ints:
    """2^16 log2(1 + j/256), rounded, for j = 0..256: bits come from repeated squaring."""
    table = []
    for j in range(257):
        x, log = (256 + j) << (WIDTH - 8), 0
        for _ in range(40):
            log <<= 1
            if x >= 2 << WIDTH:
                x, log = x >> 1, log + 1
            x = x * x >> WIDTH
        table.append(((1 << 17) if j == 256 else (log >> 22) + 1) >> 1)
    return np.array(table, np.int64)


def log_of(x: F32) -> Ints:
    """2^16 (log2(x) + 127) of fp32 values >= 0 by their bits; 0 for 0."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.int64)
    table, mantissa = log_table(), bits & 0x7FFFFF
    j, rest = mantissa >> 15, mantissa & 0x7FFF
    between = (table[j + 1] - table[j]) * rest + 0x4000 >> 15
    return (bits >> 23 << 16) + table[j] + between


def power_of(log: Ints) -> F32:
    """Inverse of `log_of`: fp32 values of integers in [0, 255 * 2^16)."""
    table, fraction = power_table(), log & 0xFFFF
    j, rest = fraction >> 8, fraction & 0xFF
    mantissa = table[j] + ((table[j + 1] - table[j]) * rest + 0x80 >> 8)
    return ((log >> 16 << 23) + mantissa).astype(np.uint32).view(np.float32)
