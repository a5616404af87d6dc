"""split on the host in C++: vector instructions over the lanes, blocks over threads."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, cast

import torch

from kvcodec.block import BlockSpec
from kvcodec.codec import Codec
from kvcodec.codecs.split import Split
from kvcodec.kernels._native_call import FORMATS, NativeKernel, extension
from kvcodec.tables import Tables

MODELS = ("plain", "centred", "profile", "context")  # order of `SplitModel` in native/call.h


class SplitNative(NativeKernel):
    """See native/split_encode.cpp, native/split_decode.cpp and native/split_tabled.cpp."""

    name: ClassVar[str] = "split"

    def scratch_nbytes(self, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """Scratch under the default model."""
        return self.scratch_for(Split(), spec, num_blocks, num_threads)

    def scratch_for(self, codec: Codec, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """A few blocks per thread to compress, 1 or 2 bytes an element of a row to decompress."""
        model = MODELS.index(cast(Split, codec).model)
        sizes = extension().split_scratch(
            spec.block_size, spec.token_numel, spec.dtype.itemsize, num_threads, num_blocks, model
        )
        return max(sizes)

    def extra(self, codec: Codec, spec: BlockSpec) -> tuple[int | torch.Tensor, ...]:
        """The element type, the model and its tables."""
        split = cast(Split, codec)
        tables = contexts(split.held(), spec.dtype) if split.needs_profile else 0
        return FORMATS[spec.dtype], MODELS.index(split.model), tables


@lru_cache(maxsize=256)  # planes of a profile; about 0.3 MB each
def contexts(tables: Tables, dtype: torch.dtype) -> torch.Tensor:
    """A plane's tables as native/contexts.h lays them out, uint8."""
    arrays = tables.arrays
    classes, sign_classes = len(arrays["exponents"]), len(arrays["signs"])
    order = ("centre", "class", "flip", "sign_class", "exponents", "mantissas", "signs")
    sizes = FORMATS[dtype], arrays["class"].size, classes, sign_classes
    addresses = [arrays[name].ctypes.data for name in order]
    nbytes = extension().split_contexts(*sizes, *addresses, 0, 0)
    room = torch.empty(nbytes, dtype=torch.uint8)
    extension().split_contexts(*sizes, *addresses, room.data_ptr(), nbytes)
    return room


KERNEL = SplitNative()
