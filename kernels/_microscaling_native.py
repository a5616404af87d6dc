"""nvfp4, mxfp4 and mxfp8 on the host in C++: the arithmetic of the references, run by run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from kvcodec.block import BlockSpec
from kvcodec.codec import Codec
from kvcodec.codecs.mxfp4 import Mxfp4
from kvcodec.codecs.mxfp8 import Mxfp8
from kvcodec.codecs.nvfp4 import Nvfp4
from kvcodec.kernels._native_call import FORMATS, NativeKernel, extension


@dataclass(frozen=True, slots=True)
class MicroscalingNative(NativeKernel):
    """See native/microscaling.cpp and native/microscaling.inc."""

    def scratch_nbytes(self, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """Some heads per thread."""
        size: int = extension().microscaling_scratch(
            spec.head_dim, spec.dtype.itemsize, num_threads
        )
        return size

    def extra(self, codec: Codec, spec: BlockSpec) -> tuple[int | torch.Tensor, ...]:
        """Element type, kind (`Microscaling::Kind`), four_over_six, global scale (or address 0)."""
        given: tuple[float, ...] = ()
        four_over_six = False
        if isinstance(codec, Nvfp4):
            kind, four_over_six = 0, codec.four_over_six
            given = () if codec.given is None else (codec.given,)
        elif isinstance(codec, Mxfp4):
            kind = 1
        elif isinstance(codec, Mxfp8):
            kind = 2 if codec.dtype == "e4m3" else 3
        else:
            raise TypeError(f"{self.name} kernel got a {type(codec).__name__} codec")
        return FORMATS[spec.dtype], kind, int(four_over_six), torch.tensor(given)


class Nvfp4Native(MicroscalingNative):
    """nvfp4."""

    name: ClassVar[str] = "nvfp4"


class Mxfp4Native(MicroscalingNative):
    """mxfp4."""

    name: ClassVar[str] = "mxfp4"


class Mxfp8Native(MicroscalingNative):
    """mxfp8."""

    name: ClassVar[str] = "mxfp8"
