"""fp8 on the host in C++: the arithmetic of the reference, a token's head at a time."""

from __future__ import annotations

from typing import ClassVar

import torch

from kvcodec.block import BlockSpec
from kvcodec.codec import Codec
from kvcodec.codecs.fp8 import PER_TOKEN, TARGETS, Fp8
from kvcodec.kernels._native_call import FORMATS, NativeKernel, extension


class Fp8Native(NativeKernel):
    """See native/fp8.cpp and native/scales.inc."""

    name: ClassVar[str] = "fp8"

    def scratch_nbytes(self, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """A token's head, and what is measured of channels, tokens or heads, per thread."""
        size: int = extension().fp8_scratch(*spec.shape, spec.dtype.itemsize, num_threads)
        return size

    def extra(self, codec: Codec, spec: BlockSpec) -> tuple[int | torch.Tensor, ...]:
        """Element and code type, what shares a scale, UE8M0 or not, given scales (or address 0)."""
        if not isinstance(codec, Fp8):
            raise TypeError(f"fp8 kernel got a {type(codec).__name__} codec")
        given = torch.tensor(codec.given, dtype=torch.float32)
        target = list(TARGETS).index(codec.dtype)
        per_token, power = int(codec.scale in PER_TOKEN), int(codec.scale_dtype == "ue8m0")
        return FORMATS[spec.dtype], target, *codec.group_shape(spec), per_token, power, given


KERNEL = Fp8Native()
