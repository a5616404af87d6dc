"""raw on a GPU: one launch each way, a copy between the paged cache and the rows."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kvcodec.bits import int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.kernels._rows_triton import align16, block_offset, check_rows, valid_tokens
from kvcodec.kernels._triton import TritonKernel

TILE = 2048  # elements that a program copies: 16 a thread


@triton.jit
def encode_kernel(
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    valid_ptr,  # int32 [n]; unused unless HAS_VALID
    rows_ptr,  # uint8 [n, row_nbytes], 16-byte aligned
    nbytes_ptr,  # int32 [n], strided
    stride_block, stride_token, stride_head, stride_dim, stride_row, stride_nbytes,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_VALID: tl.constexpr,
    ITEMSIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Copy one tile of one block, zeros for its unused slots. Reads and writes it once."""
    row = tl.program_id(0).to(tl.int64)
    valid = valid_tokens(valid_ptr, row, T, HAS_VALID)
    row_ptr = rows_ptr + row * stride_row
    END: tl.constexpr = (T * H * D * ITEMSIZE + 15) // 16 * 16
    if tl.program_id(1) == 0:
        lane = tl.arange(0, 4)
        head_ptr = row_ptr.to(tl.pointer_type(tl.int32))
        tl.store(head_ptr + lane, tl.where(lane == 0, valid << 16, 0))
        tl.store(nbytes_ptr + row * stride_nbytes, 16 + END)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    offset = block_offset(at, stride_token, stride_head, stride_dim, H, D)
    elements = tl.load(cache_ptr + offset, mask=at < valid * (H * D), other=0)
    elements_ptr = (row_ptr + 16).to(tl.pointer_type(cache_ptr.dtype.element_ty))
    tl.store(elements_ptr + at, elements, mask=at < END // ITEMSIZE)


@triton.jit
def decode_kernel(
    rows_ptr, nbytes_ptr, cache_ptr, ids_ptr,  # as encode_kernel
    stride_row, stride_nbytes, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    ITEMSIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Copy one tile of one row; zeros past its valid tokens, or everywhere if it is damaged."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + row * stride_row
    nbytes = tl.load(nbytes_ptr + row * stride_nbytes)
    head = tl.load(row_ptr.to(tl.pointer_type(tl.uint32)))
    sound = (head & 0xFFFF) == 0  # mode and reserved byte
    sound = sound & ((head >> 16) <= T) & (nbytes == 16 + align16(T * H * D * ITEMSIZE))
    n = tl.where(sound, (head >> 16).to(tl.int32) * (H * D), 0)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    elements_ptr = (row_ptr + 16).to(tl.pointer_type(cache_ptr.dtype.element_ty))
    elements = tl.load(elements_ptr + at, mask=at < n, other=0)
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    offset = block_offset(at, stride_token, stride_head, stride_dim, H, D)
    tl.store(cache_ptr + offset, elements, mask=at < T * H * D)


def constants(spec: BlockSpec) -> dict[str, int]:
    """Constants that both kernels take."""
    shape = {"T": spec.block_size, "H": spec.num_kv_heads, "D": spec.head_dim}
    return {**shape, "ITEMSIZE": spec.dtype.itemsize, "TILE": TILE}


def compress(
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    num_valid: torch.Tensor | None,
    out: EncodedBlocks,
    **unused: Any,
) -> None:
    """Copy blocks into rows in one launch, without workspace or host sync."""
    check_rows(out.payload)
    ids = block_ids.contiguous()
    valid = ids if num_valid is None else num_valid.contiguous()
    grid = (len(out), triton.cdiv(out.spec.numel + 16, TILE))  # 16: room for the padding
    encode_kernel[grid](
        int_view(cache), ids, valid, out.payload, out.nbytes,
        *cache.stride(), out.payload.stride(0), out.nbytes.stride(0),
        **constants(out.spec), HAS_VALID=num_valid is not None,
    )  # fmt: skip


def decompress(
    encoded: EncodedBlocks, cache: torch.Tensor, block_ids: torch.Tensor, **unused: Any
) -> None:
    """Copy rows into blocks in one launch, without workspace or host sync."""
    check_rows(encoded.payload)
    grid = (len(encoded), triton.cdiv(encoded.spec.numel, TILE))
    decode_kernel[grid](
        encoded.payload, encoded.nbytes, int_view(cache), block_ids.contiguous(),
        encoded.payload.stride(0), encoded.nbytes.stride(0), *cache.stride(),
        **constants(encoded.spec),
    )  # fmt: skip


KERNEL = TritonKernel(compress, decompress)
