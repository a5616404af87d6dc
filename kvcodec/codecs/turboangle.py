"""turboangle: rotated vectors as pairs of a uniformly quantized angle and a norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvcodec import angles, exact, fixed_log, radix
from kvcodec.bits import FORMATS, UInt, from_bits, to_bits
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.centred import Centred
from kvcodec.errors import InvalidInputError
from kvcodec.registry import register
from kvcodec.rotation import rotate, unrotate
from kvcodec.row import Section, read_rows, write_row

SOURCES = (torch.bfloat16, torch.float16, torch.float32)
STORED = {"fp32": FORMATS[torch.float32], "fp16": FORMATS[torch.float16]}
CODED = ("linear", "log")  # norms as codes between their minimum and maximum
MAX_DIRECTIONS = 1024
TINY = 2.0**-60  # a rotated element below it is 0: squares and products never underflow
LOG_RANGE = 2.0**-10  # log levels do not go below so much of the largest norm


@register
@dataclass(frozen=True, slots=True)
class TurboAngle(Centred):
    """Rotate a head vector, y = H D x, and code its pairs (y_2i, y_2i+1) by angle and norm.

    k = round(n atan2(y_2i+1, y_2i) / 2 pi) mod n; r = |(y_2i, y_2i+1)|, coded between the smallest
    and largest norm of the vector: q = round_half_even((r - min) / (max - min) * (2^b - 1)).
    (y_2i, y_2i+1) ~ r (cos 2 pi k/n, sin 2 pi k/n). Infinity becomes the largest finite element,
    NaN becomes 0.

    Args:
        n: directions, 2 to 1024; the paper uses 128 for keys and 64 for values.
        norm_bits: b, 4 to 8.
        norm: "linear", or "log" (q codes log2 r), or "fp16" or "fp32": norms uncoded.
        minmax: "fp32" or "fp16", how min and max are stored.
        entropy: "rans" entropy-codes codes and scales, see kvcodec.quantizer.
        center, tables: "profile" takes a profile's means off first, see kvcodec.centred.

    Error of a vector, relative to its norm: pi / n from the angles at most (mean square
    2 - 2 sin(pi/n) / (pi/n)), and what the norms lose: at most (max - min) / (2^(b+1) - 2) each.
    Cost: log2(n)/2 + b/2 bits per element and 64 (fp16: 32) per vector; 3.5 + 4 + 0.5 at head_dim
    128 by default. Source: TurboAngle, arXiv:2603.27467; differs: min and max are counted, vectors
    are scaled by a power of two so that no fp32 step leaves its range, log levels span at most 10
    octaves. Format: formats/turboangle.md, formats/rotation.md.
    """

    name = "turboangle"
    lossless = False
    parts_split_heads = True
    stream_ordered = True
    source = "TurboAngle, arXiv:2603.27467"
    examples = (
        "turboangle",
        "turboangle:n=64,norm_bits=4,norm=log",
        "turboangle:n=48,norm_bits=6,minmax=fp16",
        "turboangle:n=56,norm=fp16,entropy=rans",
        "turboangle:center=profile",
    )
    later = ("entropy", "center", "tables")

    n: int = 128
    norm_bits: int = 8
    norm: str = "linear"
    minmax: str = "fp32"
    entropy: str = "none"

    def __post_init__(self) -> None:
        self.check_entropy()
        self.check_center()
        if not 2 <= self.n <= MAX_DIRECTIONS:
            raise InvalidInputError(f"turboangle: n is {self.n}, wanted 2 to {MAX_DIRECTIONS}")
        if not 4 <= self.norm_bits <= 8:
            raise InvalidInputError(f"turboangle: norm_bits is {self.norm_bits}, wanted 4 to 8")
        if self.norm not in (*CODED, *STORED):
            known = ", ".join((*CODED, *STORED))
            raise InvalidInputError(f"turboangle: norm is {self.norm!r}, wanted one of {known}")
        if self.minmax not in STORED:
            raise InvalidInputError(
                f"turboangle: minmax is {self.minmax!r}, wanted {' or '.join(STORED)}"
            )
        if self.norm in STORED and (self.norm_bits, self.minmax) != (8, "fp32"):
            raise InvalidInputError(
                f"turboangle: norm={self.norm} stores norms uncoded; leave norm_bits and minmax out"
            )

    def supports(self, spec: BlockSpec) -> str | None:
        """bf16, fp16 and fp32, any even head_dim."""
        if spec.dtype not in SOURCES:
            return f"{spec.format.name} is not one of bf16, fp16, fp32; choose split to keep it"
        if spec.head_dim % 2:
            return f"head_dim {spec.head_dim} is odd and leaves an element unpaired; choose fp8"
        return self.misfit(spec)

    def parts(self, spec: BlockSpec) -> tuple[Section, ...]:
        """Angle codes, then norms and their range, each [T, H, ...]."""
        pairs, lead = spec.head_dim // 2, (spec.block_size, spec.num_kv_heads)

        def part(name: str, dtype: str, size: int, coding: str) -> Section:
            return Section(name, dtype, (*lead, size), head_axis=1, coding=coding, tokens=1)

        angles = part("angles", "u1", radix.packed_nbytes(pairs, self.n), "raw")  # all alike
        if self.norm in STORED:
            return angles, part("norms", f"<f{STORED[self.norm].itemsize}", pairs, self.norm)
        coding = {8: "bytes", 4: "nibbles"}.get(self.norm_bits, "raw")
        norms = part("norms", "u1", radix.packed_nbytes(pairs, 1 << self.norm_bits), coding)
        return angles, norms, part("minmax", f"<f{STORED[self.minmax].itemsize}", 2, self.minmax)

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
            x = finite(exact.widen(to_bits(blocks[i]), spec.format), spec)
            x[valid:] = 0
            down, up = scales(exact.finite_amax(x, (2,)))
            y = rotate(exact.mul(x, down))
            y[np.abs(y) < TINY] = 0
            a, b = y[..., 0::2], y[..., 1::2]
            r = exact.sqrt(exact.add(exact.mul(a, a), exact.mul(b, b)))
            parts = {"angles": radix.pack(angles.nearest(a, b, self.n), self.n)}
            if self.norm in STORED:
                parts["norms"] = store(exact.mul(r, up), self.norm)
            else:
                q, parts["minmax"] = self.code_norms(r, down, up)
                parts["norms"] = radix.pack(q, 1 << self.norm_bits)
            out.nbytes[i] = write_row(payload[i], sections, 0, valid, parts)

    def dequantize(
        self, encoded: EncodedBlocks, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Directions times norms, rotated back, rounded once to the element type."""
        spec = encoded.spec
        bits = np.zeros((len(encoded), *spec.shape), f"u{spec.dtype.itemsize}")
        for block, row in zip(bits, read_rows(encoded), strict=True):
            parts, pairs = row.parts, spec.head_dim // 2
            k = radix.unpack(parts["angles"], pairs, self.n)
            if self.norm in STORED:
                r, up = whole_norms(parts["norms"])
            else:
                q = radix.unpack(parts["norms"], pairs, 1 << self.norm_bits)
                r, up = self.norms_of(q, parts["minmax"])
            y = exact.mul(r[..., None], angles.directions(self.n)[k]).reshape(spec.shape)
            x = exact.mul(unrotate(y), up)
            block[:] = exact.narrow(exact.add(x, np.zeros_like(x)), spec.format)  # -0 becomes 0
            block[row.num_valid :] = 0
        return from_bits(bits, spec.dtype)

    def code_norms(self, r: exact.F32, down: exact.F32, up: exact.F32) -> tuple[radix.Codes, UInt]:
        """Codes [..., P] of the norms of scaled vectors, and what is stored of min and max."""
        ends = np.stack([r.min(-1), r.max(-1)], -1)
        stored = store(exact.mul(ends, up), self.minmax)
        low, high = self.levels(exact.mul(load(stored), down))
        position = np.minimum(np.maximum(r, low), high)
        if self.norm == "log":
            position, low, high = logs(position), logs(low), logs(high)
        span = exact.sub(high, low)
        span[span == 0] = 1
        most = np.float32((1 << self.norm_bits) - 1)
        q = exact.mul(exact.div(exact.sub(position, low), span), most)
        return exact.round_half_even(q), stored

    def norms_of(self, q: radix.Codes, stored: UInt) -> tuple[exact.F32, exact.F32]:
        """Norms [..., P] of scaled vectors from codes, and the factor [..., 1] to their size."""
        ends = load(stored)
        down, up = scales(ends[..., 1:])
        low, high = self.levels(exact.mul(ends, down))
        codes = q.astype(np.float32)  # exact: integers below 2^8
        most = np.float32((1 << self.norm_bits) - 1)
        if self.norm == "log":
            step = exact.div(exact.sub(logs(high), logs(low)), most)
            above = exact.round_half_even(exact.mul(codes, step))
            r = fixed_log.power_of(fixed_log.log_of(low) + above)
        else:
            r = exact.add(low, exact.mul(codes, exact.div(exact.sub(high, low), most)))
        return np.minimum(np.maximum(r, low), high), up

    def levels(self, ends: exact.F32) -> tuple[exact.F32, exact.F32]:
        """Lowest and highest level, [..., 1] each, from the stored minimum and maximum [..., 2]."""
        low, high = ends[..., :1], ends[..., 1:]
        if self.norm == "log":
            low = np.maximum(low, exact.mul(high, np.float32(LOG_RANGE)))
        return np.minimum(low, high), high


