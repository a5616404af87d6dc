"""mxfp8 on the host in C++: see _microscaling_native."""

from kvcodec.kernels._microscaling_native import Mxfp8Native

KERNEL = Mxfp8Native()
