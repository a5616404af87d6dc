"""fp8 on the host with torch: a batch in chunks of blocks that stay in cache.

Library casts stand only where tests/test_fp8.py finds them equal to `kvcodec.exact`: fp16 and bf16
to fp32, and clamped fp32 to the narrow types. They disagree on NaN, some by the position in the
vector, so NaN is written afterwards by its bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

import torch

from kvcodec import exact
from kvcodec.bits import FloatFormat, int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.fp8 import MIN_POWER, MIN_SCALE, PER_TOKEN, Fp8
from kvcodec.kernels._dense import DenseKernel
from kvcodec.row import read_rows, row_layout

NAN = 0x7FC00000
CHUNK_NUMEL = 1 << 18  # 1 MiB of fp32: several passes hit the cache, a call's overhead stays small


def encode(
    blocks: torch.Tensor,
    num_valid: torch.Tensor,
    out: EncodedBlocks,
    positions: torch.Tensor | None = None,
) -> None:
    """See `Codec.encode`."""
    codec, spec = cast(Fp8, out.codec), out.spec
    offsets, nbytes = row_layout(codec.sections(spec, 0), {})
    rows = out.payload[:, :nbytes]
    rows[:, : offsets["codes"]] = 0
    rows[:, 2:4] = num_valid.to(torch.int16).view(torch.uint8).view(-1, 2)
    rows[:, offsets["codes"] + spec.numel :] = 0
    out.nbytes.fill_(nbytes)
    unused = unused_slots(num_valid, spec)
    for at in chunks(len(rows), spec):
        bits = int_view(blocks[at])
        if unused is not None:
            bits = bits.masked_fill(unused[at], 0)
        magnitude = bits & torch.iinfo(bits.dtype).max
        stored = None if codec.given else measure(magnitude, codec, spec)
        x = bits.view(spec.dtype).to(torch.float32, copy=True)
        x.view(-1, *codec.grouped(spec)).div_(scales_of(stored, codec, spec))
        codes = rows[at, offsets["codes"] :][:, : spec.numel].view(torch.int8).view(bits.shape)
        narrow_into(codes, x, codec.target)
        restore_nan(codes, codec.target, bits, magnitude, spec.format)
        if stored is not None:
            if unused is not None and codec.scale in PER_TOKEN:
                stored = stored.masked_fill(unused[at], 0)
            data = stored.contiguous().view(torch.uint8).flatten(1)
            rows[at, offsets["scales"] :][:, : data.shape[1]] = data


def decode(encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
    """See `Codec.decode`."""
    codec, spec = cast(Fp8, encoded.codec), encoded.spec
    offsets, nbytes = row_layout(codec.sections(spec, 0), {})
    rows = encoded.payload[:, :nbytes]
    num_valid = rows[:, 2].to(torch.int32) | rows[:, 3].to(torch.int32) << 8
    damaged = (encoded.nbytes != nbytes) | rows[:, :2].any(1) | (num_valid > spec.block_size)
    if bool(damaged.any()):
        read_rows(encoded)  # raises, and says which field is wrong
    unused = unused_slots(num_valid, spec)
    blocks = torch.empty(len(rows), *spec.shape, dtype=spec.dtype)
    for at in chunks(len(rows), spec):
        codes = rows[at, offsets["codes"] :][:, : spec.numel].view(torch.int8)
        codes = codes.view(-1, *spec.shape)
        stored = None if codec.given else stored_scales(rows[at], offsets["scales"], codec, spec)
        scales = scales_of(stored, codec, spec)
        elements = int_view(blocks[at])
        product = widen_codes(codes, codec.target)
        product.view(-1, *codec.grouped(spec)).mul_(scales)
        odd = product.isnan() if may_be_nan(scales, codes, codec.target) else None
        narrow_into(elements, product, spec.format)
        restore_nan(elements, spec.format, codes, codes & 0x7F, codec.target)
        if odd is not None:
            write_nan(elements, spec.format, codes, odd)
        if unused is not None:
            elements.masked_fill_(unused[at], 0)
    return blocks


def chunks(num_blocks: int, spec: BlockSpec) -> Iterator[slice]:
    """Slices of a batch, each about CHUNK_NUMEL elements and at least one block."""
    step = max(1, CHUNK_NUMEL // spec.numel)
    return (slice(begin, begin + step) for begin in range(0, num_blocks, step))


def unused_slots(num_valid: torch.Tensor, spec: BlockSpec) -> torch.Tensor | None:
    """bool [n, block_size, 1, 1], true past each block's tokens; None when every block is full."""
    if bool((num_valid == spec.block_size).all()):
        return None
    return (torch.arange(spec.block_size) >= num_valid[:, None])[:, :, None, None]


