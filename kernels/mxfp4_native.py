"""mxfp4 on the host in C++: see _microscaling_native."""

from kvcodec.kernels._microscaling_native import Mxfp4Native

KERNEL = Mxfp4Native()
