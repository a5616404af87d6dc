"""opaque: its plain rows are those of raw; the stack codes them."""

from kvcodec.kernels.raw_vector import KERNEL

__all__ = ["KERNEL"]
