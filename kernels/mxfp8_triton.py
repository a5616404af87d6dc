"""mxfp8 on a GPU: see _mx_triton."""

from kvcodec.kernels._mx_triton import KERNEL

__all__ = ["KERNEL"]
