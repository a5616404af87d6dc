"""bitplane on the host in C++: two elements to a word, columns to vectors, blocks to threads."""

from __future__ import annotations

from typing import ClassVar, cast

import torch

from kvcodec.block import BlockSpec
from kvcodec.codec import Codec
from kvcodec.codecs.bitplane import Bitplane
from kvcodec.kernels._native_call import FORMATS, NativeKernel, extension


class BitplaneNative(NativeKernel):
    """See native/bitplane_encode.cpp and native/bitplane_decode.cpp."""

    name: ClassVar[str] = "bitplane"

    def scratch_nbytes(self, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """A few blocks per thread."""
        return extension().bitplane_scratch(*spec.shape, spec.dtype.itemsize, num_threads)

    def extra(self, codec: Codec, spec: BlockSpec) -> tuple[int | torch.Tensor, ...]:
        """The element type and the rate."""
        return FORMATS[spec.dtype], int(cast(Bitplane, codec).two_level)


KERNEL = BitplaneNative()
