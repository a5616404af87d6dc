"""What nvfp4, mxfp4 and mxfp8 share on the host with torch: groups, E2M1 codes, rows; and OCP MX.

Casts are those of fp8_vector, under the same tests. Batches go in chunks that stay in cache.
"""

from __future__ import annotations

import functools
from typing import cast

import torch

from kvcodec import exact
from kvcodec.bits import FloatFormat, int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs._microscaling import E2M1, MX_GROUP, Mx
from kvcodec.kernels._dense import DenseKernel
from kvcodec.kernels.fp8_vector import (
    chunks,
    narrow_into,
    restore_nan,
    unused_slots,
    widen_codes,
)
from kvcodec.row import read_rows, row_layout


def begin_rows(num_valid: torch.Tensor, out: EncodedBlocks) -> dict[str, torch.Tensor]:
    """Prefix and zeros of all rows; the parts as they lie in them, uint8 [n, bytes of the part]."""
    sections = out.codec.sections(out.spec, 0)
    offsets, nbytes = row_layout(sections, {})
    rows = out.payload[:, :nbytes]
    rows.zero_()
    rows[:, 2:4] = num_valid.to(torch.int16).view(torch.uint8).view(-1, 2)
    out.nbytes.fill_(nbytes)
    return {s.name: rows[:, offsets[s.name] :][:, : s.nbytes()] for s in sections}


def open_rows(encoded: EncodedBlocks) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """num_valid of all rows and their parts; raises for a damaged prefix or size."""
    sections = encoded.codec.sections(encoded.spec, 0)
    offsets, nbytes = row_layout(sections, {})
    rows = encoded.payload[:, :nbytes]
    num_valid = rows[:, 2].to(torch.int32) | rows[:, 3].to(torch.int32) << 8
    damaged = (encoded.nbytes != nbytes) | rows[:, :2].any(1)
    if bool((damaged | (num_valid > encoded.spec.block_size)).any()):
        read_rows(encoded)  # raises, and says which field is wrong
    return num_valid, {s.name: rows[:, offsets[s.name] :][:, : s.nbytes()] for s in sections}


def grouped(bits: torch.Tensor, group: int) -> torch.Tensor:
    """[..., D] -> [..., D / group, group]."""
    return bits.view(*bits.shape[:-1], -1, group)


