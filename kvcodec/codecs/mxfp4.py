"""mxfp4: E2M1 codes in groups of 32 under powers of two."""

from __future__ import annotations

from dataclasses import dataclass

from kvcodec.bits import FloatFormat
from kvcodec.codecs._microscaling import E2M1, Mx
from kvcodec.registry import register


@register
@dataclass(frozen=True, slots=True)
class Mxfp4(Mx):
    """Round to 0 .5 1 1.5 2 3 4 6 times a power of two for 32 elements (OCP MXFP4).

    The arithmetic is that of `Mx`.

    Args:
        entropy: "rans" entropy-codes codes and scales, see kvcodec.quantizer.
        center, tables: "profile" takes a profile's means off first, see kvcodec.centred.

    NaN becomes +6, infinity 6 with its sign. Error: at most a quarter of the value above the scale,
    also where the largest of a group saturates, and a quarter of the scale below it. Cost: 4.25
    bits per element. Format: formats/mxfp4.md.
    """

    name = "mxfp4"
    examples = ("mxfp4", "mxfp4:entropy=rans", "mxfp4:center=profile")

    entropy: str = "none"

    def __post_init__(self) -> None:
        self.check_entropy()
        self.check_center()

    @property
    def target(self) -> FloatFormat:
        """E2M1."""
        return E2M1
