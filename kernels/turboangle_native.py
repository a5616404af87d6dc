"""turboangle on the host in C++: the arithmetic of the reference, a head vector at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch

from kvcodec import angles, fixed_log, radix
from kvcodec.block import BlockSpec
from kvcodec.codec import Codec
from kvcodec.codecs.turboangle import CODED, STORED, TurboAngle
from kvcodec.kernels._native_call import FORMATS, NativeKernel, extension
from kvcodec.rotation import signs


class TurboAngleNative(NativeKernel):
    """See native/turboangle.cpp and native/turboangle.inc."""

    name: ClassVar[str] = "turboangle"

    def scratch_nbytes(self, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """A vector of elements and its intermediate values, per thread."""
        size: int = extension().turboangle_scratch(spec.head_dim, spec.dtype.itemsize, num_threads)
        return size

    def extra(self, codec: Codec, spec: BlockSpec) -> tuple[int | torch.Tensor, ...]:
        """Element type, norm and whether fp16 is stored, both packings, the tables."""
        if not isinstance(codec, TurboAngle):
            raise TypeError(f"turboangle kernel got a {type(codec).__name__} codec")
        pairs = spec.head_dim // 2
        norm = CODED.index(codec.norm) if codec.norm in CODED else len(CODED)
        norms = packing(pairs, 1 << codec.norm_bits)
        if codec.norm in STORED:
            norms = (*norms[:4], pairs * STORED[codec.norm].itemsize)
        half = int("fp16" in (codec.norm, codec.minmax))
        integers = (FORMATS[spec.dtype], 2 * norm + half, *packing(pairs, codec.n), *norms)
        return *integers, *tables(codec.n, spec.head_dim)


def packing(count: int, n: int) -> tuple[int, int, int, int, int]:
    """Base, bits of a code (0: digits), codes and bytes of a group of digits, bytes of a vector."""
    whole = radix.is_power_of_two(n)
    bits, (m, nbytes) = (n.bit_length() - 1, (1, 1)) if whole else (0, radix.group(n))
    return n, bits, m, nbytes, radix.packed_nbytes(count, n)


@lru_cache(maxsize=16)
def tables(n: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Directions, boundaries, sign bits, and the two tables of logarithms one after the other."""
    flips = np.where(signs(head_dim) < 0, np.int32(-(1 << 31)), np.int32(0)).astype(np.int32)
    logs = np.concatenate([fixed_log.log_table(), fixed_log.power_table()]).astype(np.int32)
    arrays = (angles.directions(n).copy(), angles.boundaries(n).copy(), flips, logs)
    first, second, third, fourth = (torch.from_numpy(array) for array in arrays)
    return first, second, third, fourth


KERNEL = TurboAngleNative()
