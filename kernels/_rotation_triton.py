"""The rotation of `kvcodec.rotation` on tiles of vectors, for Triton kernels."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import functools

import numpy as np
import torch
import triton
import triton.language as tl

from kvcodec.rotation import block_sizes, norm_factor, signs


@triton.jit
def hadamard(
    y, factors, D: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr, D_PAD: tl.constexpr
):
    """H y of fp32 [ROWS, D_PAD] with D elements that count; anything past them.

    factors: fp32 [1, D_PAD], 2^(-k/2) of each element's block. An element's block is as long as the
    highest bit in which its position and D differ. STAGES: `num_stages` of D.
    """
    d = tl.arange(0, D_PAD)[None, :]
    for k in tl.static_range(STAGES):
        tree = tl.reshape(y, [ROWS, D_PAD >> (k + 1), 2, 1 << k])
        a, b = tl.split(tl.permute(tree, (0, 1, 3, 2)))
        tree = tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2))
        mixed = tl.reshape(tree, [ROWS, D_PAD])
        if D < D_PAD:
            y = tl.where(((d ^ D) >> (k + 1)) > 0, mixed, y)
        else:
            y = mixed
    return y * factors


@triton.jit
def hadamard_of_runs(
    y, factor, D: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr, D_PAD: tl.constexpr,
    OWN: tl.constexpr,
):  # fmt: skip
    """`hadamard` for D = D_PAD and tiles of which a thread holds 2^OWN neighbours.

    Later stages shuffle: the partner's element is the own and the exclusive or of both.
    """
    for k in tl.static_range(STAGES):
        tree = tl.reshape(y, [ROWS, D_PAD >> (k + 1), 2, 1 << k])
        if k < OWN:
            a, b = tl.split(tl.permute(tree, (0, 1, 3, 2)))
            tree = tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2))
        else:
            bits = tree.to(tl.uint32, bitcast=True)
            partner = (tl.xor_sum(bits, 2, keep_dims=True) ^ bits).to(tl.float32, bitcast=True)
            upper = tl.arange(0, 2)[None, None, :, None].to(tl.uint32) << 31
            tree = partner + (bits ^ upper).to(tl.float32, bitcast=True)
        y = tl.reshape(tree, [ROWS, D_PAD])
    return y * factor


def num_stages(head_dim: int) -> int:
    """Stages of the longest block: its elements are 2^stages."""
    return head_dim.bit_length() - 1


@functools.lru_cache(maxsize=64)
def tables(head_dim: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Sign bits int32 [head_dim] and factors fp32 [head_dim] on a device; copied once."""
    flips = np.where(signs(head_dim) < 0, -(1 << 31), 0).astype(np.int32)
    factors = np.concatenate([np.full(n, norm_factor(n)) for n in block_sizes(head_dim)])
    return torch.from_numpy(flips).to(device), torch.from_numpy(factors).to(device)


@functools.lru_cache(maxsize=64)
def flip_words(head_dim: int, device: torch.device) -> torch.Tensor:
    """The signs of 16 neighbours as bits of int32 [head_dim / 16], set for -1; copied once."""
    flips = signs(head_dim)[: head_dim // 16 * 16].reshape(-1, 16) < 0
    words = (flips.astype(np.int32) << np.arange(16, dtype=np.int32)).sum(1, dtype=np.int32)
    return torch.from_numpy(words).to(device)
