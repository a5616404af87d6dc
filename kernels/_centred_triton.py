"""The shift of `center=profile` on a GPU: a launch before a quantizer's own, one after; no sync."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvcodec.bits import int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.kernels._centred import means
from kvcodec.kernels._float_triton import load_bits, narrow, widen
from kvcodec.kernels._rows_triton import block_offset
from kvcodec.kernels._triton import launching

TILE = 1024  # elements of a program: 8 a thread


@triton.jit
def shift(bits, mean, E: tl.constexpr, M: tl.constexpr, SUBTRACT: tl.constexpr):
    """Patterns of x - mean or x + mean, saturating; NaN and infinity keep their bits."""
    magnitude = bits & ((1 << (E + M)) - 1)
    sign = bits >> (E + M)
    x = (widen(magnitude, E, M).to(tl.uint32, bitcast=True) | sign << 31).to(
        tl.float32, bitcast=True
    )
    y = x - mean if SUBTRACT else x + mean  # a negated zero would lose the sign of -0
    wide = y.to(tl.uint32, bitcast=True)
    code = narrow((wide & 0x7FFFFFFF).to(tl.float32, bitcast=True), E, M)
    return tl.where(magnitude < (((1 << E) - 1) << M), code | wide >> 31 << (E + M), bits)


@triton.jit
def take_off_kernel(
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    mean_ptr,  # fp32 [H, D]
    staged_ptr,  # intW [n, T, H, D], contiguous
    stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """A tile of a block less its means. Reads and writes the elements once."""
    i = tl.program_id(0).to(tl.int64)
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    element = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = element < T * H * D
    offset = block_offset(element, stride_token, stride_head, stride_dim, H, D)
    bits = load_bits(block_ptr + offset, inside)
    mean = tl.load(mean_ptr + element % (H * D), mask=inside, other=0.0)
    moved = shift(bits, mean, E, M, True).to(staged_ptr.dtype.element_ty)
    tl.store(staged_ptr + i * (T * H * D) + element, moved, mask=inside)


@triton.jit
def put_back_kernel(
    staged_ptr,  # intW [n, T, H, D], contiguous
    rows_ptr,  # uint8 [n, row bytes]
    mean_ptr,  # fp32 [H, D]
    ids_ptr,  # int64 [n]
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    stride_row, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """A tile of a decoded block and its means; zeros past the row's valid tokens."""
    i = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + i * stride_row
    valid = tl.load(row_ptr + 2).to(tl.int32) | tl.load(row_ptr + 3).to(tl.int32) << 8
    element = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = element < T * H * D
    bits = load_bits(staged_ptr + i * (T * H * D) + element, inside)
    mean = tl.load(mean_ptr + element % (H * D), mask=inside, other=0.0)
    moved = tl.where(element // (H * D) < valid, shift(bits, mean, E, M, False), 0)
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    offset = block_offset(element, stride_token, stride_head, stride_dim, H, D)
    tl.store(block_ptr + offset, moved.to(cache_ptr.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class TritonShifter:
    """See `_centred.Shifter`."""

    def take_off(
        self,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        rows: EncodedBlocks,
        staged: torch.Tensor,
        num_threads: int | None,
    ) -> None:
        """One launch; reads and writes the elements once."""
        ids, mean = block_ids.contiguous(), means(rows)
        with launching(cache):
            take_off_kernel[grid(staged)](
                int_view(cache), ids, mean, int_view(staged), *cache.stride(),
                **constants(BlockSpec.of(staged)), enable_fp_fusion=False,
            )  # fmt: skip

    def put_back(
        self,
        staged: torch.Tensor,
        rows: EncodedBlocks,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        num_threads: int | None,
    ) -> None:
        """One launch; reads and writes the elements once."""
        ids, mean = block_ids.contiguous(), means(rows)
        with launching(cache):
            put_back_kernel[grid(staged)](
                int_view(staged), rows.payload, mean, ids, int_view(cache),
                rows.payload.stride(0), *cache.stride(), **constants(BlockSpec.of(staged)),
                enable_fp_fusion=False,
            )  # fmt: skip


def grid(staged: torch.Tensor) -> tuple[int, int]:
    """A program for every tile of every block."""
    return len(staged), triton.cdiv(staged[0].numel(), TILE)


def constants(spec: BlockSpec) -> dict[str, int]:
    """Constants that both kernels take."""
    return {
        "T": spec.block_size, "H": spec.num_kv_heads, "D": spec.head_dim,
        "E": spec.format.exponent_bits, "M": spec.format.mantissa_bits, "TILE": TILE,
    }  # fmt: skip


SHIFTER = TritonShifter()
