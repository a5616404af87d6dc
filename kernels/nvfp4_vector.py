"""nvfp4 on the host with torch: a batch in chunks of blocks that stay in cache."""

from __future__ import annotations

from typing import cast

import torch

from kvcodec.bits import int_view
from kvcodec.block import EncodedBlocks
from kvcodec.codecs.nvfp4 import GROUP, LARGEST, LARGEST_SCALE, MAX_GLOBAL, MIN_GLOBAL, Nvfp4
from kvcodec.kernels._dense import DenseKernel
from kvcodec.kernels._microscaling_vector import (
    absolute,
    begin_rows,
    group_amax,
    grouped,
    narrow_e2m1,
    open_rows,
    pack_e2m1,
    refuse_scales,
    sign_e2m1,
    store,
    unpack_e2m1,
)
from kvcodec.kernels.fp8_vector import chunks, unused_slots


def encode(
    blocks: torch.Tensor,
    num_valid: torch.Tensor,
    out: EncodedBlocks,
    positions: torch.Tensor | None = None,
) -> None:
    """See `Codec.encode`."""
    codec, spec = cast(Nvfp4, out.codec), out.spec
    parts = begin_rows(num_valid, out)
    unused = unused_slots(num_valid, spec)
    for at in chunks(len(blocks), spec):
        bits = int_view(blocks[at])
        if unused is not None:
            bits = bits.masked_fill(unused[at], 0)
        bits = grouped(bits, GROUP)
        magnitude = bits & torch.iinfo(bits.dtype).max
        amax = group_amax(magnitude, spec)  # [blocks, T, H, D / 16, 1]
        scale = global_scale(codec, amax)
        if codec.given is None:
            parts["global"][at] = scale.view(-1, 1).view(torch.uint8)
        size = absolute(magnitude, spec)
        scales, codes = quantize(size, amax, scale, 6)
        if codec.four_over_six:
            others = quantize(size, amax, scale, 4)
            kept = squared_error(size, scales, codes, scale)
            better = squared_error(size, *others, scale) < kept
            scales = torch.where(better, others[0].view(torch.uint8), scales.view(torch.uint8))
            codes = torch.where(better, others[1], codes)
        scales = scales.view(torch.uint8).view(len(bits), spec.block_size, -1)
        if unused is not None:
            scales = scales.masked_fill(unused[at, :, 0], 0)
        parts["scales"][at] = scales.reshape(len(bits), -1)
        pack_e2m1(codes | sign_e2m1(bits, magnitude, spec), parts["codes"][at])


def decode(encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
    """See `Codec.decode`."""
    codec, spec = cast(Nvfp4, encoded.codec), encoded.spec
    num_valid, parts = open_rows(encoded)
    unused = unused_slots(num_valid, spec)
    refuse_scales(encoded, parts["scales"], unused, LARGEST_SCALE)
    if codec.given is None:
        scale = parts["global"].contiguous().view(torch.float32)
        if not bool(((scale >= MIN_GLOBAL) & (scale <= MAX_GLOBAL)).all()):
            codec.decode(encoded)  # raises, and says which row is wrong
    else:
        scale = torch.tensor([[codec.given]], dtype=torch.float32).expand(len(encoded), 1)
    blocks = torch.empty(len(encoded), *spec.shape, dtype=spec.dtype)
    for at in chunks(len(blocks), spec):
        scales = parts["scales"][at].contiguous().view(torch.float8_e4m3fn)
        steps = scales.to(torch.float32).mul_(scale[at])[..., None]
        elements = int_view(blocks[at])
        store(elements, unpack_e2m1(parts["codes"][at]), steps, spec.format)
        if unused is not None:
            elements.masked_fill_(unused[at], 0)
    return blocks


def global_scale(codec: Nvfp4, amax: torch.Tensor) -> torch.Tensor:
    """fp32 [blocks, 1, 1, 1, 1], the supplied scale or one from the maxima of groups."""
    shape = (len(amax), 1, 1, 1, 1)
    if codec.given is not None:
        return torch.full(shape, codec.given, dtype=torch.float32)
    most = amax.view(len(amax), -1).amax(1).view(shape)
    return (most / LARGEST).clamp_(min=MIN_GLOBAL).masked_fill_(most == 0, 1)


def quantize(
    size: torch.Tensor, amax: torch.Tensor, scale: torch.Tensor, code: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 scales [..., 1] that give the largest values this code; magnitude codes [..., 16]."""
    ratio = (amax / (scale * code)).clamp_(2.0**-9, 448).masked_fill_(amax == 0, 1)
    scales = ratio.to(torch.float8_e4m3fn)
    return scales, narrow_e2m1(size / (scales.to(torch.float32) * scale))


def squared_error(
    size: torch.Tensor, scales: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """The error of groups [..., 1] that formats/nvfp4.md defines."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]).take(codes.to(torch.int64))
    terms = (size / scale).sub_(values.mul_(scales.to(torch.float32)))
    terms = terms.mul_(terms).masked_fill_(size == torch.inf, 0)
    while terms.shape[-1] > 1:
        low, high = terms.tensor_split(2, -1)
        terms = low + high
    return terms


KERNEL = DenseKernel(encode, decode)
