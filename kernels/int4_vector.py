"""int4 on the host with torch: a batch in chunks of blocks that stay in cache.

Elementwise fp32 operations of torch round like those of the reference; scales and zeros, one or two
for a group, go through the reference's own integer code.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch

from kvcodec import exact
from kvcodec.bits import UInt, int_view, to_bits
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.int4 import AXES, ROUNDER, Int4, round_down, round_up
from kvcodec.kernels._dense import DenseKernel
from kvcodec.kernels.fp8_vector import chunks, narrow_into, unused_slots
from kvcodec.row import read_rows, row_layout

INF = float("inf")


def encode(
    blocks: torch.Tensor,
    num_valid: torch.Tensor,
    out: EncodedBlocks,
    positions: torch.Tensor | None = None,
) -> None:
    """See `Codec.encode`."""
    codec, spec = cast(Int4, out.codec), out.spec
    sections = codec.sections(spec, 0)
    offsets, nbytes = row_layout(sections, {})
    rows = out.payload[:, :nbytes]
    rows[:, : offsets["codes"]] = 0
    rows[:, 2:4] = num_valid.to(torch.int16).view(torch.uint8).view(-1, 2)
    for begin, section in zip([*[*offsets.values()][1:], nbytes], sections, strict=True):
        rows[:, offsets[section.name] + section.nbytes() : begin] = 0
    out.nbytes.fill_(nbytes)
    unused = unused_slots(num_valid, spec)
    for at in chunks(len(rows), spec):
        x = blocks[at].to(torch.float32, copy=True)
        if unused is not None:
            x.masked_fill_(unused[at], float("nan"))
        codes, scales, zeros = quantize(x, codec)
        for part, data in ("codes", codes), ("scales", scales), ("zeros", zeros):
            flat = torch.from_numpy(np.ascontiguousarray(data)).view(torch.uint8).flatten(1)
            rows[at, offsets[part] :][:, : flat.shape[1]] = flat


def decode(encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
    """See `Codec.decode`."""
    codec, spec = cast(Int4, encoded.codec), encoded.spec
    offsets, nbytes = row_layout(codec.sections(spec, 0), {})
    rows = encoded.payload[:, :nbytes]
    num_valid = rows[:, 2].to(torch.int32) | rows[:, 3].to(torch.int32) << 8
    damaged = (encoded.nbytes != nbytes) | rows[:, :2].any(1) | (num_valid > spec.block_size)
    if bool(damaged.any()):
        read_rows(encoded)  # raises, and says which field is wrong
    unused = unused_slots(num_valid, spec)
    blocks = torch.empty(len(rows), *spec.shape, dtype=spec.dtype)
    for at in chunks(len(rows), spec):
        packed = rows[at, offsets["codes"] :][:, : spec.numel * codec.bits // 8]
        values = torch.empty(len(packed), spec.numel)
        for i in range(8 // codec.bits):
            values[:, i :: 8 // codec.bits] = (packed >> (i * codec.bits)) & codec.top
        values = values.view(-1, *spec.shape)
        values.mul_(meta(rows[at, offsets["scales"] :], codec, spec))
        values.add_(meta(rows[at, offsets["zeros"] :], codec, spec))
        narrow_into(int_view(blocks[at]), values, spec.format)
        if unused is not None:
            int_view(blocks[at]).masked_fill_(unused[at], 0)
    return blocks


def quantize(x: torch.Tensor, codec: Int4) -> tuple[UInt, UInt, UInt]:
    """Packed codes, scales and zeros of blocks [n, T, H, D] of fp32, which are spent."""
    axis = AXES[codec.axis] + 1
    low, high = ends(x, codec, axis)
    fmt = codec.meta_format
    zeros = round_down(low.numpy(), fmt)
    zero = exact.widen(zeros, fmt)
    span = np.maximum(exact.sub(high.numpy(), zero), np.float32(0))
    scales = round_up(exact.div(span, np.float32(codec.top)), fmt)
    x.sub_(spread(zero, codec, axis, x.shape[axis]))
    x.div_(spread(exact.widen(scales, fmt), codec, axis, x.shape[axis]))
    x.nan_to_num_(0, INF, 0).clamp_(0, codec.top).add_(float(ROUNDER))
    codes = x.view(torch.int32) & codec.top
    per_byte = 8 // codec.bits
    packed = codes[..., ::per_byte]
    for i in range(1, per_byte):
        packed = packed | codes[..., i::per_byte] << (i * codec.bits)
    return packed.to(torch.uint8).numpy(), scales, zeros


def ends(x: torch.Tensor, codec: Int4, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest finite value of each group, fp32 [n, *meta_shape]; 0 where none is."""
    finite = x.abs() < INF
    above, below = torch.where(finite, x, INF), torch.where(finite, x, -INF)
    groups = [
        (begin, min(codec.group, x.shape[axis] - begin))
        for begin in range(0, x.shape[axis], codec.group)
    ]
    low = torch.cat([above.narrow(axis, *g).amin(axis, keepdim=True) for g in groups], axis)
    high = torch.cat([below.narrow(axis, *g).amax(axis, keepdim=True) for g in groups], axis)
    empty = low > high
    return low.masked_fill_(empty, 0).add_(0.0), high.masked_fill_(empty, 0).add_(0.0)


def spread(values: exact.F32, codec: Int4, axis: int, length: int) -> torch.Tensor:
    """A group's value for each of its elements."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.repeat_interleave(codec.group, axis).narrow(axis, 0, length)


def meta(part: torch.Tensor, codec: Int4, spec: BlockSpec) -> torch.Tensor:
    """Scales or zeros for every element; part: the rows from where they begin, at any alignment."""
    shape, axis = codec.meta_shape(spec), AXES[codec.axis] + 1
    size = shape[0] * shape[1] * shape[2] * codec.meta_format.itemsize
    fields = part[:, :size].contiguous().view(codec.meta_format.dtype).view(-1, *shape)
    values = exact.widen(to_bits(fields), codec.meta_format)
    values = np.where(np.abs(values) < np.inf, values, np.float32(0))
    return spread(values, codec, axis, spec.shape[axis - 1])


KERNEL = DenseKernel(encode, decode)
