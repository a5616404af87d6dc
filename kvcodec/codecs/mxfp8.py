"""mxfp8: E4M3 or E5M2 codes in groups of 32 under powers of two."""

from __future__ import annotations

from dataclasses import dataclass

from kvcodec.bits import FloatFormat
from kvcodec.codecs._microscaling import Mx
from kvcodec.codecs.fp8 import TARGETS
from kvcodec.errors import InvalidInputError
from kvcodec.registry import register


@register
@dataclass(frozen=True, slots=True)
class Mxfp8(Mx):
    """Round to 8-bit floats times a power of two for 32 elements (OCP MXFP8).

    The arithmetic is that of `Mx`. NaN stays NaN; infinity becomes the largest code with its sign.

    Args:
        dtype: "e4m3" (largest 448) or "e5m2" (largest 57344).
        entropy: "rans" entropy-codes codes and scales, see kvcodec.quantizer.
        center, tables: "profile" takes a profile's means off first, see kvcodec.centred.

    Error: half an ulp of the code, 2^-4 relative for e4m3 and 2^-3 for e5m2, above the smallest
    normal code; up to an eighth where the group's largest saturates. Cost: 8.25 bits per element.
    Format: formats/mxfp8.md.
    """

    name = "mxfp8"
    examples = ("mxfp8", "mxfp8:dtype=e5m2,entropy=rans", "mxfp8:center=profile")

    dtype: str = "e4m3"
    entropy: str = "none"

    def __post_init__(self) -> None:
        self.check_entropy()
        self.check_center()
        if self.dtype not in TARGETS:
            known = " or ".join(TARGETS)
            raise InvalidInputError(f"mxfp8: dtype is {self.dtype!r}, wanted {known}")

    @property
    def target(self) -> FloatFormat:
        """Format of the codes."""
        return TARGETS[self.dtype]
