"""Checks of what a caller hands to compress and decompress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.errors import InvalidInputError

if TYPE_CHECKING:
    from kvcodec.codec import Codec

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def check_cache(cache: torch.Tensor) -> BlockSpec:
    """Spec of a plane; InvalidInputError for anything that is not a 4-D tensor we know."""
    if not isinstance(cache, torch.Tensor):
        raise InvalidInputError(f"cache is a {type(cache).__name__}, wanted a torch.Tensor")
    return BlockSpec.of(cache)


def _int_tensor(values: Sequence[int] | torch.Tensor, what: str) -> torch.Tensor:
    tensor = values if isinstance(values, torch.Tensor) else torch.as_tensor(values)
    if tensor.numel() == 0:
        tensor = tensor.to(torch.int64)
    if tensor.dim() != 1 or tensor.dtype not in _INTEGERS:
        raise InvalidInputError(
            f"{what}: {tensor.dtype} {tuple(tensor.shape)}, wanted a list of integers"
        )
    return tensor


def check_block_ids(
    block_ids: Sequence[int] | torch.Tensor, cache: torch.Tensor, *, distinct: bool
) -> torch.Tensor:
    """block_ids as int64 [n] on the cache's device; values are checked on the host only."""
    ids = _int_tensor(block_ids, "block_ids").to(torch.int64)
    if not ids.is_cuda and ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= cache.shape[0]:
            raise InvalidInputError(
                f"block_ids: {low}..{high} leave the cache's range 0..{cache.shape[0] - 1}"
            )
        if distinct and torch.unique(ids).numel() != ids.numel():
            raise InvalidInputError("block_ids: a block is named twice; decompress needs each once")
    return ids.to(cache.device)


def check_num_valid(
    num_valid: Sequence[int] | torch.Tensor | None, n: int, spec: BlockSpec, device: torch.device
) -> torch.Tensor | None:
    """num_valid as int32 [n] on the device, or None when every block is full."""
    if num_valid is None:
        return None
    valid = _int_tensor(num_valid, "num_valid")
    if len(valid) != n:
        raise InvalidInputError(f"num_valid: {len(valid)} values for {n} blocks")
    if not valid.is_cuda and n and not 0 <= int(valid.min()) <= int(valid.max()) <= spec.block_size:
        raise InvalidInputError(
            f"num_valid: {int(valid.min())}..{int(valid.max())} leave 0..{spec.block_size}"
        )
    return valid.to(device=device, dtype=torch.int32)


def check_out(
    rows: EncodedBlocks, codec: Codec, spec: BlockSpec, n: int, device: torch.device
) -> None:
    """Rows have the codec, spec, count, device and dtypes that the call needs."""
    if rows.codec != codec or rows.spec != spec:
        raise InvalidInputError(
            f"rows are {rows.codec} of {rows.spec}, the call needs {codec} of {spec}"
        )
    payload, nbytes = rows.payload, rows.nbytes
    if payload.dtype != torch.uint8 or payload.dim() != 2 or nbytes.dtype != torch.int32:
        raise InvalidInputError(
            f"rows: payload {payload.dtype} {tuple(payload.shape)} and nbytes {nbytes.dtype}, "
            "wanted uint8 [n, row_nbytes] and int32 [n]"
        )
    if payload.shape[0] != n or tuple(nbytes.shape) != (n,):
        raise InvalidInputError(f"rows: {payload.shape[0]} rows for {n} block_ids")
    if payload.device != device or nbytes.device != device:
        raise InvalidInputError(f"rows are on {payload.device}, the cache is on {device}")
    if n and (payload.stride(1) != 1 or payload.shape[1] < codec.max_nbytes(spec)):
        raise InvalidInputError(
            f"rows: {payload.shape[1]} bytes with stride {payload.stride(1)}, wanted "
            f"{codec.max_nbytes(spec)} contiguous bytes per row"
        )


def check_workspace(workspace: torch.Tensor, nbytes: int, device: torch.device) -> None:
    """A workspace is contiguous bytes on the device, and enough of them."""
    if workspace.dtype != torch.uint8 or workspace.dim() != 1 or workspace.device != device:
        raise InvalidInputError(
            f"workspace is {workspace.dtype} {tuple(workspace.shape)} on {workspace.device}, "
            f"wanted uint8 [{nbytes}] on {device}"
        )
    if workspace.numel() < nbytes or not workspace.is_contiguous():
        raise InvalidInputError(
            f"workspace has {workspace.numel()} bytes, wanted {nbytes} contiguous ones "
            "(see workspace_nbytes)"
        )
