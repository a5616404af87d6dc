"""nvfp4: E2M1 codes, an E4M3 scale for 16 of them, an fp32 scale for the block."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from kvcodec import exact
from kvcodec.bits import FORMATS, U8, UInt, from_bits, to_bits
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.centred import Centred
from kvcodec.codecs._microscaling import E2M1, narrow, pack, packed_shape, unpack, why_unsupported
from kvcodec.errors import CorruptDataError, InvalidInputError
from kvcodec.registry import register
from kvcodec.row import Section, read_rows, write_row

GROUP = 16
E4M3 = FORMATS[torch.float8_e4m3fn]
LARGEST = 6.0 * 448.0  # largest code times largest group scale
MIN_GLOBAL = 2.0**-100  # keeps every product of scales normal
MAX_GLOBAL = 2.0**117  # over every measured one; a product of scales stays finite
ONE = 0x38  # E4M3 code of 1
LARGEST_SCALE = 0x7E  # E4M3 code of 448: the next ones are NaN and negative


@register
@dataclass(frozen=True, slots=True)
class Nvfp4(Centred):
    """Round to 4-bit floats under two levels of scales; true divisions throughout.

    global = max(amax / 2688, 2^-100), 1 for an all-zero block, amax over finite valid values;
    scale = e4m3(clamp(group amax / (6 * global), 2^-9, 448)), 1 for an all-zero group;
    code = e2m1(x / (scale * global)), ties to even, saturating; x ~ code * (scale * global).
    NaN becomes +6, infinity 6 with its sign; the sign of zeros, and of what rounds to zero, stays.

    Args:
        four_over_six: also try group amax / (4 * global) as scale, where the largest value gets
            code 4, and keep it where the squared error is lower. Rows look the same.
        given: a global scale (multiplied on decoding) to use instead of measured ones; it stands in
            the codec's config and not in the rows.
        entropy: "rans" entropy-codes codes and scales, see kvcodec.quantizer.
        center, tables: "profile" takes a profile's means off first, see kvcodec.centred.

    Error: a quarter of the value at most in the range of normal codes, see the format page. Cost:
    4.5 bits per element and 32 for the block. Format: formats/nvfp4.md.
    """

    name = "nvfp4"
    lossless = False
    parts_split_heads = True
    stream_ordered = True
    source = (
        "NVFP4 (true division, as in TensorRT Model Optimizer); four_over_six: arXiv:2512.02010"
    )
    examples = (
        "nvfp4",
        "nvfp4:four_over_six=true",
        "nvfp4:given=0.003,entropy=rans",
        "nvfp4:center=profile,entropy=rans",
    )
    later = ("entropy", "center", "tables")

    four_over_six: bool = False
    given: float | None = None
    entropy: str = "none"

    def __post_init__(self) -> None:
        self.check_entropy()
        self.check_center()
        given = self.given
        if given is not None and not (math.isfinite(given) and MIN_GLOBAL <= given <= 2.0**100):
            raise InvalidInputError(
                f"nvfp4: given scale {given} is not in [2^-100, 2^100]; it multiplies on decoding "
                "(amax / 2688), an encode scale is its inverse"
            )

    def supports(self, spec: BlockSpec) -> str | None:
        """bf16, fp16 and fp32 in whole groups."""
        return why_unsupported(spec, GROUP) or self.misfit(spec)

    def parts(self, spec: BlockSpec) -> tuple[Section, ...]:
        """Codes, a scale byte per group, and the global scale if it was measured."""
        groups = *spec.shape[:2], spec.head_dim // GROUP
        codes = Section(
            "codes", "u1", packed_shape(spec, E2M1), head_axis=1, coding="e2m1", tokens=1
        )
        scales = Section("scales", "u1", groups, head_axis=1, coding="bytes", tokens=1)
        if self.given is not None:
            return codes, scales
        return codes, scales, Section("global", "<f4", (1,))

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
            global_scale = self.given_scale() if self.given is not None else measure(x)
            groups = x.reshape(*spec.shape[:2], -1, GROUP)
            scales, codes = code_groups(groups, global_scale, 6)
            if self.four_over_six:
                others = code_groups(groups, global_scale, 4)
                kept = squared_error(groups, scales, codes, global_scale)
                better = squared_error(groups, *others, global_scale) < kept
                scales = np.where(better, others[0], scales)
                codes = np.where(better[..., None], others[1], codes)
            scales[valid:] = 0
            packed = pack(codes.reshape(spec.shape), E2M1)
            parts: dict[str, UInt] = {"codes": packed, "scales": scales, "global": global_scale}
            row = out.payload.numpy()[i]
            out.nbytes[i] = write_row(row, sections, 0, valid, parts)

    def dequantize(
        self, encoded: EncodedBlocks, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Multiply the scales, then the code, then round to the element type, saturating."""
        spec = encoded.spec
        bits = np.zeros((len(encoded), *spec.shape), f"u{spec.dtype.itemsize}")
        for i, row in enumerate(read_rows(encoded)):
            scales = row.parts["scales"]
            if (scales[: row.num_valid] > LARGEST_SCALE).any():
                raise CorruptDataError(f"nvfp4: row {i}: a scale is NaN or negative")
            global_scale = (
                row.parts["global"] if self.given is None else np.array([self.given], np.float32)
            )
            if not MIN_GLOBAL <= global_scale[0] <= MAX_GLOBAL:
                raise CorruptDataError(
                    f"nvfp4: row {i}: global scale {global_scale[0]} is not in [2^-100, 2^117]"
                )
            step = exact.mul(exact.widen(scales, E4M3), global_scale)[..., None]
            codes = unpack(row.parts["codes"], E2M1).reshape(*scales.shape, GROUP)
            products = exact.mul(exact.widen(codes, E2M1), step)
            bits[i] = exact.narrow(products, spec.format).reshape(spec.shape)
            bits[i, row.num_valid :] = 0
        return from_bits(bits, spec.dtype)

    def given_scale(self) -> exact.F32:
        """The supplied global scale, [1]."""
        return np.array([self.given], np.float32)


