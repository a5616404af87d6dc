"""fp8 on the host in C++: the arithmetic of the reference, a token's head at a time."""

from __future__ import annotations

from typing import ClassVar

import torch

from kvcodec.block import BlockSpec
from kvcodec.codec import Codec
from kvcodec.codecs.fp8 import SHARED_AXES, TARGETS, Fp8
from kvcodec.kernels._native_call import FORMATS, NativeKernel, extension


class Fp8Native(NativeKernel):
    """See native/fp8.cpp and native/scales.inc."""

    name: ClassVar[str] = "fp8"

    def scratch_nbytes(self, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """A token's head and a magnitude per head, per thread."""
        heads, dim = spec.num_kv_heads, spec.head_dim
        size: int = extension().fp8_scratch(heads, dim, spec.dtype.itemsize, num_threads)
        return size

    def extra(self, codec: Codec, spec: BlockSpec) -> tuple[int | torch.Tensor, ...]:
        """Element type, code type, what shares a scale, the given scales (empty: address 0)."""
        if not isinstance(codec, Fp8):
            raise TypeError(f"fp8 kernel got a {type(codec).__name__} codec")
        given = torch.tensor(codec.given, dtype=torch.float32)
        target, sharing = list(TARGETS).index(codec.dtype), list(SHARED_AXES).index(codec.scale)
        return FORMATS[spec.dtype], target, sharing, given


KERNEL = Fp8Native()
