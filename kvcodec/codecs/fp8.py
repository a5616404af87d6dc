"""fp8: E4M3 or E5M2 codes with an fp32 scale, given or measured in the block."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from kvcodec import exact
from kvcodec.bits import FORMATS, FloatFormat, from_bits, to_bits
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.errors import InvalidInputError
from kvcodec.quantizer import Quantizer
from kvcodec.registry import register
from kvcodec.row import Section, read_rows, write_row

TARGETS = {"e4m3": FORMATS[torch.float8_e4m3fn], "e5m2": FORMATS[torch.float8_e5m2]}
# axes of [block_size, num_kv_heads, head_dim] that share one scale
SHARED_AXES = {"token_head": (2,), "head": (0, 2), "block": (0, 1, 2)}
MIN_SCALE = 2.0**-100  # keeps x / scale away from overflow and the scale itself normal
MAX_SCALE = 2.0**100
SOURCES = (torch.bfloat16, torch.float16, torch.float32)


@register
@dataclass(frozen=True, slots=True)
class Fp8(Quantizer):
    """Round to 8-bit floats under one scale per block, head, or token and head.

    scale = max(amax / max_code, 2^-100), 1 for an all-zero group; amax over finite valid values;
    code = round_half_even(x / scale), saturating; x ~ code * scale. NaN stays NaN. Infinity becomes
    the largest code.

    Args:
        dtype: "e4m3" (largest 448) or "e5m2" (largest 57344).
        scale: "token_head", "head" or "block": what shares a scale.
        given: fp32 scales to use instead of measured ones, one for "block", one per head for
            "head"; they stand in the codec's config and not in the rows.
        entropy: "rans" entropy-codes exponents of codes and scales, see kvcodec.quantizer.

    Error: at most half an ulp of the code, 2^-4 relative for e4m3 and 2^-3 for e5m2, above the
    smallest normal code. Cost: 8 bits per element and 32 per scale. Format: formats/fp8.md.
    """

    name = "fp8"
    lossless = False
    parts_split_heads = True
    stream_ordered = True
    source = "OCP 8-bit floating point (OFP8)"
    examples = (
        "fp8",
        "fp8:dtype=e5m2",
        "fp8:scale=head",
        "fp8:scale=block",
        "fp8:scale=block,given=1.0",
        "fp8:entropy=rans",
    )
    later = ("entropy",)

    dtype: str = "e4m3"
    scale: str = "token_head"
    given: tuple[float, ...] = ()
    entropy: str = "none"

    def __post_init__(self) -> None:
        self.check_entropy()
        if self.dtype not in TARGETS:
            raise InvalidInputError(f"fp8: dtype is {self.dtype!r}, wanted {' or '.join(TARGETS)}")
        if self.scale not in SHARED_AXES:
            known = ", ".join(SHARED_AXES)
            raise InvalidInputError(f"fp8: scale is {self.scale!r}, wanted one of {known}")
        if self.given and self.scale == "token_head":
            raise InvalidInputError("fp8: given scales need scale=block or scale=head")
        if self.given and self.scale == "block" and len(self.given) != 1:
            raise InvalidInputError(f"fp8: scale=block takes 1 given scale, got {len(self.given)}")
        for value in self.given:
            if not (math.isfinite(value) and MIN_SCALE <= value <= MAX_SCALE):
                raise InvalidInputError(
                    f"fp8: given scale {value} is not in [2^-100, 2^100]; scales are positive"
                )

    @property
    def target(self) -> FloatFormat:
        """Format of the codes."""
        return TARGETS[self.dtype]

    def supports(self, spec: BlockSpec) -> str | None:
        """bf16, fp16 and fp32; given scales must fit the heads."""
        if spec.dtype not in SOURCES:
            return f"{spec.format.name} is not one of bf16, fp16, fp32; choose split to keep it"
        if self.scale == "head" and self.given and len(self.given) != spec.num_kv_heads:
            return f"{len(self.given)} given scales for {spec.num_kv_heads} heads"
        return None

    def head_params(self) -> tuple[str, ...]:
        """Given scales of heads."""
        return ("given",) if self.given and self.scale == "head" else ()

    def scale_shape(self, spec: BlockSpec) -> tuple[int, int, int]:
        """Scales of a block with the shared axes kept at size 1."""
        shared = SHARED_AXES[self.scale]
        sizes = [1 if axis in shared else size for axis, size in enumerate(spec.shape)]
        return sizes[0], sizes[1], sizes[2]

    def parts(self, spec: BlockSpec) -> tuple[Section, ...]:
        """Codes, then the measured scales."""
        codes = Section("codes", "u1", spec.shape, head_axis=1, coding=self.target.name, tokens=1)
        if self.given:
            return (codes,)
        head_axis = None if self.scale == "block" else 1
        tokens = 1 if self.scale == "token_head" else 0
        return codes, Section(
            "scales", "<f4", self.scale_shape(spec), head_axis=head_axis,
            coding="fp32" if tokens else "raw", tokens=tokens,
        )  # fmt: skip

    def quantize(
        self,
        blocks: torch.Tensor,
        num_valid: torch.Tensor,
        out: EncodedBlocks,
        positions: torch.Tensor | None = None,
    ) -> None:
        """One block at a time, as the docstring of the class says."""
        payload, spec = out.payload.numpy(), out.spec
        sections = self.parts(spec)
        for i, valid in enumerate(num_valid.tolist()):
            x = exact.widen(to_bits(blocks[i]), spec.format)
            x[valid:] = 0
            scales = self.given_scales(spec) if self.given else self.measure(x)
            codes = exact.narrow(exact.div(x, scales), self.target)
            codes[valid:] = 0
            if self.scale == "token_head":
                scales[valid:] = 0
            parts = {"codes": codes, "scales": scales}
            out.nbytes[i] = write_row(payload[i], sections, 0, valid, parts)

    def dequantize(
        self, encoded: EncodedBlocks, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Multiply, then round once to the element type, saturating."""
        spec = encoded.spec
        bits = np.zeros((len(encoded), *spec.shape), f"u{spec.dtype.itemsize}")
        for block, row in zip(bits, read_rows(encoded), strict=True):
            values = exact.widen(row.parts["codes"], self.target)
            scales = self.given_scales(spec) if self.given else row.parts["scales"]
            block[:] = exact.narrow(exact.mul(values, scales), spec.format)
            block[row.num_valid :] = 0
        return from_bits(bits, spec.dtype)

    def measure(self, x: exact.F32) -> exact.F32:
        """Scales of one block of fp32 values, shared axes kept."""
        amax = exact.finite_amax(x, SHARED_AXES[self.scale])
        largest = exact.widen(np.array(exact.codes_of(self.target).max, np.uint8), self.target)
        scales = np.maximum(exact.div(amax, largest), np.float32(MIN_SCALE))
        return np.where(amax == 0, np.float32(1), scales)

    def given_scales(self, spec: BlockSpec) -> exact.F32:
        """The supplied scales in the shape of measured ones."""
        return np.array(self.given, np.float32).reshape(self.scale_shape(spec))
