"""What nvfp4, mxfp4 and mxfp8 share: E2M1 codes, groups along head_dim, and OCP MX itself."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from kvcodec import exact
from kvcodec.bits import U8, FloatFormat, UInt, from_bits, pack_plane, to_bits, unpack_plane
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.centred import Centred
from kvcodec.errors import CorruptDataError
from kvcodec.row import Section, read_rows, write_row

SOURCES = (torch.bfloat16, torch.float16, torch.float32)
E2M1 = FloatFormat("e2m1", torch.uint8, 2, 1)  # a code in a byte: 0 .5 1 1.5 2 3 4 6, and a sign
MX_GROUP = 32


def narrow(x: exact.F32, fmt: FloatFormat) -> UInt:
    """`exact.narrow`; a NaN that becomes an E2M1 code is +6, as in PTX, whatever its sign."""
    codes = exact.narrow(x, fmt)
    return np.where(exact.is_nan(x), np.uint8(7), codes) if fmt is E2M1 else codes


def pack(codes: U8, fmt: FloatFormat) -> U8:
    """Codes as they lie in a row: two E2M1 to a byte, element 2i in the low half."""
    return pack_plane(codes, 4) if fmt is E2M1 else codes


def unpack(packed: U8, fmt: FloatFormat) -> U8:
    """Inverse of `pack`."""
    return unpack_plane(packed, 4) if fmt is E2M1 else packed


def packed_shape(spec: BlockSpec, fmt: FloatFormat) -> tuple[int, int, int]:
    """Shape of a block's packed codes."""
    return *spec.shape[:2], spec.head_dim // (2 if fmt is E2M1 else 1)


def why_unsupported(spec: BlockSpec, group: int) -> str | None:
    """None, or why a block has no groups of this size."""
    if spec.dtype not in SOURCES:
        return f"{spec.format.name} is not one of bf16, fp16, fp32; choose split to keep it"
    if spec.head_dim % group:
        return (
            f"head_dim {spec.head_dim} is not a multiple of the group of {group}; pad or choose fp8"
        )
    return None


@dataclass(frozen=True, slots=True)
class Mx(Centred):
    """OCP Microscaling: groups of 32 along head_dim under a power of two.

    With E the exponent field of the fp32 of a group's largest finite magnitude (0 for subnormals
    and for zero), and emax the exponent of the code format's largest value, the scale is
    2^(max(E - emax, 0) - 127); code = round_half_even(x / scale), saturating; x ~ code * scale,
    exactly. Subclasses name the format of the codes.
    """

    lossless = False
    parts_split_heads = True
    stream_ordered = True
    later = ("entropy", "center", "tables")
    source = "OCP Microscaling Formats (MX) 1.0"

    @property
    @abstractmethod
    def target(self) -> FloatFormat:
        """Format of the codes."""

    @property
    def emax(self) -> int:
        """Exponent of the largest code."""
        codes = exact.codes_of(self.target)
        return (codes.max >> self.target.mantissa_bits) - codes.bias

    @property
    def idempotent(self) -> bool:
        """Unless a mean is added and taken off: each rounds."""
        return not self.centred

    def supports(self, spec: BlockSpec) -> str | None:
        """bf16, fp16 and fp32 in whole groups."""
        return why_unsupported(spec, MX_GROUP) or self.misfit(spec)

    def parts(self, spec: BlockSpec) -> tuple[Section, ...]:
        """Codes, then a scale byte per group."""
        groups = *spec.shape[:2], spec.head_dim // MX_GROUP
        return (
            Section(
                "codes",
                "u1",
                packed_shape(spec, self.target),
                head_axis=1,
                coding=self.target.name,
                tokens=1,
            ),
            Section("scales", "u1", groups, head_axis=1, coding="bytes", tokens=1),
        )

    def quantize(
        self,
        blocks: torch.Tensor,
        num_valid: torch.Tensor,
        out: EncodedBlocks,
        positions: torch.Tensor | None = None,
    ) -> None:
        """One block at a time, as the docstring of the class says."""
        spec = out.spec
        sections = self.parts(spec)
        for i, valid in enumerate(num_valid.tolist()):
            x = exact.widen(to_bits(blocks[i]), spec.format)
            x[valid:] = 0
            groups = x.reshape(*spec.shape[:2], -1, MX_GROUP)
            amax = exact.finite_amax(groups, (3,))[..., 0]
            exponents = (amax.view(np.uint32) >> 23).astype(np.int64)
            scales = np.maximum(exponents - self.emax, 0).astype(np.uint8)
            scales[valid:] = 0
            # times 2^(127 - scale): exact, but for quotients so small that their code is zero
            inverse = power_of_two(254 - scales.astype(np.int64))[..., None]
            codes = narrow(exact.mul(groups, inverse), self.target).reshape(spec.shape)
            parts = {"codes": pack(codes, self.target), "scales": scales}
            row = out.payload.numpy()[i]
            out.nbytes[i] = write_row(row, sections, 0, valid, parts)

    def dequantize(
        self, encoded: EncodedBlocks, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Multiply, then round to the element type, saturating; rows of `encode` lose nothing."""
        spec = encoded.spec
        bits = np.zeros((len(encoded), *spec.shape), f"u{spec.dtype.itemsize}")
        for i, row in enumerate(read_rows(encoded)):
            scales = row.parts["scales"]
            if (scales[: row.num_valid] == 0xFF).any():
                raise CorruptDataError(f"{self.name}: row {i}: scale 0xFF is not a number")
            codes = unpack(row.parts["codes"], self.target).reshape(*scales.shape, MX_GROUP)
            values = exact.widen(codes, self.target)
            products = exact.mul(values, power_of_two(scales.astype(np.int64))[..., None])
            bits[i] = exact.narrow(products, spec.format).reshape(spec.shape)
            bits[i, row.num_valid :] = 0
        return from_bits(bits, spec.dtype)


def power_of_two(field: UInt) -> exact.F32:
    """2^(field - 127) for fields 0 to 254; 2^-127 is subnormal."""
    return np.where(field == 0, 1 << 22, field << 23).astype(np.uint32).view(np.float32)
