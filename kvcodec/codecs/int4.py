"""int4: asymmetric 4- or 2-bit integers under a scale and a zero point per small group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvcodec import exact
from kvcodec.bits import FORMATS, FloatFormat, UInt, from_bits, pack_plane, to_bits, unpack_plane
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.centred import Centred
from kvcodec.errors import InvalidInputError
from kvcodec.registry import register
from kvcodec.row import Section, read_rows, write_row

WIDTHS = (4, 2)
AXES = {"token": 2, "channel": 0}  # the axis of [block_size, num_kv_heads, head_dim] that is cut
GROUPS = (16, 32, 64, 128)
METAS = {f.name: f for f in map(FORMATS.get, (torch.float16, torch.bfloat16, torch.float32)) if f}
SOURCES = (torch.bfloat16, torch.float16, torch.float32)
ROUNDER = np.float32(2.0**23)  # x + 2^23 is x rounded to an integer, ties to even, for x in [0, 15]


@register
@dataclass(frozen=True, slots=True)
class Int4(Centred):
    """Map each group's range onto integers; min and max of the group come back.

    x ~ code * scale + zero; zero = the smallest finite valid value, rounded down to `meta`;
    scale = (largest - zero) / (2^bits - 1), rounded up to `meta`; code = round_half_even((x - zero)
    / scale), clamped. Infinity becomes the end of the range on its side, NaN the smallest value.

    Args:
        bits: 4 or 2, of a code.
        axis: "token": a group is `group` channels of one token's head, as KIVI treats values;
            "channel": it is `group` tokens of one channel, as KIVI treats keys.
        group: elements that share a scale, 16, 32, 64 or 128. The last group of a head (or, with
            axis=channel, of a block) is shorter where they do not divide it.
        meta: type of scales and zeros, "fp16", "bf16" or "fp32". fp16 holds zeros of bf16 and fp16
            blocks exactly, but nothing beyond 65504.
        entropy: "rans" entropy-codes codes and scales, see kvcodec.quantizer.
        center, tables: "profile" takes a profile's means off first, see kvcodec.centred.

    Error: at most scale / 2 and the roundings that the format page names. Cost: bits per element
    and two `meta` values per group: 5 bits by default. Source: KIVI; differs: zeros round down and
    scales up, so that neither end is cut off. Format: formats/int4.md.
    """

    name = "int4"
    lossless = False
    parts_split_heads = True
    stream_ordered = True
    source = "KIVI, arXiv:2402.02750"
    examples = (
        "int4",
        "int4:bits=2,axis=channel,group=16",
        "int4:group=64,meta=fp32,entropy=rans",
        "int4:center=profile",
    )
    later = ("entropy", "center", "tables")

    bits: int = 4
    axis: str = "token"
    group: int = 32
    meta: str = "fp16"
    entropy: str = "none"

    def __post_init__(self) -> None:
        self.check_entropy()
        self.check_center()
        allowed = {"bits": WIDTHS, "axis": AXES, "group": GROUPS, "meta": METAS}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                known = ", ".join(map(str, values))
                raise InvalidInputError(
                    f"int4: {name} is {getattr(self, name)!r}, wanted one of {known}"
                )

    @property
    def top(self) -> int:
        """Largest code."""
        return (1 << self.bits) - 1

    @property
    def meta_format(self) -> FloatFormat:
        """Format of scales and zeros."""
        return METAS[self.meta]

    def supports(self, spec: BlockSpec) -> str | None:
        """bf16, fp16 and fp32; a head fills whole bytes, and the cut axis a group."""
        if spec.dtype not in SOURCES:
            return f"{spec.format.name} is not one of bf16, fp16, fp32; choose split to keep it"
        per_byte = 8 // self.bits
        if spec.head_dim % per_byte:
            return f"head_dim {spec.head_dim} is not a multiple of {per_byte}; choose fp8"
        if self.axis == "channel" and spec.block_size < self.group:
            return (
                f"block_size {spec.block_size} is smaller than the group of {self.group} tokens; "
                "use larger blocks, a smaller group, or axis=token"
            )
        if self.axis == "token" and spec.head_dim < self.group:
            return (
                f"head_dim {spec.head_dim} is smaller than the group of {self.group} channels; "
                "use a smaller group, or axis=channel"
            )
        return self.misfit(spec)

    def meta_shape(self, spec: BlockSpec) -> tuple[int, int, int]:
        """Scales (and zeros) of a block: the cut axis counts groups."""
        sizes = list(spec.shape)
        sizes[AXES[self.axis]] = -(-sizes[AXES[self.axis]] // self.group)
        return sizes[0], sizes[1], sizes[2]

    def parts(self, spec: BlockSpec) -> tuple[Section, ...]:
        """Codes, scales, zeros."""
        tokens, heads, dim = spec.shape
        dtype, shape = f"<u{self.meta_format.itemsize}", self.meta_shape(spec)
        per_entry = self.group if self.axis == "channel" else 1
        return (
            Section(
                "codes",
                "u1",
                (tokens, heads, dim * self.bits // 8),
                head_axis=1,
                coding="nibbles" if self.bits == 4 else "raw",
                tokens=1,
            ),
            Section("scales", dtype, shape, head_axis=1, coding=self.meta, tokens=per_entry),
            Section("zeros", dtype, shape, head_axis=1, coding=self.meta, tokens=per_entry),
        )

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
            x[valid:] = np.nan
            codes, scales, zeros = self.code(x)
            parts = {"codes": pack_plane(codes, self.bits), "scales": scales, "zeros": zeros}
            out.nbytes[i] = write_row(payload[i], sections, 0, valid, parts)

    def dequantize(
        self, encoded: EncodedBlocks, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Multiply, add, then round once to the element type, saturating."""
        spec = encoded.spec
        bits = np.zeros((len(encoded), *spec.shape), f"u{spec.dtype.itemsize}")
        for block, row in zip(bits, read_rows(encoded), strict=True):
            codes = widen_codes(unpack_plane(row.parts["codes"], self.bits))
            scales = self.spread(row.parts["scales"], spec)
            zeros = self.spread(row.parts["zeros"], spec)
            values = exact.add(exact.mul(codes, scales), zeros)
            block[:] = exact.narrow(values, spec.format)
            block[row.num_valid :] = 0
        return from_bits(bits, spec.dtype)

    def code(self, x: exact.F32) -> tuple[UInt, UInt, UInt]:
        """Codes, scales and zeros of a block [T, H, D]; NaN stands where there is nothing."""
        axis = AXES[self.axis]
        length, rest = x.shape[axis], -x.shape[axis] % self.group
        x = np.moveaxis(x, axis, -1)
        x = np.pad(x, [(0, 0), (0, 0), (0, rest)], constant_values=np.nan)
        x = x.reshape(*x.shape[:2], -1, self.group)
        finite = np.abs(x) < np.inf
        low = np.where(finite, x, np.float32(np.inf)).min(-1, keepdims=True)
        high = np.where(finite, x, np.float32(-np.inf)).max(-1, keepdims=True)
        empty = low > high
        low = np.where(empty, 0, low) + np.float32(0)  # -0 + 0 is 0
        high = np.where(empty, 0, high) + np.float32(0)
        zeros = round_down(low, self.meta_format)
        zero = exact.widen(zeros, self.meta_format)
        span = np.maximum(exact.sub(high, zero), np.float32(0))  # below 0 only past meta's range
        scales = round_up(exact.div(span, np.float32(self.top)), self.meta_format)
        q = exact.div(exact.sub(x, zero), exact.widen(scales, self.meta_format))
        q = np.where(q > 0, np.minimum(q, np.float32(self.top)), np.float32(0))  # NaN: 0
        codes = (q + ROUNDER).view(np.uint32) & np.uint32(self.top)
        codes = codes.reshape(*codes.shape[:2], -1)[..., :length]
        return (
            np.moveaxis(codes, -1, axis),
            np.moveaxis(scales[..., 0], -1, axis),
            np.moveaxis(zeros[..., 0], -1, axis),
        )

    def spread(self, meta: UInt, spec: BlockSpec) -> exact.F32:
        """Values of scales or zeros for every element; infinity and NaN, never written, are 0."""
        axis = AXES[self.axis]
        values = exact.widen(meta, self.meta_format)
        values = np.where(np.abs(values) < np.inf, values, np.float32(0))
        return np.take(values, np.arange(spec.shape[axis]) // self.group, axis)


def widen_codes(codes: UInt) -> exact.F32:
    """Codes as fp32: 2^23 + code, less 2^23, both exact."""
    return (codes.astype(np.uint32) | ROUNDER.view(np.uint32)).view(np.float32) - ROUNDER


def round_up(x: exact.F32, fmt: FloatFormat) -> UInt:
    """Pattern of the smallest value of `fmt` that is not below x >= 0; saturates."""
    nearest = exact.narrow(x, fmt)
    below: npt.NDArray[np.bool_] = exact.widen(nearest, fmt) < x
    return nearest + (below & (nearest < exact.codes_of(fmt).max))


def round_down(x: exact.F32, fmt: FloatFormat) -> UInt:
    """Pattern of the largest value of `fmt` that is not above x; saturates."""
    nearest = exact.narrow(x, fmt)
    above: npt.NDArray[np.bool_] = exact.widen(nearest, fmt) > x
    sign = nearest.dtype.type(1 << (fmt.exponent_bits + fmt.mantissa_bits))
    negative = nearest >= sign  # magnitudes of negative values grow downward
    grow = above & negative & (nearest < sign + exact.codes_of(fmt).max)
    return nearest + grow - (above & ~negative)
