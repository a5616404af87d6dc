"""mxfp4 on the host with torch: see _microscaling_vector."""

from kvcodec.kernels._microscaling_vector import KERNEL

__all__ = ["KERNEL"]