def finite(x: exact.F32, spec: BlockSpec) -> exact.F32:
    """NaN becomes 0, infinity the largest finite element."""
    most = exact.widen(np.array(exact.codes_of(spec.format).max, np.uint32), spec.format)
    return np.where(exact.is_nan(x), np.float32(0), np.minimum(np.maximum(x, -most), most))


def scales(amax: exact.F32) -> tuple[exact.F32, exact.F32]:
    """Powers of two that bring magnitudes up to amax below 4, and back: fp32 of amax's shape."""
    exponent = np.clip(amax.view(np.uint32) >> 23, 1, 253)
    down = (254 - exponent).astype(np.uint32) << np.uint32(23)
    up = exponent.astype(np.uint32) << np.uint32(23)
    return down.view(np.float32), up.view(np.float32)


def whole_norms(stored: UInt) -> tuple[exact.F32, exact.F32]:
    """Norms [..., P] that stand in a row, scaled, and the factor [..., 1] to their size."""
    r = load(stored)
    down, up = scales(exact.finite_amax(r, (-1,)))
    return exact.mul(r, down), up


def store(values: exact.F32, kind: str) -> UInt:
    """Norms as fp16 or fp32, rounded to nearest even, saturating; as floats for `Section`."""
    codes = exact.narrow(values, STORED[kind])
    return codes.view(f"<f{STORED[kind].itemsize}")


def load(stored: UInt) -> exact.F32:
    """Stored norms as fp32; what no writer stores (negative, infinite, NaN) reads as 0."""
    fmt = STORED[f"fp{8 * stored.dtype.itemsize}"]
    values = exact.widen(stored.view(f"<u{fmt.itemsize}"), fmt)
    return np.where(values.view(np.uint32) < 0x7F800000, values, np.float32(0))


def logs(x: exact.F32) -> exact.F32:
    """`fixed_log.log_of` as fp32, exact: integers below 2^24."""
    return fixed_log.log_of(x).astype(np.float32)  # exact: integers below 2^24
