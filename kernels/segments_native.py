"""segments on the host: each segment by the compiled kernel of its codec, where it has one."""

from __future__ import annotations

import torch

from kvcodec.kernels._dense import DenseKernel
from kvcodec.kernels.raw_native import KERNEL as RAW
from kvcodec.kernels.segments_vector import dense_kernel


class SegmentsNative(DenseKernel):
    """Cuts and joins with torch; what takes the time are the segments' codecs."""

    def unavailable(self, device: torch.device) -> str | None:
        """As every native kernel."""
        return RAW.unavailable(device)


_dense = dense_kernel(("native", "vector", "reference"))
KERNEL = SegmentsNative(_dense.encode, _dense.decode)
