"""turboquant: a head's vector, rotated, as codes of a Gaussian codebook and one norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvcodec import exact, rotation
from kvcodec.bits import (
    FORMATS,
    U8,
    FloatFormat,
    UInt,
    from_bits,
    pack_plane,
    plane_widths,
    to_bits,
    unpack_plane,
)
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.centred import Centred
from kvcodec.errors import InvalidInputError
from kvcodec.registry import register
from kvcodec.row import Section, read_rows, write_row

# fp32 patterns of the positive levels, and of the thresholds between them (benchmarks/lloyd_max.py)
LEVELS = {
    1: (0x3F4C422A,),
    2: (0x3EE7D2C9, 0x3FC1555D),
    3: (0x3E7AF9F8, 0x3F418990, 0x3FAC0538, 0x4009B97A),
    4: (0x3E0379FD, 0x3EC6AE44, 0x3F28215E, 0x3F713D39,
        0x3FA0CC2F, 0x3FCF1C25, 0x40046AC7, 0x402EE2BF),
}  # fmt: skip
THRESHOLDS = {
    1: (),
    2: (0x3F7B4A0F,),
    3: (0x3F002407, 0x3F866500, 0x3FDFBC16),
    4: (0x3E8435A1, 0x3F05BC40, 0x3F4CAF4C, 0x3F8CB566, 0x3FB7F42A, 0x3FEBF8DA, 0x4019A6C3),
}
NORMS = {"fp16": FORMATS[torch.float16], "fp32": FORMATS[torch.float32]}
SOURCES = (torch.bfloat16, torch.float16, torch.float32)
MAX_HEAD_DIM = 1024


@register
@dataclass(frozen=True, slots=True)
class TurboQuant(Centred):
    """Rotate each head's vector, store its norm, and round its coordinates to a codebook.

    u = x times a power of two; r = |u|; z = H D u * sqrt(head_dim) / r; code = the sign and nearest
    level of each z in the Lloyd-Max codebook of the normal distribution. Infinity and NaN count
    as 0.

    Args:
        bits: 1, 2, 3 or 4, of a code. 3 stand as planes of 2 and 1 bits.
        norm: type of the stored norms, "fp16" (to 65504) or "fp32".
        entropy: "rans" entropy-codes codes and scales, see kvcodec.quantizer.
        center, tables: "profile" takes a profile's means off first, see kvcodec.centred.

    Error: on average .363, .117, .0345, .0095 of a vector's squared norm at 1 to 4 bits, wherever
    the rotation spreads it evenly; no bound per element. Cost: bits per element, and a norm per
    token and head.
    Source: TurboQuant, its MSE variant; the inner-product variant (QJL) has 3.5 times the error at
    equal bits. Format: formats/turboquant.md.
    """

    name = "turboquant"
    lossless = False
    parts_split_heads = True
    stream_ordered = True
    source = "TurboQuant, arXiv:2504.19874"
    examples = (
        "turboquant",
        "turboquant:bits=3,norm=fp32",
        "turboquant:bits=2,entropy=rans",
        "turboquant:center=profile",
    )
    later = ("entropy", "center", "tables")

    bits: int = 4
    norm: str = "fp16"
    entropy: str = "none"

    def __post_init__(self) -> None:
        self.check_entropy()
        self.check_center()
        for name, values in ("bits", [*LEVELS]), ("norm", [*NORMS]):
            if getattr(self, name) not in values:
                known = ", ".join(map(str, values))
                raise InvalidInputError(
                    f"turboquant: {name} is {getattr(self, name)!r}, wanted one of {known}"
                )

    @property
    def norm_format(self) -> FloatFormat:
        """Format of the norms."""
        return NORMS[self.norm]

    def supports(self, spec: BlockSpec) -> str | None:
        """bf16, fp16 and fp32; a head fills whole bytes of each plane."""
        if spec.dtype not in SOURCES:
            return f"{spec.format.name} is not one of bf16, fp16, fp32; choose split to keep it"
        multiple = 8 // min(plane_widths(self.bits))
        if spec.head_dim % multiple:
            return (
                f"head_dim {spec.head_dim} is not a multiple of {multiple}, which bits={self.bits} "
                "needs; choose bits=4 (2) or bits=2 (4)"
            )
        if spec.head_dim > MAX_HEAD_DIM:
            return f"head_dim {spec.head_dim} is over {MAX_HEAD_DIM}; choose int4 or fp8"
        return self.misfit(spec)

    def parts(self, spec: BlockSpec) -> tuple[Section, ...]:
        """One part per plane of code bits, lowest bits first; then the norms."""
        tokens, heads, dim = spec.shape
        planes = [
            Section(
                f"codes{i}",
                "u1",
                (tokens, heads, dim * width // 8),
                head_axis=1,
                coding="nibbles" if width == 4 else "raw",
                tokens=1,
            )
            for i, width in enumerate(plane_widths(self.bits))
        ]
        norms = Section(
            "norms",
            f"<u{self.norm_format.itemsize}",
            (tokens, heads),
            head_axis=1,
            coding=self.norm,
            tokens=1,
        )
        return (*planes, norms)

    def quantize(
        self,
        blocks: torch.Tensor,
        num_valid: torch.Tensor,
        out: EncodedBlocks,
        positions: torch.Tensor | None = None,
    ) -> None:
        """One block at a time, as the docstring of the class says."""
        payload, sections = out.payload.numpy(), self.parts(out.spec)
        for i, valid in enumerate(num_valid.tolist()):
            x = exact.widen(to_bits(blocks[i]), out.spec.format)
            x[valid:] = 0
            parts = self.code(x)
            out.nbytes[i] = write_row(payload[i], sections, 0, valid, parts)

    def dequantize(
        self, encoded: EncodedBlocks, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Levels, the inverse rotation, the norm; then one rounding to the element type."""
        spec = encoded.spec
        bits = np.zeros((len(encoded), *spec.shape), f"u{spec.dtype.itemsize}")
        for block, row in zip(bits, read_rows(encoded), strict=True):
            block[:] = exact.narrow(self.values(row.parts), spec.format)
            block[row.num_valid :] = 0
        return from_bits(bits, spec.dtype)

    def code(self, x: exact.F32) -> dict[str, UInt]:
        """Parts of vectors [..., head_dim]."""
        u, unit = normalize(x)
        radius = exact.sqrt(sum_of_squares(u))
        root = exact.sqrt(np.array(x.shape[-1], np.float32))
        z = exact.mul(rotation.rotate(u), exact.div(root, radius)[..., None])
        codes = (z < 0).astype(np.uint8) << np.uint8(self.bits - 1)
        for threshold in np.array(THRESHOLDS[self.bits], np.uint32).view(np.float32):
            codes += np.abs(z) >= threshold
        parts: dict[str, UInt] = {"norms": exact.narrow(exact.mul(radius, unit), self.norm_format)}
        for i, width in enumerate(plane_widths(self.bits)):
            low = codes >> np.uint8(2 * i) & np.uint8((1 << width) - 1)  # 3 bits: 2, then 1
            parts[f"codes{i}"] = pack_plane(low, width)
        return parts

    def values(self, parts: dict[str, UInt]) -> exact.F32:
        """Vectors [..., head_dim] of parts; a norm that is infinity or NaN, never written, is 0."""
        codes = self.unpack(parts)
        norms = exact.widen(parts["norms"], self.norm_format)
        norms = np.where(np.abs(norms) < np.inf, norms, np.float32(0))
        root = exact.sqrt(np.array(codes.shape[-1], np.float32))
        return exact.mul(rotation.unrotate(self.book()[codes]), exact.div(norms, root)[..., None])

    def unpack(self, parts: dict[str, UInt]) -> U8:
        """Codes [..., head_dim] from the planes."""
        low, *high = (
            unpack_plane(parts[f"codes{i}"], width)
            for i, width in enumerate(plane_widths(self.bits))
        )
        return low | high[0] << np.uint8(2) if high else low

    def book(self) -> exact.F32:
        """Value of every code: the levels, then the same negated."""
        levels = np.array(LEVELS[self.bits], np.uint32).view(np.float32)
        return np.concatenate([levels, -levels])