def measure(x: exact.F32) -> exact.F32:
    """Global scale [1] of a block of fp32 values."""
    amax = exact.finite_amax(x, (0, 1, 2)).reshape(1)
    scale = np.maximum(exact.div(amax, np.float32(LARGEST)), np.float32(MIN_GLOBAL))
    return np.where(amax == 0, np.float32(1), scale)


def code_groups(groups: exact.F32, global_scale: exact.F32, code: int) -> tuple[U8, U8]:
    """Scales [...] that give the groups' largest values this code, and the codes [..., 16]."""
    amax = exact.finite_amax(groups, (3,))[..., 0]
    ratio = exact.div(amax, exact.mul(np.array([code], np.float32), global_scale))
    clamped = np.minimum(np.maximum(ratio, np.float32(2.0**-9)), np.float32(448))
    scales = np.where(amax == 0, np.uint8(ONE), exact.narrow(clamped, E4M3))
    step = exact.mul(exact.widen(scales, E4M3), global_scale)[..., None]
    return scales, narrow(exact.div(groups, step), E2M1)


def squared_error(groups: exact.F32, scales: U8, codes: U8, global_scale: exact.F32) -> exact.F32:
    """Squared error of groups in units of the global scale, infinities and NaN left out.

    Sum of (|x| / global - |code| * scale)^2, each operation rounded to fp32; of n terms the first
    half is added to the second until one is left.
    """
    size = np.abs(groups)
    back = exact.mul(exact.widen(codes & 7, E2M1), exact.widen(scales, E4M3)[..., None])
    with np.errstate(all="ignore"):
        error = exact.div(size, global_scale) - back
        terms = np.where(size.view(np.uint32) < 0x7F800000, exact.mul(error, error), np.float32(0))
        while terms.shape[-1] > 1:
            half = terms.shape[-1] // 2
            terms = terms[..., :half] + terms[..., half:]
    return terms[..., 0]
