"""The shift of `center=profile` on the host in C++: native/center.cpp and native/shift.inc."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.kernels._centred import centred_of, mean_on
from kvcodec.kernels._centred_vector import valid_tokens
from kvcodec.kernels._native_call import FORMATS, NativeKernel, extension


@dataclass(frozen=True, slots=True)
class NativeShifter(NativeKernel):
    """See `_centred.Shifter`; the dense blocks are handed over as rows."""

    def scratch_nbytes(self, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """None."""
        return 0

    def extra(self, codec: Codec, spec: BlockSpec) -> tuple[int | torch.Tensor, ...]:
        """Element type, means."""
        return FORMATS[spec.dtype], mean_on(centred_of(codec), torch.device("cpu"))

    def take_off(
        self,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        rows: EncodedBlocks,
        staged: torch.Tensor,
        num_threads: int | None,
    ) -> None:
        """See `Shifter.take_off`."""
        blocks = as_rows(staged, rows)
        call = extension().center_take_off
        self._run(call, cache, block_ids, None, blocks, None, num_threads)

    def put_back(
        self,
        staged: torch.Tensor,
        rows: EncodedBlocks,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        num_threads: int | None,
    ) -> None:
        """See `Shifter.put_back`."""
        blocks, valid = as_rows(staged, rows), valid_tokens(rows)
        call = extension().center_put_back
        self._run(call, cache, block_ids, valid, blocks, None, num_threads)


def as_rows(staged: torch.Tensor, rows: EncodedBlocks) -> EncodedBlocks:
    """Dense blocks as rows of their bytes, under the codec of `rows`."""
    return replace(rows, payload=staged.view(len(staged), -1).view(torch.uint8))


SHIFTER = NativeShifter()
