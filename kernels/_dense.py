"""Paged calls for implementations that work on dense host blocks: gather, call, scatter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kvcodec.bits import int_view
from kvcodec.block import BlockSpec, EncodedBlocks

if TYPE_CHECKING:
    from kvcodec.codec import Codec

Encode = Callable[[torch.Tensor, torch.Tensor, EncodedBlocks, torch.Tensor | None], None]
Decode = Callable[[EncodedBlocks, torch.Tensor | None], torch.Tensor]


def gather_blocks(cache: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    """cache[block_ids] as a contiguous tensor on the host; bits are copied, never converted."""
    return int_view(cache).index_select(0, block_ids).contiguous().cpu().view(cache.dtype)


def scatter_blocks(cache: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor) -> None:
    """cache[block_ids] = blocks, bit for bit, through any strides."""
    int_view(cache).index_copy_(0, block_ids, int_view(blocks).to(cache.device))


@dataclass(frozen=True, slots=True)
class DenseKernel:
    """A kernel made of a dense encoder and decoder on the host; needs no workspace.

    Tensors of a GPU go through the host: a way to check, not a way to serve.
    """

    encode: Encode
    decode: Decode

    def compress(
        self,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        num_valid: torch.Tensor | None,
        out: EncodedBlocks,
        *,
        positions: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """See `Codec.compress`."""
        blocks = gather_blocks(cache, block_ids)
        if num_valid is None:
            num_valid = torch.full((len(block_ids),), out.spec.block_size, dtype=torch.int32)
        host = out if not cache.is_cuda else EncodedBlocks.empty(out.codec, out.spec, len(out))
        self.encode(blocks, num_valid.cpu(), host, positions)
        if host is not out:
            out.payload.copy_(host.payload)
            out.nbytes.copy_(host.nbytes)

    def decompress(
        self,
        encoded: EncodedBlocks,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        *,
        positions: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """See `Codec.decompress`; nothing is written unless every row decoded."""
        scatter_blocks(cache, block_ids, self.decode(encoded.to("cpu"), positions))

    def workspace_nbytes(self, codec: Codec, spec: BlockSpec, num_blocks: int) -> int:
        """Host scratch is numpy's own."""
        return 0

    def unavailable(self, device: torch.device) -> str | None:
        """Runs everywhere."""
        return None


def reference_kernel(codec: Codec) -> DenseKernel:
    """The definition of a codec behind the paged calls."""
    return DenseKernel(codec.encode, codec.decode)
