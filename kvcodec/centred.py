"""Quantizers that take a profile's mean key off first (`center=profile`). formats/center.md."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch

from kvcodec import exact
from kvcodec.bits import FORMATS, FloatFormat, UInt, to_bits
from kvcodec.block import EncodedBlocks
from kvcodec.calibrated import Calibrated
from kvcodec.errors import InvalidInputError
from kvcodec.quantizer import Quantizer
from kvcodec.row import read_rows
from kvcodec.tables import Tables

CENTERS = ("none", "profile")
MEAN = "mean"  # the table of a plane that holds a bf16 value per channel
C = TypeVar("C", bound="Centred")


@dataclass(frozen=True, slots=True)
class Centred(Calibrated, Quantizer):
    """A quantizer of floats whose channels may be centred by a profile.

    Keys have channels that lie far from zero for every token; attention does not see a vector added
    to all keys of a head, but a quantizer spends its codes on it. Rows look the same: they hold
    elements less the mean. A subclass names `center` and `tables` in `later`, calls `check_center`
    in `__post_init__`, and lets `supports` end in `misfit`. Its kernels see codecs that do not
    centre: `registry.load_kernel` puts the shift around them.

    center: "none", or "profile": the mean of each channel that the bound profile holds is taken off
        before elements are quantized and added to what is decoded.
    """

    center: str = field(default="none", kw_only=True)

    def check_center(self) -> None:
        """Raise InvalidInputError unless `center` is known and goes with `tables`."""
        if self.center not in CENTERS:
            known = " or ".join(CENTERS)
            raise InvalidInputError(f"{self.name}: center is {self.center!r}, wanted {known}")
        Calibrated.__post_init__(self)

    @property
    def centred(self) -> bool:
        """Whether a mean is taken off."""
        return self.center != "none"

    @property
    def uncentred(self: C) -> C:
        """The same quantizer, which codes elements as they are."""
        without: dict[str, Any] = {"center": "none", "tables": "", "bound": None}
        return replace(self, **without) if self.centred else self

    @property
    def head_splittable(self) -> bool:
        """A cut would need tables of its own heads."""
        return self.parts_split_heads and not self.stacked and not self.centred

    def table_names(self) -> tuple[str, ...]:
        """The means."""
        return (MEAN,) if self.centred else ()

    def encode(
        self,
        blocks: torch.Tensor,
        num_valid: torch.Tensor,
        out: EncodedBlocks,
        positions: torch.Tensor | None = None,
    ) -> None:
        """Take the means off, if asked for; then as any quantizer."""
        if not self.centred:
            Quantizer.encode(self, blocks, num_valid, out, positions)
            return
        inner, shifted = self.uncentred, blocks.clone()
        bits = to_bits(shifted)
        bits[:] = shift(bits, -mean_of(self.held()), out.spec.format)
        inner.encode(shifted, num_valid, replace(out, codec=inner), positions)

    def decode(self, encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Inverse of encode; slots past a row's num_valid stay zeros."""
        if not self.centred:
            return Quantizer.decode(self, encoded, positions)
        inner = self.uncentred
        blocks = inner.decode(replace(encoded, codec=inner), positions)
        mean = mean_of(self.held())
        for bits, row in zip(to_bits(blocks), read_rows(encoded), strict=True):
            used = bits[: row.num_valid]
            used[:] = shift(used, mean, encoded.spec.format)
        return blocks


def mean_of(tables: Tables) -> exact.F32:
    """Means of a plane's channels, [num_kv_heads, head_dim]."""
    return exact.widen(tables.arrays[MEAN], FORMATS[torch.bfloat16])


def shift(bits: UInt, by: exact.F32, fmt: FloatFormat) -> UInt:
    """Patterns of x + by, rounded once to the element type, saturating.

    NaN and infinity keep their bits.
    """
    magnitude = bits & bits.dtype.type((1 << (fmt.exponent_bits + fmt.mantissa_bits)) - 1)
    finite = magnitude < ((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits
    moved = exact.narrow(exact.add(exact.widen(bits, fmt), by), fmt)
    return np.where(finite, moved, bits)