def normalize(x: exact.F32) -> tuple[exact.F32, exact.F32]:
    """Vectors times a power of two that brings them near 1, and its inverse.

    x: [..., head_dim]. Returns the same shape, and one value for each vector.

    With e the exponent field of the largest finite magnitude, drawn into 1..253, the factor is
    2^(127 - e): its square neither overflows nor vanishes. What is not finite becomes 0.
    """
    x = np.where(np.abs(x) < np.inf, x, np.float32(0))
    largest = exact.finite_amax(x, (-1,)).view(np.uint32)
    exponent = np.clip(largest >> np.uint32(23), 1, 253).astype(np.uint32)
    factor = ((np.uint32(254) - exponent) << np.uint32(23)).view(np.float32)
    return exact.mul(x, factor), (exponent << np.uint32(23)).view(np.float32)[..., 0]


def sum_of_squares(u: exact.F32) -> exact.F32:
    """Sums along the last axis, padded with zeros to a power of two: neighbours, pair by pair."""
    size = 1 << (u.shape[-1] - 1).bit_length()
    terms = np.zeros((*u.shape[:-1], size), np.float32)
    terms[..., : u.shape[-1]] = exact.mul(u, u)
    while terms.shape[-1] > 1:
        terms = exact.add(terms[..., ::2], terms[..., 1::2])
    return terms[..., 0]
