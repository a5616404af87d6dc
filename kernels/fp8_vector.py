"""fp8 on the host with torch: a batch in chunks of blocks that stay in cache.

Library casts stand only where tests/test_fp8.py finds them equal to `kvcodec.exact`: fp16 and bf16
to fp32, and clamped fp32 to the narrow types. They disagree on NaN, some by the position in the
vector, so NaN is written afterwards by its bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch

from kvcodec import exact
from kvcodec.bits import FloatFormat, int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.fp8 import MIN_SCALE, SHARED_AXES, Fp8
from kvcodec.kernels._dense import DenseKernel
from kvcodec.row import read_rows, row_layout

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
    given = torch.from_numpy(codec.given_scales(spec)) if codec.given else None
    unused = unused_slots(num_valid, spec)
    for at in chunks(len(rows), spec):
        bits = int_view(blocks[at])
        if unused is not None:
            bits = bits.masked_fill(unused[at], 0)
        magnitude = bits & torch.iinfo(bits.dtype).max
        scales = measure(magnitude, codec, spec) if given is None else given
        x = bits.view(spec.dtype).to(torch.float32, copy=True).div_(scales)
        codes = rows[at, offsets["codes"] :][:, : spec.numel].view(torch.int8).view(bits.shape)
        narrow_into(codes, x, codec.target)
        restore_nan(codes, codec.target, bits, magnitude, spec.format)
        if given is None:
            if unused is not None and codec.scale == "token_head":
                scales = scales.masked_fill(unused[at], 0)
            data = scales.contiguous().view(torch.uint8).flatten(1)
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
    given = torch.from_numpy(codec.given_scales(spec)) if codec.given else None
    unused = unused_slots(num_valid, spec)
    blocks = torch.empty(len(rows), *spec.shape, dtype=spec.dtype)
    for at in chunks(len(rows), spec):
        codes = rows[at, offsets["codes"] :][:, : spec.numel].view(torch.int8)
        codes = codes.view(-1, *spec.shape)
        scales = given if given is not None else measured(rows[at], offsets["scales"], codec, spec)
        elements = int_view(blocks[at])
        narrow_into(elements, widen_codes(codes, codec.target).mul_(scales), spec.format)
        restore_nan(elements, spec.format, codes, codes & 0x7F, codec.target)
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
    """fp32 scales [n, *scale_shape] from integer magnitudes [n, *shape]."""
    axes = [axis + 1 for axis in SHARED_AXES[codec.scale]]
    inf = cast(int, exact.codes_of(spec.format).inf)
    amax = magnitude.amax(axes, keepdim=True)
    if int(amax.max()) >= inf:
        amax = magnitude.masked_fill(magnitude >= inf, 0).amax(axes, keepdim=True)
    scales = amax.view(spec.dtype).to(torch.float32, copy=True).div_(largest(codec.target))
    return scales.clamp_(min=MIN_SCALE).masked_fill_(amax == 0, 1)


def measured(rows: torch.Tensor, offset: int, codec: Fp8, spec: BlockSpec) -> torch.Tensor:
    """Scales [n, *scale_shape] that stand in the rows, at any alignment."""
    shape = codec.scale_shape(spec)
    data = rows[:, offset : offset + 4 * shape[0] * shape[1]].contiguous()
    return data.view(torch.float32).view(-1, *shape)


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
    nan = exact.codes_of(fmt).nan
    signed = torch.where(source < 0, nan + torch.iinfo(out.dtype).min, nan).to(out.dtype)
    out.copy_(torch.where(magnitude > top, signed, out))


KERNEL = DenseKernel(encode, decode)
