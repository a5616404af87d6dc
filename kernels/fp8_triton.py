"""fp8 on a GPU: one launch for a batch, straight between the paged cache and the rows."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import functools
import math
from typing import Any, cast

import torch
import triton
import triton.language as tl

from kvcodec.bits import int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.fp8 import MIN_POWER, MIN_SCALE, PER_TOKEN, Fp8
from kvcodec.kernels._float_triton import is_nan, load_bits, narrow, pattern, widen
from kvcodec.kernels._fp8_decode_triton import decode_words_kernel
from kvcodec.kernels._fp8_encode_triton import (
    encode_channels_kernel,
    encode_groups_kernel,
    encode_rows_kernel,
    load_scale,
)
from kvcodec.kernels._rows_triton import check_rows
from kvcodec.kernels._triton import TritonKernel
from kvcodec.row import row_layout

TILE = 2048  # elements of a program's tile: 16 a thread of 4 warps, one 16-byte access of codes
CHUNKS = 512  # of 8 elements in a tile of words: 4 for each thread of 4 warps


@triton.jit
def decode_kernel(
    rows_ptr,  # uint8 [n, row bytes]
    scales_ptr,  # fp32 or UE8M0 bytes [n, scales of a row], the rows' own or given ones
    ids_ptr,  # int64 [n]
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    stride_row, stride_scales, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    CODE_E: tl.constexpr, CODE_M: tl.constexpr, CODES: tl.constexpr,
    GROUP_TOKENS: tl.constexpr, GROUP_HEADS: tl.constexpr, GROUP_DIMS: tl.constexpr,
    ROWS: tl.constexpr, D_TILE: tl.constexpr,
):  # fmt: skip
    """Decode a tile of token-heads; nothing a row holds moves a store out of its block."""
    i = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + i * stride_row
    valid = tl.load(row_ptr + 2).to(tl.int32) | tl.load(row_ptr + 3).to(tl.int32) << 8
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    token, head = r // H, r % H
    d = tl.program_id(2) * D_TILE + tl.arange(0, D_TILE)[None, :]  # [1, D_TILE]
    inside = (r < T * H)[:, None] & (d < D)
    group = token // GROUP_TOKENS * (H // GROUP_HEADS) + head // GROUP_HEADS
    scale_ptr = scales_ptr + i * stride_scales
    if GROUP_DIMS == D:
        scale = load_scale(scale_ptr + group[:, None], (r < T * H)[:, None])  # [ROWS, 1]
    else:
        at_scale = group[:, None] * (D // GROUP_DIMS) + d // GROUP_DIMS
        scale = load_scale(scale_ptr + at_scale, inside)  # [ROWS, D_TILE]
    codes = load_bits(row_ptr + CODES + (r * D)[:, None] + d, inside)  # [ROWS, D_TILE]
    magnitude = codes & 0x7F
    product = (widen(magnitude, CODE_E, CODE_M) * scale).to(tl.uint32, bitcast=True)
    size = product & 0x7FFFFFFF
    # a damaged scale may be NaN, infinite or negative
    nan = is_nan(magnitude, CODE_E, CODE_M) | (size > 0x7F800000)
    negative = (codes >> 7) ^ tl.where(nan, 0, product >> 31)
    bits = pattern(narrow(size.to(tl.float32, bitcast=True), E, M), nan, negative, E, M)
    bits = tl.where((token < valid)[:, None], bits, 0)
    start = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    at = block_ptr + start[:, None] + d.to(tl.int64) * stride_dim
    tl.store(at, bits.to(cache_ptr.dtype.element_ty), mask=inside)


def compress(
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    num_valid: torch.Tensor | None,
    out: EncodedBlocks,
    **unused: Any,
) -> None:
    """Encode a batch in one launch, without workspace or host sync.

    With a scale per token and head, or given ones, a program holds its elements in registers and
    reads the cache once. A scale over tokens needs all of its group before the first code: there
    one program walks the group twice. Two launches would need room for the maxima and atomics,
    while the second read of a group, some tens of KiB, is served by the GPU's cache.

    Traffic: reads the elements once, or twice for scales that tokens or heads share; writes the
    row.
    """
    codec, spec = cast(Fp8, out.codec), out.spec
    offsets, nbytes = row_layout(codec.sections(spec, 0), {})
    group_tokens, group_heads, group_dims = codec.group_shape(spec)
    per_token = codec.scale in PER_TOKEN
    d_pad = triton.next_power_of_2(group_dims)
    scales = row_scales(codec, spec, out)
    sizes = out.nbytes.contiguous()  # a copy if they have gaps, written back below
    valid = block_ids if num_valid is None else num_valid.contiguous()
    arguments = (
        int_view(cache), block_ids.contiguous(), valid,
        out.payload, scales, sizes, *cache.stride(), out.payload.stride(0), scales.stride(0),
    )  # fmt: skip
    constants = dict(
        shape_constants(codec, spec),
        LARGEST=torch.finfo(codec.target.dtype).max,
        MIN_SCALE=MIN_SCALE,
        SCALES=offsets.get("scales", nbytes),
        SCALES_END=nbytes if codec.given else offsets["scales"] + scales[:1].nbytes,
        POWER=codec.scale_dtype == "ue8m0",
        MIN_POWER=MIN_POWER,
        ROW=nbytes,
        MEASURED=not codec.given,
        HAS_VALID=num_valid is not None,
        GROUP_HEADS=group_heads,
    )
    if group_dims < spec.head_dim and codec.scale == "channel":
        tile = min(triton.next_power_of_2(spec.head_dim), 128)
        grid = (len(out), spec.num_kv_heads * triton.cdiv(spec.head_dim, tile))
        encode_channels_kernel[grid](
            *arguments, **constants, ROWS=TILE // tile, D_TILE=tile, enable_fp_fusion=False
        )
    elif d_pad <= TILE and (codec.given or per_token) and codec.scale != "token":
        rows, parts = TILE // d_pad, spec.head_dim // group_dims
        grid = (len(out), triton.cdiv(spec.block_size * spec.num_kv_heads * parts, rows))
        encode_rows_kernel[grid](
            *arguments, **constants, PARTS=parts, ROWS=rows, D_PAD=d_pad, enable_fp_fusion=False
        )
    else:
        grid = (len(out), spec.block_size * spec.num_kv_heads // group_tokens // group_heads)
        encode_groups_kernel[grid](
            *arguments, **constants, GROUP_TOKENS=group_tokens, PER_TOKEN=per_token, TILE=TILE,
            enable_fp_fusion=False,
        )  # fmt: skip
    if sizes is not out.nbytes:
        out.nbytes.copy_(sizes)


def decompress(
    encoded: EncodedBlocks, cache: torch.Tensor, block_ids: torch.Tensor, **unused: Any
) -> None:
    """Decode a batch in one launch, without workspace or host sync.

    Traffic: reads the rows, writes the elements once.
    """
    codec, spec = cast(Fp8, encoded.codec), encoded.spec
    group_tokens, group_heads, group_dims = codec.group_shape(spec)
    scales = row_scales(codec, spec, encoded)
    ids, elements = block_ids.contiguous(), int_view(cache)
    constants = dict(
        shape_constants(codec, spec),
        GROUP_TOKENS=group_tokens,
        GROUP_HEADS=group_heads,
        GROUP_DIMS=group_dims,
    )
    if spec.head_dim % 8 == 0 and group_dims % 8 == 0:
        chunks = spec.numel // 8
        tile = max(64, min(CHUNKS, chunks & -chunks))  # a power of two that leaves no rest
        decode_words_kernel[len(encoded), triton.cdiv(chunks, tile)](
            encoded.payload, scales, ids, elements,
            encoded.payload.stride(0), scales.stride(0), *cache.stride(),
            **constants, TILE=tile, num_warps=min(4, tile // 32), enable_fp_fusion=False,
        )  # fmt: skip
        return
    d_tile = min(triton.next_power_of_2(spec.head_dim), TILE)
    rows = TILE // d_tile
    grid = (
        len(encoded),
        triton.cdiv(spec.block_size * spec.num_kv_heads, rows),
        triton.cdiv(spec.head_dim, d_tile),
    )
    decode_kernel[grid](
        encoded.payload, scales, ids, elements,
        encoded.payload.stride(0), scales.stride(0), *cache.stride(),
        **constants, ROWS=rows, D_TILE=d_tile, enable_fp_fusion=False,
    )  # fmt: skip


def shape_constants(codec: Fp8, spec: BlockSpec) -> dict[str, int]:
    """Constants that every kernel here takes."""
    return {
        "T": spec.block_size,
        "H": spec.num_kv_heads,
        "D": spec.head_dim,
        "E": spec.format.exponent_bits,
        "M": spec.format.mantissa_bits,
        "CODE_E": codec.target.exponent_bits,
        "CODE_M": codec.target.mantissa_bits,
        "CODES": row_layout(codec.sections(spec, 0), {})[0]["codes"],
    }


def row_scales(codec: Fp8, spec: BlockSpec, rows: EncodedBlocks) -> torch.Tensor:
    """[n, scales of a row]: a view of the rows' part, or given fp32 scales under stride 0."""
    check_rows(rows.payload)
    if codec.given:
        return given_scales(codec.given, rows.payload.device).expand(len(rows), -1)
    begin = row_layout(codec.sections(spec, 0), {})[0]["scales"]
    count = math.prod(codec.scale_shape(spec))
    if codec.scale_dtype == "ue8m0":
        return rows.payload[:, begin : begin + count]
    return rows.payload[:, begin : begin + 4 * count].view(torch.float32)


@functools.lru_cache(maxsize=64)
def given_scales(given: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Supplied scales on a device; the copy, which waits for it, happens once."""
    return torch.tensor(given, dtype=torch.float32, device=device)[None]


KERNEL = TritonKernel(compress, decompress)