def group_amax(magnitude: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """fp32 largest finite value along the last axis of integer magnitudes, kept with size 1."""
    inf = cast(int, exact.codes_of(spec.format).inf)
    amax = magnitude.amax(-1, keepdim=True)
    if int(amax.max()) >= inf:
        amax = magnitude.masked_fill(magnitude >= inf, 0).amax(-1, keepdim=True)
    return amax.view(spec.dtype).to(torch.float32, copy=True)


def absolute(magnitude: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """fp32 values of integer magnitudes; NaN becomes infinity, whose E2M1 code is the same."""
    inf = cast(int, exact.codes_of(spec.format).inf)
    return magnitude.clamp(max=inf).view(spec.dtype).to(torch.float32, copy=True)


def narrow_e2m1(q: torch.Tensor) -> torch.Tensor:
    """int8 magnitude codes of fp32 values >= 0: nearest even, saturating.

    Codes are twice the value up to 2, the value + 2 up to 4, half of it + 4 from there; each of
    the three is the least of them where it holds, rounded too.
    """
    q = q.clamp_(max=6)
    codes = (q * 2).round_()
    torch.minimum(codes, q.round().add_(2), out=codes)
    torch.minimum(codes, q.mul_(0.5).round_().add_(4), out=codes)
    return codes.to(torch.int8)


def sign_e2m1(bits: torch.Tensor, magnitude: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """int8: 8 where the element is negative and not NaN."""
    negative = bits < 0
    inf = cast(int, exact.codes_of(spec.format).inf)
    if int(magnitude.max()) > inf:
        negative &= magnitude <= inf
    return negative.to(torch.int8).bitwise_left_shift_(3)


def pack_e2m1(codes: torch.Tensor, part: torch.Tensor) -> None:
    """int8 codes [blocks, ...] to a part [blocks, bytes], element 2i in the low half."""
    pairs = codes.reshape(len(part), -1, 2)
    part.view(torch.int8).copy_(pairs[..., 0] | pairs[..., 1] << 4)


@functools.lru_cache(maxsize=1)
def pairs_of_bytes() -> torch.Tensor:
    """int64 [256]: the fp32 values of the two codes in a byte, side by side."""
    codes = torch.arange(256)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    both = torch.stack([values[codes & 7], values[codes >> 4 & 7]], 1)
    both[codes & 8 != 0, 0] *= -1
    both[codes & 0x80 != 0, 1] *= -1
    return both.view(torch.int64).view(-1)


def unpack_e2m1(part: torch.Tensor) -> torch.Tensor:
    """fp32 values of packed codes [blocks, bytes], twice as many."""
    indices = part.to(torch.int32).view(-1)
    return pairs_of_bytes().index_select(0, indices).view(torch.float32).view(len(part), -1)


def encode(
    blocks: torch.Tensor,
    num_valid: torch.Tensor,
    out: EncodedBlocks,
    positions: torch.Tensor | None = None,
) -> None:
    """OCP MX, see `Codec.encode`."""
    codec, spec = cast(Mx, out.codec), out.spec
    parts = begin_rows(num_valid, out)
    unused = unused_slots(num_valid, spec)
    for at in chunks(len(blocks), spec):
        bits = int_view(blocks[at])
        if unused is not None:
            bits = bits.masked_fill(unused[at], 0)
        bits = grouped(bits, MX_GROUP)
        magnitude = bits & torch.iinfo(bits.dtype).max
        exponents = group_amax(magnitude, spec).view(torch.int32) >> 23
        scales = (exponents - codec.emax).clamp_(min=0)  # 0 for unused slots, which are zeros
        parts["scales"][at] = scales.to(torch.uint8).view(len(bits), -1)
        inverse = (254 - scales << 23).view(torch.float32)
        if codec.target is E2M1:
            codes = narrow_e2m1(absolute(magnitude, spec).mul_(inverse))
            pack_e2m1(codes | sign_e2m1(bits, magnitude, spec), parts["codes"][at])
        else:
            codes = torch.empty(bits.shape, dtype=torch.int8)
            narrow_into(
                codes,
                bits.view(spec.dtype).to(torch.float32, copy=True).mul_(inverse),
                codec.target,
            )
            restore_nan(codes, codec.target, bits, magnitude, spec.format)
            parts["codes"][at].view(torch.int8).copy_(codes.view(len(bits), -1))


def decode(encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
    """OCP MX, see `Codec.decode`."""
    codec, spec = cast(Mx, encoded.codec), encoded.spec
    num_valid, parts = open_rows(encoded)
    unused = unused_slots(num_valid, spec)
    refuse_scales(encoded, parts["scales"], unused, 0xFE)
    blocks = torch.empty(len(encoded), *spec.shape, dtype=spec.dtype)
    for at in chunks(len(blocks), spec):
        field = parts["scales"][at].to(torch.int32)[..., None]
        steps = torch.where(field == 0, 1 << 22, field << 23).view(torch.float32)
        elements = int_view(blocks[at])
        codes = parts["codes"][at]
        if codec.target is E2M1:
            values = unpack_e2m1(codes)
        else:
            values = widen_codes(codes.view(torch.int8), codec.target)
        store(elements, values, steps, spec.format)
        if codec.target is not E2M1:
            signed = codes.view(torch.int8).view(elements.shape)
            restore_nan(elements, spec.format, signed, signed & 0x7F, codec.target)
        if unused is not None:
            elements.masked_fill_(unused[at], 0)
    return blocks


def store(
    elements: torch.Tensor, values: torch.Tensor, steps: torch.Tensor, fmt: FloatFormat
) -> None:
    """Values [blocks, elements] times the steps [blocks, groups, 1] of their groups, rounded."""
    products = values.view(len(values), steps.shape[1], -1).mul_(steps)
    narrow_into(elements, products.view(elements.shape), fmt)


def refuse_scales(
    encoded: EncodedBlocks, scales: torch.Tensor, unused: torch.Tensor | None, largest: int
) -> None:
    """Let the reference raise where a valid token has a scale above the largest."""
    bad = scales > largest
    if not bool(bad.any()):
        return
    if unused is not None:
        bad = bad.view(len(bad), encoded.spec.block_size, -1) & ~unused[:, :, 0]
    if bool(bad.any()):
        encoded.codec.decode(encoded)


KERNEL = DenseKernel(encode, decode)
