"""split on the host in C++: vector instructions over the lanes, blocks over threads."""

from __future__ import annotations

from typing import ClassVar, cast

import torch

from kvcodec.block import BlockSpec
from kvcodec.codec import Codec
from kvcodec.codecs.split import Split
from kvcodec.kernels._native_call import FORMATS, NativeKernel, extension

MODELS = ("plain", "centred")  # order of `SplitModel` in native/call.h


class SplitNative(NativeKernel):
    """See native/split.cpp."""

    name: ClassVar[str] = "split"

    def scratch_nbytes(self, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """A few blocks per thread to compress, a byte per element of every row to decompress."""
        sizes = extension().split_scratch(
            spec.block_size, spec.token_numel, spec.dtype.itemsize, num_threads, num_blocks
        )
        return max(sizes)

    def extra(self, codec: Codec, spec: BlockSpec) -> tuple[int | torch.Tensor, ...]:
        """The element type and the model."""
        return FORMATS[spec.dtype], MODELS.index(cast(Split, codec).model)


KERNEL = SplitNative()
