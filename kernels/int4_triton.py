"""int4 on a GPU: one launch for a batch, straight between the paged cache and the rows."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import math
from typing import Any, cast

import torch
import triton
import triton.language as tl

from kvcodec.bits import int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.int4 import Int4
from kvcodec.kernels._float_triton import finite, is_nan, load_bits, narrow
from kvcodec.kernels._int4_groups_triton import (
    finite_or_zero,
    line_numbers,
    measure,
    pack,
    quantize,
    signed,
    tile,
)
from kvcodec.kernels._rows_triton import check_rows, valid_tokens
from kvcodec.kernels._triton import TritonKernel
from kvcodec.row import row_layout

TILE = 2048  # elements of a program: 16 a thread of 4 warps
MIN_CHANNELS = 64  # of a tile whose groups are columns: 128 bytes of bf16 side by side


@triton.jit
def encode_kernel(
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    valid_ptr,  # int32 [n]; unused unless HAS_VALID
    rows_ptr,  # uint8 [n, ROW or more]
    scales_ptr,  # int16 or int32 [n, groups], a view of the rows
    zeros_ptr,  # the same
    nbytes_ptr,  # int32 [n]
    stride_block, stride_token, stride_head, stride_dim, stride_row, stride_meta,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    META_E: tl.constexpr, META_M: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    LINES: tl.constexpr, ALONG_TOKENS: tl.constexpr, CODES: tl.constexpr,
    CODES_END: tl.constexpr, SCALES: tl.constexpr, SCALES_END: tl.constexpr,
    ZEROS: tl.constexpr, ZEROS_END: tl.constexpr, ROW: tl.constexpr, HAS_VALID: tl.constexpr,
):  # fmt: skip
    """Encode a tile of groups: each is read once and held in registers."""
    i = tl.program_id(0).to(tl.int64)
    tile_id, token_group = tl.program_id(1), tl.program_id(2)
    valid = valid_tokens(valid_ptr, i, T, HAS_VALID)
    row_ptr = rows_ptr + i * stride_row
    if (tile_id == 0) & (token_group == 0):
        lane = tl.arange(0, 16)
        prefix = tl.where(lane == 2, valid & 0xFF, tl.where(lane == 3, valid >> 8, 0))
        tl.store(row_ptr + lane, prefix.to(tl.uint8))
        nothing = tl.zeros([16], tl.uint8)
        tl.store(row_ptr + CODES_END + lane, nothing, mask=lane < SCALES - CODES_END)
        tl.store(row_ptr + SCALES_END + lane, nothing, mask=lane < ZEROS - SCALES_END)
        tl.store(row_ptr + ZEROS_END + lane, nothing, mask=lane < ROW - ZEROS_END)
        tl.store(nbytes_ptr + i, ROW)
    token, head, dim, inside = tile(tile_id, token_group, T, H, D, GROUP, LINES, 1, ALONG_TOKENS)
    start = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    counts = inside & (token < valid)
    bits = load_bits(block_ptr + start + dim.to(tl.int64) * stride_dim, counts)
    magnitude = bits & ((1 << (E + M)) - 1)
    x = signed(bits, E, M)
    numbers = counts & (finite(magnitude, E, M) == magnitude)
    TOP: tl.constexpr = (1 << BITS) - 1
    AXIS: tl.constexpr = 0 if ALONG_TOKENS else 1
    scales, zeros = measure(x, numbers, TOP, META_E, META_M, AXIS)
    number, exists = line_numbers(tile_id, token_group, T, H, D, GROUP, LINES, ALONG_TOKENS)
    at = i * stride_meta + number
    tl.store(scales_ptr + at, scales.to(scales_ptr.dtype.element_ty), mask=exists)
    tl.store(zeros_ptr + at, zeros.to(zeros_ptr.dtype.element_ty), mask=exists)
    scale = tl.expand_dims(signed(scales, META_E, META_M), AXIS)
    zero = tl.expand_dims(signed(zeros, META_E, META_M), AXIS)
    codes = quantize(x, scale, zero, TOP)
    codes = tl.where(counts & (is_nan(magnitude, E, M) == 0), codes, 0)
    if ALONG_TOKENS:
        packed = pack(codes, BITS, GROUP, LINES)
    else:
        packed = pack(codes, BITS, LINES, GROUP)
    token, head, dim, inside = tile(
        tile_id, token_group, T, H, D, GROUP, LINES, 8 // BITS, ALONG_TOKENS
    )
    byte = ((token * H + head) * D + dim) // (8 // BITS)
    tl.store(row_ptr + CODES + byte, packed, mask=inside)


@triton.jit
def decode_kernel(
    rows_ptr,  # uint8 [n, row bytes]
    scales_ptr,  # int16 or int32 [n, groups], a view of the rows
    zeros_ptr,  # the same
    ids_ptr,  # int64 [n]
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    stride_row, stride_meta, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    META_E: tl.constexpr, META_M: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    LINES: tl.constexpr, ALONG_TOKENS: tl.constexpr, CODES: tl.constexpr,
):  # fmt: skip
    """Decode a tile of groups; nothing a row holds moves a store out of its block."""
    i = tl.program_id(0).to(tl.int64)
    tile_id, token_group = tl.program_id(1), tl.program_id(2)
    row_ptr = rows_ptr + i * stride_row
    valid = tl.load(row_ptr + 2).to(tl.int32) | tl.load(row_ptr + 3).to(tl.int32) << 8
    token, head, dim, inside = tile(tile_id, token_group, T, H, D, GROUP, LINES, 1, ALONG_TOKENS)
    element = (token * H + head) * D + dim
    byte = tl.load(row_ptr + CODES + element // (8 // BITS), mask=inside, other=0).to(tl.uint32)
    shift = (element % (8 // BITS) * BITS).to(tl.uint32)
    codes = (byte >> shift) & ((1 << BITS) - 1)
    number, exists = line_numbers(tile_id, token_group, T, H, D, GROUP, LINES, ALONG_TOKENS)
    at = i * stride_meta + number
    AXIS: tl.constexpr = 0 if ALONG_TOKENS else 1
    scale = finite_or_zero(load_bits(scales_ptr + at, exists), META_E, META_M)
    zero = finite_or_zero(load_bits(zeros_ptr + at, exists), META_E, META_M)
    value = codes.to(tl.float32) * tl.expand_dims(scale, AXIS) + tl.expand_dims(zero, AXIS)
    negative = value.to(tl.uint32, bitcast=True) >> 31
    bits = narrow(tl.abs(value), E, M) | negative << (E + M)
    bits = tl.where(token < valid, bits, 0)
    start = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    place = block_ptr + start + dim.to(tl.int64) * stride_dim
    tl.store(place, bits.to(cache_ptr.dtype.element_ty), mask=inside)


def compress(
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    num_valid: torch.Tensor | None,
    out: EncodedBlocks,
    **unused: Any,
) -> None:
    """Encode a batch in one launch, without workspace or host sync.

    Traffic: reads the elements once, writes the row.
    """
    codec, spec = cast(Int4, out.codec), out.spec
    offsets, nbytes = row_layout(codec.sections(spec, 0), {})
    ends = {f"{s.name.upper()}_END": offsets[s.name] + s.nbytes() for s in codec.sections(spec, 0)}
    sizes = out.nbytes.contiguous()  # a copy if they have gaps, written back below
    valid = block_ids if num_valid is None else num_valid.contiguous()
    scales, zeros = metas(codec, spec, out)
    encode_kernel[grid(codec, spec, len(out))](
        int_view(cache), block_ids.contiguous(), valid,
        out.payload, scales, zeros, sizes, *cache.stride(), out.payload.stride(0), scales.stride(0),
        **constants(codec, spec), **ends, SCALES=offsets["scales"], ZEROS=offsets["zeros"],
        ROW=nbytes, HAS_VALID=num_valid is not None, enable_fp_fusion=False,
    )  # fmt: skip
    if sizes is not out.nbytes:
        out.nbytes.copy_(sizes)


def decompress(
    encoded: EncodedBlocks, cache: torch.Tensor, block_ids: torch.Tensor, **unused: Any
) -> None:
    """Decode a batch in one launch, without workspace or host sync.

    Traffic: reads the rows, writes the elements once.
    """
    codec, spec = cast(Int4, encoded.codec), encoded.spec
    scales, zeros = metas(codec, spec, encoded)
    decode_kernel[grid(codec, spec, len(encoded))](
        encoded.payload, scales, zeros, block_ids.contiguous(), int_view(cache),
        encoded.payload.stride(0), scales.stride(0), *cache.stride(),
        **constants(codec, spec), enable_fp_fusion=False,
    )  # fmt: skip


def lines(codec: Int4, spec: BlockSpec) -> int:
    """Groups of a tile; channels, where groups are columns."""
    fill = TILE // codec.group
    if codec.axis == "token":
        return fill
    return min(max(fill, MIN_CHANNELS), triton.next_power_of_2(spec.token_numel))


def grid(codec: Int4, spec: BlockSpec, n: int) -> tuple[int, int, int]:
    """Programs: blocks, tiles, groups of tokens."""
    tokens, heads, groups = codec.meta_shape(spec)
    if codec.axis == "token":
        return n, triton.cdiv(tokens * heads * groups, lines(codec, spec)), 1
    return n, triton.cdiv(spec.token_numel, lines(codec, spec)), tokens


def constants(codec: Int4, spec: BlockSpec) -> dict[str, int | bool]:
    """Constants that both kernels take."""
    return {
        "T": spec.block_size,
        "H": spec.num_kv_heads,
        "D": spec.head_dim,
        "E": spec.format.exponent_bits,
        "M": spec.format.mantissa_bits,
        "META_E": codec.meta_format.exponent_bits,
        "META_M": codec.meta_format.mantissa_bits,
        "BITS": codec.bits,
        "GROUP": codec.group,
        "LINES": lines(codec, spec),
        "ALONG_TOKENS": codec.axis == "channel",
        "CODES": row_layout(codec.sections(spec, 0), {})[0]["codes"],
    }


def metas(codec: Int4, spec: BlockSpec, rows: EncodedBlocks) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zeros of the rows as integers [n, groups], views of the payload."""
    check_rows(rows.payload)
    offsets, _ = row_layout(codec.sections(spec, 0), {})
    itemsize = codec.meta_format.itemsize
    nbytes = itemsize * math.prod(codec.meta_shape(spec))
    word = torch.int16 if itemsize == 2 else torch.int32
    scales, zeros = (
        rows.payload[:, offsets[name] : offsets[name] + nbytes].view(word)
        for name in ("scales", "zeros")
    )
    return scales, zeros


KERNEL = TritonKernel(compress, decompress)
