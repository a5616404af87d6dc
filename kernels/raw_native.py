"""raw on the host in C++: one read and one write of every valid element."""

from __future__ import annotations

from typing import ClassVar

import torch

from kvcodec.block import BlockSpec
from kvcodec.codec import Codec
from kvcodec.kernels._native_call import NativeKernel


class RawNative(NativeKernel):
    """See native/raw.cpp."""

    name: ClassVar[str] = "raw"

    def scratch_nbytes(self, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """None."""
        return 0

    def extra(self, codec: Codec, spec: BlockSpec) -> tuple[int | torch.Tensor, ...]:
        """The size of an element says all."""
        return ()


KERNEL = RawNative()