def measure(magnitude: torch.Tensor, codec: Fp8, spec: BlockSpec) -> torch.Tensor:
    """Stored scales [n, *scale_shape] from integer magnitudes [n, *shape]."""
    inf = cast(int, exact.codes_of(spec.format).inf)
    groups = magnitude.view(-1, *codec.grouped(spec))
    amax = groups.amax((2, 4, 6))
    if int(amax.max()) >= inf:
        amax = groups.masked_fill(groups >= inf, 0).amax((2, 4, 6))
    scales = amax.view(spec.dtype).to(torch.float32, copy=True).div_(largest(codec.target))
    if codec.scale_dtype == "ue8m0":
        bits = scales.clamp_(min=MIN_POWER).view(torch.int32)
        return (bits + 0x7FFFFF >> 23).to(torch.uint8)
    return scales.clamp_(min=MIN_SCALE).masked_fill_(amax == 0, 1)


def stored_scales(rows: torch.Tensor, offset: int, codec: Fp8, spec: BlockSpec) -> torch.Tensor:
    """Scales [n, *scale_shape] that stand in the rows, at any alignment."""
    dtype = torch.uint8 if codec.scale_dtype == "ue8m0" else torch.float32
    shape = codec.scale_shape(spec)
    data = rows[:, offset : offset + math.prod(shape) * dtype.itemsize].contiguous()
    return data.view(dtype).view(-1, *shape)


def scales_of(stored: torch.Tensor | None, codec: Fp8, spec: BlockSpec) -> torch.Tensor:
    """fp32 scales that go with `Fp8.grouped`: [n, tokens, 1, heads, 1, groups, 1]."""
    if stored is None:
        scales = torch.tensor(codec.given)
    elif codec.scale_dtype == "ue8m0":
        bits = stored.to(torch.int32)
        scales = (bits << 23).masked_fill_(bits == 0, 0x400000).masked_fill_(bits == 255, NAN)
        scales = scales.view(torch.float32)
    else:
        scales = stored
    tokens, heads, groups = codec.scale_shape(spec)
    return scales.reshape(-1, tokens, 1, heads, 1, groups, 1)


def may_be_nan(scales: torch.Tensor, codes: torch.Tensor, fmt: FloatFormat) -> bool:
    """Whether a product may be NaN where its code is not: only under a damaged scale."""
    if not bool(scales.isfinite().all()):
        return True
    infinite = fmt.mantissa_bits == 2 and int((codes & 0x7F).amax()) >= 0x7C
    return infinite and bool((scales == 0).any())


def largest(fmt: FloatFormat) -> float:
    """Largest finite value of a format."""
    return torch.finfo(fmt.dtype).max


def widen_codes(codes: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """fp32 values of fp8 patterns given as int8, exactly; an e4m3 NaN becomes +-480.

    Several times faster than the library's cast: e4m3 shifted by 7 is the fp16 of value / 2^8,
    e5m2 shifted by 8 is the fp16 of the value. Sign extension fills bit 14, which e4m3 leaves 0.
    """
    half = codes.to(torch.int16)
    if fmt.mantissa_bits == 2:
        return half.bitwise_left_shift_(8).view(torch.float16).to(torch.float32)
    half = half.bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return half.view(torch.float16).to(torch.float32).mul_(256)


def narrow_into(out: torch.Tensor, x: torch.Tensor, fmt: FloatFormat) -> None:
    """Round fp32 values, which are spent, to patterns of `fmt` as integers; NaN is left open."""
    out.view(fmt.dtype).copy_(x.clamp_(-largest(fmt), largest(fmt)))


def restore_nan(
    out: torch.Tensor,
    fmt: FloatFormat,
    source: torch.Tensor,
    magnitude: torch.Tensor,
    source_fmt: FloatFormat,
) -> None:
    """Give `out`, patterns of `fmt`, the NaN of their source's sign where the source is NaN."""
    special = exact.codes_of(source_fmt)
    top = special.max if special.inf is None else special.inf
    if int(magnitude.amax()) <= top:
        return
    write_nan(out, fmt, source, magnitude > top)


def write_nan(
    out: torch.Tensor, fmt: FloatFormat, source: torch.Tensor, where: torch.Tensor
) -> None:
    """NaN of the source's sign, in patterns of `fmt`."""
    nan = exact.codes_of(fmt).nan
    signed = torch.where(source < 0, nan + torch.iinfo(out.dtype).min, nan).to(out.dtype)
    out.copy_(torch.where(where, signed, out))


KERNEL = DenseKernel(encode, decode)
