"""The rotation y = H D x of a head vector: signs, then a Walsh-Hadamard transform.

D is a fixed diagonal of +-1 that all layers, heads and tokens share; H is the normalised
Walsh-Hadamard matrix, block-diagonal where head_dim is not a power of two. The order of the fp32
additions is part of the format: formats/rotation.md.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from kvcodec import exact
from kvcodec.errors import InvalidInputError

INVERSE_ROOT_2 = np.uint32(0x3F3504F3).view(np.float32)  # the fp32 value nearest to 2^(-1/2)


def block_sizes(head_dim: int) -> tuple[int, ...]:
    """Powers of two that sum to an even head_dim, largest first: 80 -> (64, 16)."""
    if head_dim < 2 or head_dim % 2:
        raise InvalidInputError(f"rotation: head_dim is {head_dim}, wanted an even number")
    return tuple(1 << k for k in range(head_dim.bit_length() - 1, 0, -1) if head_dim >> k & 1)


@lru_cache(maxsize=64)
def signs(head_dim: int) -> exact.F32:
    """Diagonal of D, fp32 [head_dim]: -1 where the top bit of SplitMix64's i-th output is set."""
    word = (1 << 64) - 1
    negative = []
    for i in range(head_dim):
        z = (i + 1) * 0x9E3779B97F4A7C15 & word
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & word
        z = (z ^ z >> 27) * 0x94D049BB133111EB & word
        negative.append((z ^ z >> 31) >> 63)
    diagonal = np.where(np.array(negative) == 1, np.float32(-1), np.float32(1))
    diagonal.flags.writeable = False
    return diagonal


def norm_factor(size: int) -> exact.F32:
    """2^(-k/2) of a block of 2^k elements, rounded to fp32; shape []."""
    k = size.bit_length() - 1
    root = INVERSE_ROOT_2 if k % 2 else np.float32(1)
    return np.array(root * np.float32(2.0 ** -(k // 2)))


def rotate(x: exact.F32) -> exact.F32:
    """H D x along the last axis: [..., head_dim] -> [..., head_dim], head_dim even.

    Orthonormal up to fp32 rounding: |y| = |x| within about 2^-22 * log2(head_dim). Finite while
    the magnitudes of x stay below 2^128 / head_dim. Not in place.
    """
    return _hadamard(exact.mul(x, signs(x.shape[-1])))


def unrotate(y: exact.F32) -> exact.F32:
    """D H y, the inverse of `rotate` up to fp32 rounding: the same transform, then the signs."""
    return exact.mul(_hadamard(y), signs(y.shape[-1]))


def _hadamard(x: exact.F32) -> exact.F32:
    """H x: per block, stages of a + b and a - b with strides 1, 2, 4, ...; then one product."""
    y = np.array(x, np.float32)
    begin = 0
    for size in block_sizes(y.shape[-1]):
        block = y[..., begin : begin + size]
        stride = 1
        while stride < size:
            pairs = block.reshape(*x.shape[:-1], size // (2 * stride), 2, stride)
            a, b = pairs[..., 0, :], pairs[..., 1, :]
            block = np.stack([exact.add(a, b), exact.sub(a, b)], axis=-2)
            stride *= 2
        y[..., begin : begin + size] = exact.mul(
            block.reshape(*x.shape[:-1], size), norm_factor(size)
        )
        begin += size
    return y
