"""int4 on the host in C++: the arithmetic of the reference, a token's head at a time."""

from __future__ import annotations

from typing import ClassVar

import torch

from kvcodec.block import BlockSpec
from kvcodec.codec import Codec
from kvcodec.codecs.int4 import Int4
from kvcodec.kernels._native_call import FORMATS, NativeKernel, extension


class Int4Native(NativeKernel):
    """See native/int4.cpp and native/int4.inc."""

    name: ClassVar[str] = "int4"

    def scratch_nbytes(self, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """Arrays of a head, per thread."""
        size: int = extension().int4_scratch(spec.head_dim, spec.dtype.itemsize, num_threads)
        return size

    def extra(self, codec: Codec, spec: BlockSpec) -> tuple[int | torch.Tensor, ...]:
        """Element type, type of scales, bits of a code, group, whether groups run along tokens."""
        if not isinstance(codec, Int4):
            raise TypeError(f"int4 kernel got a {type(codec).__name__} codec")
        meta = FORMATS[codec.meta_format.dtype]
        return FORMATS[spec.dtype], meta, codec.bits, codec.group, codec.axis == "channel"


KERNEL = Int4Native()
