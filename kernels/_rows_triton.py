"""Rows, scratch and cache elements as Triton kernels see them."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvcodec.errors import InvalidInputError
from kvcodec.row import ALIGNMENT, align

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


@triton.jit
def align16(nbytes):
    """`kvcodec.row.align`, in a form that lets the compiler see the divisibility."""
    return (nbytes + 15) // 16 * 16


@triton.jit
def block_offset(element, stride_token, stride_head, stride_dim, H: tl.constexpr, D: tl.constexpr):
    """Offset in a block, int64, of the elements numbered row-major over [tokens, H, D]."""
    token = element // (H * D)
    head = element // D % H  # in this form the compiler sees that D neighbours share a head
    dim = element % D
    offset = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    return offset + dim.to(tl.int64) * stride_dim


@triton.jit
def valid_tokens(valid_ptr, row, T: tl.constexpr, HAS_VALID: tl.constexpr):
    """Tokens of a row that count; a value outside 0..T, unchecked on a GPU, is drawn inside."""
    if HAS_VALID:
        valid = tl.minimum(tl.maximum(tl.load(valid_ptr + row), 0), T)
    else:
        valid = T
    return valid


def neighbours(elements: torch.Tensor, count: int) -> torch.Tensor | None:
    """Elements, integers, as whole words of `count` neighbours of a head, where they lie so."""
    *outer, last = elements.stride()
    whole = elements.shape[-1] % count == 0 and all(stride % count == 0 for stride in outer)
    aligned = elements.data_ptr() % (count * elements.element_size()) == 0
    if not (last == 1 and whole and aligned and elements.storage_offset() % count == 0):
        return None
    return elements.view(INTEGERS[count * elements.element_size()])


def check_rows(payload: torch.Tensor) -> None:
    """Kernels read and write rows in words of up to 16 bytes."""
    if payload.data_ptr() % ALIGNMENT or payload.stride(0) % ALIGNMENT:
        raise InvalidInputError(
            f"rows start at address {payload.data_ptr():#x} with a stride of {payload.stride(0)} "
            f"bytes, Triton kernels need multiples of {ALIGNMENT}; copy them into fresh rows"
        )


def scratch(
    workspace: torch.Tensor | None, device: torch.device, *sizes: int
) -> tuple[torch.Tensor, ...]:
    """Cut a workspace into aligned uint8 pieces; allocates it only when there is none."""
    total = sum(map(align, sizes))
    if workspace is None:
        workspace = torch.empty(total, dtype=torch.uint8, device=device)
    if workspace.dtype != torch.uint8 or workspace.device != device or workspace.dim() != 1:
        raise InvalidInputError(
            f"workspace is {workspace.dtype} {tuple(workspace.shape)} on {workspace.device}, "
            f"wanted uint8 [{total}] on {device}"
        )
    if workspace.numel() < total or workspace.data_ptr() % ALIGNMENT or workspace.stride(0) != 1:
        raise InvalidInputError(
            f"workspace has {workspace.numel()} bytes at {workspace.data_ptr():#x}, wanted "
            f"{total} contiguous bytes (see workspace_nbytes) at a multiple of {ALIGNMENT}"
        )
    pieces, begin = [], 0
    for size in sizes:
        pieces.append(workspace[begin : begin + size])
        begin += align(size)
    return tuple(pieces)
