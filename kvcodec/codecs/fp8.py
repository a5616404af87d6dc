"""fp8: E4M3 or E5M2 codes under scales, given or measured in the block."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from kvcodec import exact
from kvcodec.bits import FORMATS, FloatFormat, UInt, from_bits, to_bits
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.centred import Centred
from kvcodec.errors import InvalidInputError
from kvcodec.registry import register
from kvcodec.row import Section, read_rows, write_row

TARGETS = {"e4m3": FORMATS[torch.float8_e4m3fn], "e5m2": FORMATS[torch.float8_e5m2]}
# axes of [block_size, num_kv_heads, head_dim] along which all elements share a scale
SHARED_AXES = {
    "token_head": (2,),
    "head": (0, 2),
    "block": (0, 1, 2),
    "token": (1, 2),
    "channel": (0,),
    "group": (),  # the last axis in groups
}
PER_TOKEN = ("token_head", "token", "group")
SCALE_DTYPES = ("fp32", "ue8m0")
MIN_SCALE = 2.0**-100  # keeps x / scale away from overflow and the scale itself normal
MAX_SCALE = 2.0**100
MIN_POWER = 1e-4  # lower bound of UE8M0 scales before they are rounded up, as engines have it
SOURCES = (torch.bfloat16, torch.float16, torch.float32)


@register
@dataclass(frozen=True, slots=True)
class Fp8(Centred):
    """Round to 8-bit floats under scales shared by a block, a head, a token, a channel or less.

    scale = max(amax / max_code, 2^-100), 1 for an all-zero group; amax over finite valid values;
    code = round_half_even(x / scale), saturating; x ~ code * scale. NaN stays NaN. Infinity becomes
    the largest code. A UE8M0 scale is the power of two at or above max(amax / max_code, 1e-4).

    Args:
        dtype: "e4m3" (largest 448) or "e5m2" (largest 57344).
        scale: what shares a scale: "token_head" (a head of a token), "token", "head" (of all
            tokens), "block", "channel" (a dimension of a head, all tokens), or "group" (`group`
            neighbouring dimensions of a head of a token).
        given: fp32 scales to use instead of measured ones, one for "block", one per head for
            "head"; they stand in the codec's config and not in the rows.
        group: 64 or 128, for scale=group.
        scale_dtype: "fp32" or "ue8m0".
        entropy: "rans" entropy-codes exponents of codes and scales, see kvcodec.quantizer.
        center, tables: "profile" takes a profile's means off first, see kvcodec.centred.

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
        "fp8:scale=group,group=64,scale_dtype=ue8m0",
        "fp8:scale=channel",
        "fp8:scale=token,scale_dtype=ue8m0",
        "fp8:center=profile",
    )
    later = ("group", "scale_dtype", "entropy", "center", "tables")

    dtype: str = "e4m3"
    scale: str = "token_head"
    given: tuple[float, ...] = ()
    group: int = 128
    scale_dtype: str = "fp32"
    entropy: str = "none"

    def __post_init__(self) -> None:
        self.check_entropy()
        self.check_center()
        if self.dtype not in TARGETS:
            raise InvalidInputError(f"fp8: dtype is {self.dtype!r}, wanted {' or '.join(TARGETS)}")
        if self.scale not in SHARED_AXES:
            known = ", ".join(SHARED_AXES)
            raise InvalidInputError(f"fp8: scale is {self.scale!r}, wanted one of {known}")
        if self.scale_dtype not in SCALE_DTYPES:
            known = " or ".join(SCALE_DTYPES)
            raise InvalidInputError(f"fp8: scale_dtype is {self.scale_dtype!r}, wanted {known}")
        if self.group not in (64, 128):
            raise InvalidInputError(f"fp8: group is {self.group}, wanted 64 or 128")
        if self.group != 128 and self.scale != "group":
            raise InvalidInputError(f"fp8: group={self.group} needs scale=group")
        if self.given and self.scale not in ("block", "head"):
            raise InvalidInputError("fp8: given scales need scale=block or scale=head")
        if self.given and self.scale_dtype != "fp32":
            raise InvalidInputError("fp8: given scales are fp32, scale_dtype must be too")
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
        """bf16, fp16 and fp32; given scales must fit the heads, groups the head_dim."""
        if spec.dtype not in SOURCES:
            return f"{spec.format.name} is not one of bf16, fp16, fp32; choose split to keep it"
        if self.scale == "head" and self.given and len(self.given) != spec.num_kv_heads:
            return f"{len(self.given)} given scales for {spec.num_kv_heads} heads"
        if self.scale == "group" and spec.head_dim % self.group:
            return f"head_dim {spec.head_dim} is not a multiple of group={self.group}"
        return self.misfit(spec)

    def head_params(self) -> tuple[str, ...]:
        """Given scales of heads."""
        return ("given",) if self.given and self.scale == "head" else ()

    def group_shape(self, spec: BlockSpec) -> tuple[int, int, int]:
        """Tokens, heads and dimensions that share a scale."""
        shared = SHARED_AXES[self.scale]
        tokens, heads, dims = (n if axis in shared else 1 for axis, n in enumerate(spec.shape))
        return tokens, heads, self.group if self.scale == "group" else dims

    def scale_shape(self, spec: BlockSpec) -> tuple[int, int, int]:
        """Groups of a block along tokens, heads and dimensions."""
        tokens, heads, dims = self.group_shape(spec)
        return spec.block_size // tokens, spec.num_kv_heads // heads, spec.head_dim // dims

    def grouped(self, spec: BlockSpec) -> tuple[int, ...]:
        """Shape of a block with every axis cut into (groups, size of a group)."""
        sizes = zip(self.scale_shape(spec), self.group_shape(spec), strict=True)
        return tuple(n for pair in sizes for n in pair)

    def parts(self, spec: BlockSpec) -> tuple[Section, ...]:
        """Codes, then the measured scales."""
        codes = Section("codes", "u1", spec.shape, head_axis=1, coding=self.target.name, tokens=1)
        if self.given:
            return (codes,)
        power = self.scale_dtype == "ue8m0"
        head_axis = None if self.scale in ("block", "token") else 1
        tokens = 1 if self.scale in PER_TOKEN else 0
        coding = "bytes" if power else "fp32"
        return codes, Section(
            "scales", "u1" if power else "<f4", self.scale_shape(spec), head_axis=head_axis,
            coding="raw" if self.scale in ("head", "block") else coding, tokens=tokens,
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
        parts = self.parts(spec)
        for i, valid in enumerate(num_valid.tolist()):
            x = exact.widen(to_bits(blocks[i]), spec.format)
            x[valid:] = 0
            stored = self.measure(x, spec)
            scales = self.scales_of(stored, spec)
            codes = exact.narrow(exact.div(x.reshape(self.grouped(spec)), scales), self.target)
            codes = codes.reshape(spec.shape)
            codes[valid:] = 0
            if self.scale in PER_TOKEN:
                stored[valid:] = 0
            data = {"codes": codes, "scales": stored}
            out.nbytes[i] = write_row(payload[i], parts, 0, valid, data)

    def dequantize(
        self, encoded: EncodedBlocks, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Multiply, then round once to the element type, saturating."""
        spec = encoded.spec
        bits = np.zeros((len(encoded), *spec.shape), f"u{spec.dtype.itemsize}")
        for block, row in zip(bits, read_rows(encoded), strict=True):
            values = exact.widen(row.parts["codes"], self.target).reshape(self.grouped(spec))
            scales = self.scales_of(row.parts.get("scales", np.zeros(0, np.uint8)), spec)
            values = exact.scale_by(values, scales)
            block[:] = exact.narrow(values, spec.format).reshape(spec.shape)
            block[row.num_valid :] = 0
        return from_bits(bits, spec.dtype)

    def measure(self, x: exact.F32, spec: BlockSpec) -> UInt:
        """Scales of one block of fp32 values as they are stored, [*scale_shape]."""
        amax = exact.finite_amax(x.reshape(self.grouped(spec)), (1, 3, 5))
        amax = amax.reshape(self.scale_shape(spec))
        largest = exact.widen(np.array(exact.codes_of(self.target).max, np.uint8), self.target)
        scales = exact.div(amax, largest)
        if self.scale_dtype == "ue8m0":
            bits = np.maximum(scales, np.float32(MIN_POWER)).view(np.uint32)
            return (bits + np.uint32(0x7FFFFF) >> 23).astype(np.uint8)
        return np.where(amax == 0, np.float32(1), np.maximum(scales, np.float32(MIN_SCALE)))

    def scales_of(self, stored: UInt, spec: BlockSpec) -> exact.F32:
        """fp32 scales, given or as stored in a row, in a shape that goes with `grouped`."""
        scales: exact.F32
        if self.given:
            scales = np.array(self.given, np.float32)
        elif self.scale_dtype == "ue8m0":
            bits = stored.astype(np.uint32) << 23
            bits = np.where(stored == 0, np.uint32(0x400000), bits)  # 2^-127
            scales = np.where(stored == 255, np.uint32(0x7FC00000), bits).view(np.float32)
        else:
            scales = stored
        tokens, heads, groups = self.scale_shape(spec)
        return scales.reshape(tokens, 1, heads, 1, groups, 1)
