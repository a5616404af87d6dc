"""The shift of `center=profile` beside compiled kernels: that of torch."""

from kvcodec.kernels._centred_vector import SHIFTER as SHIFTER
