"""The shift of `center=profile` in torch, on any device.

One fp32 addition and one rounding an element, as kvcodec.centred.shift has it: torch's casts equal
`kvcodec.exact.narrow` for values inside the range of the target (tests/test_centred.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcodec.bits import int_view
from kvcodec.block import EncodedBlocks
from kvcodec.kernels._centred import means
from kvcodec.kernels._dense import scatter_blocks


def shift(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """x + by [num_kv_heads, head_dim], saturating; NaN and infinity keep their bits."""
    largest = torch.finfo(x.dtype).max
    moved = (x.to(torch.float32) + by).clamp_(-largest, largest).to(x.dtype)
    return torch.where(x.isfinite(), int_view(moved), int_view(x)).view(x.dtype)


def valid_tokens(rows: EncodedBlocks) -> torch.Tensor:
    """num_valid of sound rows, int32 [n]."""
    count = rows.payload[:, 2:4].to(torch.int32)
    return count[:, 0] | count[:, 1] << 8


@dataclass(frozen=True, slots=True)
class TorchShifter:
    """See `_centred.Shifter`."""

    def take_off(
        self,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        rows: EncodedBlocks,
        staged: torch.Tensor,
        num_threads: int | None,
    ) -> None:
        """Gather, then shift."""
        blocks = int_view(cache).index_select(0, block_ids).view(cache.dtype)
        int_view(staged).copy_(int_view(shift(blocks, -means(rows))))

    def put_back(
        self,
        staged: torch.Tensor,
        rows: EncodedBlocks,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        num_threads: int | None,
    ) -> None:
        """Shift, clear unused slots, then scatter."""
        unused = torch.arange(staged.shape[1], device=staged.device) >= valid_tokens(rows)[:, None]
        moved = shift(staged, means(rows))
        int_view(moved).masked_fill_(unused[:, :, None, None], 0)
        scatter_blocks(cache, block_ids, moved)


SHIFTER = TorchShifter()
