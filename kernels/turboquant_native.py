"""turboquant on the host in C++: the arithmetic of the reference, a vector at a time."""

from __future__ import annotations

from typing import ClassVar

import torch

from kvcodec.block import BlockSpec
from kvcodec.codec import Codec
from kvcodec.codecs.turboquant import TurboQuant
from kvcodec.kernels._native_call import FORMATS, NativeKernel, extension


class TurboquantNative(NativeKernel):
    """See native/turboquant.cpp and native/turboquant.inc."""

    name: ClassVar[str] = "turboquant"

    def scratch_nbytes(self, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """A vector in both forms, per thread."""
        size: int = extension().turboquant_scratch(spec.head_dim, spec.dtype.itemsize, num_threads)
        return size

    def extra(self, codec: Codec, spec: BlockSpec) -> tuple[int | torch.Tensor, ...]:
        """Element type, bits of a code, whether norms are fp32."""
        if not isinstance(codec, TurboQuant):
            raise TypeError(f"turboquant kernel got a {type(codec).__name__} codec")
        return FORMATS[spec.dtype], codec.bits, codec.norm == "fp32"


KERNEL = TurboquantNative()
