"""nvfp4 on the host in C++: see _microscaling_native."""

from kvcodec.kernels._microscaling_native import Nvfp4Native

KERNEL = Nvfp4Native()
