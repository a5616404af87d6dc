"""Blocks, caches and hypothesis strategies that the tests share.

A block is made from a *kind* (what its values look like), a spec and a seed, and is built from bit
patterns, so that the same arguments give the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from kvcodec import BlockSpec
from kvcodec.bits import FORMATS, from_bits

INTERPRETED = not torch.cuda.is_available()
FLOATS = [d for d in FORMATS if d.is_floating_point]
FINITE = ("normal", "wild_channels", "zeros", "constant", "zero_channel", "outlier")
KINDS = (*FINITE, "random_bits", "ramp", "two_symbols", "specials")


def _normal(rng: np.random.Generator, spec: BlockSpec) -> np.ndarray:
    """Gaussian values; every channel has a lasting scale of its own."""
    scales = np.exp(rng.standard_normal((spec.num_kv_heads, spec.head_dim)) / 2)
    return rng.standard_normal(spec.shape) * scales


def _values(kind: str, rng: np.random.Generator, spec: BlockSpec) -> np.ndarray:
    values = _normal(rng, spec)
    if kind == "wild_channels":
        values *= 0.1
        values[:, :, :: max(1, spec.head_dim // 4)] *= rng.choice([100.0, 1000.0])
    elif kind == "zeros":
        values[:] = 0
    elif kind == "constant":
        values[:] = 0.7431
    elif kind == "zero_channel":
        values[:, :, 0] = 0
        values[:, :, 1::2] = np.where(rng.random(values[:, :, 1::2].shape) < 0.5, -0.0, 1.0)
        values[0] = 0
    elif kind == "outlier":
        values[-1, -1, -1] = 200.0
    return values


def _specials(spec: BlockSpec) -> list[int]:
    """Bit patterns at every edge of a format: zeros, subnormals, largest, infinities, NaNs."""
    m, top = spec.format.mantissa_bits, spec.format.exponent_bits + spec.format.mantissa_bits
    magnitudes = [0, 1, (1 << m) - 1, 1 << m, (1 << top) - 1]
    inf = ((1 << spec.format.exponent_bits) - 1) << m
    magnitudes += [inf - 1, inf, inf + 1, inf + (1 << max(m - 1, 0)), (1 << top) - 2]
    return [sign << top | magnitude for magnitude in magnitudes for sign in (0, 1)]


def make_block(kind: str, spec: BlockSpec, seed: int = 0) -> torch.Tensor:
    """One block `[block_size, num_kv_heads, head_dim]` of a kind."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    width = 8 * spec.dtype.itemsize
    word = np.dtype(f"u{spec.dtype.itemsize}")
    if kind in FINITE and spec.dtype.is_floating_point:
        limit = 448.0 if spec.dtype.itemsize == 1 else 60000.0
        limit = min(limit, torch.finfo(spec.dtype).max)
        clipped = np.clip(_values(kind, rng, spec), -limit, limit)
        return torch.from_numpy(clipped).to(spec.dtype)
    if kind in FINITE:
        bits = np.clip(_values(kind, rng, spec) * 20 + 128 * (kind != "zeros"), 0, 255)
    elif kind == "ramp":
        bits = np.arange(spec.numel) * 257 % (1 << width)
    elif kind == "two_symbols":
        bits = rng.choice([0x35, 0xC1], spec.numel) << (width - 8)
    elif kind == "specials":
        bits = rng.choice(_specials(spec), spec.numel)
    else:
        bits = rng.integers(0, 1 << width, spec.numel, np.uint64)
    return from_bits(bits.astype(word).reshape(spec.shape), spec.dtype)


def make_cache(
    spec: BlockSpec, kinds: tuple[str, ...] = KINDS, seed: int = 0, device: str = "cpu"
) -> torch.Tensor:
    """A contiguous cache with one block of each kind."""
    return torch.stack([make_block(kind, spec, seed) for kind in kinds]).to(device)


def all_patterns(spec: BlockSpec, order: str) -> torch.Tensor:
    """A cache that holds every bit pattern of an 8- or 16-bit type at least once.

    order: "shuffled" fills blocks that cannot shrink; "ascending" gives each block few exponents,
    so that a coder has something to win.
    """
    patterns = np.arange(1 << (8 * spec.dtype.itemsize))
    if order == "shuffled":
        np.random.default_rng(0).shuffle(patterns)
    num_blocks = -(-patterns.size // spec.numel)
    bits = np.resize(patterns, num_blocks * spec.numel).astype(f"u{spec.dtype.itemsize}")
    return from_bits(bits.reshape(num_blocks, *spec.shape), spec.dtype)


def in_suite(impls: Sequence[str]) -> list[object]:
    """Implementations as parameters; the interpreter's turn comes with `make interpreter`."""
    slow = pytest.mark.interpreter
    return [pytest.param(i, marks=slow) if i == "triton" and INTERPRETED else i for i in impls]


@st.composite
def specs(
    draw: st.DrawFn,
    dtypes: list[torch.dtype] | None = None,
    head_dims: Sequence[int] = (2, 16, 64, 80, 100),
) -> BlockSpec:
    """Small specs of every element type, odd sizes included."""
    return BlockSpec(
        draw(st.sampled_from([1, 2, 3, 8, 16])),
        draw(st.integers(1, 3)),
        draw(st.sampled_from(head_dims)),
        draw(st.sampled_from(dtypes or list(FORMATS))),
    )


@st.composite
def strided_like(draw: st.DrawFn, spec: BlockSpec, num_blocks: int) -> torch.Tensor:
    """An uninitialised cache of a spec: its axes in any order of memory, with gaps between them."""
    shape = (num_blocks, *spec.shape)
    order = draw(st.permutations(range(4)))
    gaps = [draw(st.integers(0, 2)) for _ in range(4)]
    storage = torch.empty([shape[a] + gaps[a] for a in order], dtype=spec.dtype)
    view = storage.permute([order.index(a) for a in range(4)])
    return view[tuple(slice(gap, None) for gap in gaps)]
