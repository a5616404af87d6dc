"""A reader of turboangle rows made from formats/turboangle.md and rotation.md alone.

Scalars of numpy's float32 do the arithmetic: one IEEE operation each. Tables come from float64
cosines and logarithms, rounded; the check values of the page say whether they are right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from rationals import round_to, value_of

F = np.float32
LOGS = [round(2**16 * math.log2(1 + j / 256)) for j in range(257)]
POWERS = [round(2**23 * (2 ** (j / 256) - 1)) for j in range(257)]


def bits_of(x: Any) -> int:
    return int(np.array(x, F).view(np.uint32))


def float_of(bits: int) -> Any:
    return np.array(bits, np.uint32).view(F)[()]


def circle(turns: float) -> tuple[Any, Any]:
    """(cos, sin) of a fraction of a turn, exact on the axes."""
    if turns * 4 == int(turns * 4):
        return [(F(1), F(0)), (F(0), F(1)), (F(-1), F(0)), (F(0), F(-1))][int(turns * 4)]
    return F(math.cos(2 * math.pi * turns)), F(math.sin(2 * math.pi * turns))


def scale(a: Any) -> tuple[Any, Any]:
    e = min(max(bits_of(a) >> 23 & 0xFF, 1), 253)
    return float_of((254 - e) << 23), float_of(e << 23)


def log2(x: Any) -> int:
    bits = bits_of(x)
    j, f = bits >> 15 & 0xFF, bits & 0x7FFF
    return (bits >> 23 << 16) + LOGS[j] + ((LOGS[j + 1] - LOGS[j]) * f + 0x4000 >> 15)


def exp2(log: int) -> Any:
    j, f = log >> 8 & 0xFF, log & 0xFF
    return float_of((log >> 16 << 23) + POWERS[j] + ((POWERS[j + 1] - POWERS[j]) * f + 0x80 >> 8))


def unpack(data: bytes, count: int, m: int) -> list[int]:
    if m & (m - 1) == 0:
        stream, w = int.from_bytes(data, "little"), m.bit_length() - 1
        return [stream >> i * w & (m - 1) for i in range(count)]
    ratio, g, c = min(
        (g / c, g, c)
        for g in range(1, 9)
        for c in [max(c for c in range(65) if m**c <= 256**g)]
        if c
    )
    assert ratio == g / c
    words = [int.from_bytes(data[at : at + g], "little") for at in range(0, len(data), g)]
    return [words[i // c] // m ** (i % c) % m for i in range(count)]


def packed(count: int, m: int) -> int:
    """Bytes of `count` codes below m."""
    if m & (m - 1) == 0:
        return -(-count * (m.bit_length() - 1) // 8)
    c, g = max(
        ((c, g) for g in range(1, 9) for c in range(1, 65) if m**c <= 256**g),
        key=lambda p: (p[0] / p[1], -p[1]),
    )
    rest = next(size for size in range(9) if m ** (count % c) <= 256**size)
    return count // c * g + rest


def unrotate(y: list[Any]) -> list[Any]:
    out: list[Any] = []
    for k in range(16, 0, -1):
        if not len(y) >> k & 1:
            continue
        block = y[len(out) : len(out) + 2**k]
        for s in (2**j for j in range(k)):
            for p in (p for p in range(2**k) if not p & s):
                block[p], block[p + s] = block[p] + block[p + s], block[p] - block[p + s]
        factor = float_of(0x3F3504F3 if k % 2 else 0x3F800000) * F(2.0 ** -(k // 2))
        out += [v * factor for v in block]
    for i in range(len(out)):
        z = (i + 1) * 0x9E3779B97F4A7C15 % 2**64
        for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = (z ^ z >> shift) * multiplier % 2**64
        out[i] = -out[i] if (z ^ z >> 31) >> 63 else out[i]
    return out


def to_element(x: Any, name: str) -> int:
    """Pattern of an fp32 value in an element type."""
    width = {"bf16": 15, "fp16": 15, "fp32": 31}[name]
    if np.isinf(x):
        magnitude = {"bf16": 0x7F7F, "fp16": 0x7BFF, "fp32": 0x7F7FFFFF}[name]
    else:
        magnitude = round_to(abs(value_of(bits_of(abs(x)), "fp32")), name)
    return magnitude | (1 << width if x < 0 else 0)


@dataclass(frozen=True)
class Page:
    """The parameters of the page."""

    n: int = 128
    norm_bits: int = 8
    norm: str = "linear"
    minmax: str = "fp32"

    def decode(self, row: bytes, shape: tuple[int, int, int], name: str) -> np.ndarray:
        """Bit patterns [T, H, D] of a row; overflow warnings are the caller's."""
        tokens, heads, dim = shape
        pairs, whole = dim // 2, {"fp16": "<f2", "fp32": "<f4"}
        assert row[:2] == bytes(2)
        assert row[4:16] == bytes(12)
        valid = row[2] | row[3] << 8
        per_angle = packed(pairs, self.n)
        if self.norm in whole:
            per_norm = pairs * int(whole[self.norm][2])
        else:
            per_norm = packed(pairs, 2**self.norm_bits)
        norms_at = 16 + -(-tokens * heads * per_angle // 16) * 16
        ends_at = norms_at + -(-tokens * heads * per_norm // 16) * 16
        directions = [circle(k / self.n) for k in range(self.n)]
        out = np.zeros((tokens * heads, dim), np.uint64)
        for v in range(valid * heads):
            codes = row[16 + v * per_angle :][:per_angle]
            norms = row[norms_at + v * per_norm :][:per_norm]
            if self.norm in whole:
                stored = [self.sound(x) for x in np.frombuffer(norms, whole[self.norm])]
                down, up = scale(max(stored))
                r = [x * down for x in stored]
            else:
                size = int(whole[self.minmax][2])
                ends = np.frombuffer(row, whole[self.minmax], 2, ends_at + 2 * size * v)
                r, up = self.norms(unpack(norms, pairs, 2**self.norm_bits), *map(self.sound, ends))
            y = []
            for radius, k in zip(r, unpack(codes, pairs, self.n), strict=True):
                y += [radius * directions[k][0], radius * directions[k][1]]
            out[v] = [to_element(x * up, name) for x in unrotate(y)]
        return out.reshape(shape)

    @staticmethod
    def sound(x: Any) -> Any:
        return F(x) if np.isfinite(x) and x > 0 else F(0)

    def norms(self, codes: list[int], smallest: Any, largest: Any) -> tuple[list[Any], Any]:
        down, up = scale(largest)
        low, high, t = smallest * down, largest * down, F(2**self.norm_bits - 1)
        if self.norm == "log":
            low = max(low, high * F(2.0**-10))
        low = min(low, high)
        if self.norm == "log":
            step = F(log2(high) - log2(low)) / t
            r = [exp2(log2(low) + int(np.rint(F(q) * step))) for q in codes]
        else:
            step = (high - low) / t
            r = [low + F(q) * step for q in codes]
        return [min(max(x, low), high) for x in r], up
