"""nvfp4 on a GPU: one launch for a batch, straight between the paged cache and the rows."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl

from kvcodec.bits import int_view
from kvcodec.block import EncodedBlocks
from kvcodec.codecs.nvfp4 import GROUP, LARGEST, MAX_GLOBAL, MIN_GLOBAL, Nvfp4
from kvcodec.kernels._float_triton import finite, is_nan, load_bits, narrow, widen
from kvcodec.kernels._microscaling_decode_triton import (
    chunk_offsets,
    decode_tile,
    joined,
    load_codes,
    tile_chunks,
    times_step,
)
from kvcodec.kernels._microscaling_triton import (
    frame_row,
    group_offsets,
    narrow_e2m1,
    pack_e2m1,
    widen_e2m1,
)
from kvcodec.kernels._rows_triton import check_rows, valid_tokens
from kvcodec.kernels._triton import TritonKernel
from kvcodec.kernels.fp8_triton import given_scales
from kvcodec.row import row_layout

ROWS = 128  # groups of a program's tile: 16 elements a thread of 4 warps


@triton.jit
def scale_of(amax, global_scale, CODE: tl.constexpr, E: tl.constexpr, M: tl.constexpr):
    """E4M3 magnitudes of scales that give the largest values of groups this code."""
    ratio = tl.div_rn(widen(amax, E, M), CODE * global_scale)
    clamped = tl.minimum(tl.maximum(ratio, 0.001953125), 448.0)
    return tl.where(amax == 0, 0x38, narrow(clamped, 4, 3))


@triton.jit
def quantize(size, scale, global_scale):
    """E2M1 magnitudes [ROWS, 16] of fp32 values under E4M3 scales [ROWS] and the global one."""
    step = widen(scale, 4, 3) * global_scale
    return narrow_e2m1(tl.div_rn(size, step[:, None])).to(tl.uint32)


@triton.jit
def squared_error(size, scale, code, global_scale, ROWS: tl.constexpr):
    """The error of groups that formats/nvfp4.md defines; infinite and NaN elements are infinite."""
    back = widen_e2m1(code) * widen(scale, 4, 3)[:, None]
    error = tl.div_rn(size, global_scale) - back
    terms = tl.where(size == float("inf"), 0.0, error * error)
    terms = tl.sum(tl.reshape(terms, (ROWS, 2, 8)), 1)
    terms = tl.sum(tl.reshape(terms, (ROWS, 2, 4)), 1)
    terms = tl.sum(tl.reshape(terms, (ROWS, 2, 2)), 1)
    return tl.sum(terms, 1)


@triton.jit
def encode_kernel(
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    valid_ptr,  # int32 [n]; unused unless HAS_VALID
    rows_ptr,  # uint8 [n, ROW or more]
    globals_ptr,  # fp32 [n]: the rows' own when MEASURED, else the given one
    nbytes_ptr,  # int32 [n]
    stride_block, stride_token, stride_head, stride_dim, stride_row, stride_global,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    GROUP: tl.constexpr, LARGEST: tl.constexpr, MIN_GLOBAL: tl.constexpr,
    SCALES: tl.constexpr, ROW: tl.constexpr, HAS_VALID: tl.constexpr, MEASURED: tl.constexpr,
    FOUR_OVER_SIX: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Encode SPAN groups of a block, which are all of them when the global scale is measured."""
    i = tl.program_id(0).to(tl.int64)
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    valid = valid_tokens(valid_ptr, i, T, HAS_VALID)
    row_ptr = rows_ptr + i * stride_row
    GROUPS: tl.constexpr = T * H * D // GROUP
    if tl.program_id(1) == 0:
        frame_row(
            row_ptr, nbytes_ptr + i, valid,
            16 + GROUPS * GROUP // 2, SCALES, SCALES + GROUPS, ROW, MEASURED,
        )  # fmt: skip
    if MEASURED:
        most = tl.zeros([ROWS], tl.uint32)
        for begin in range(0, SPAN, ROWS):
            group = begin + tl.arange(0, ROWS)
            token, offsets = group_offsets(
                group, stride_token, stride_head, stride_dim, H, D, GROUP
            )
            bits = load_bits(block_ptr + offsets, ((group < GROUPS) & (token < valid))[:, None])
            most = tl.maximum(most, tl.max(finite(bits & ((1 << (E + M)) - 1), E, M), 1))
        largest = tl.max(most, 0)
        global_scale = tl.maximum(tl.div_rn(widen(largest, E, M), LARGEST), MIN_GLOBAL)
        global_scale = tl.where(largest == 0, 1.0, global_scale)
        tl.store(globals_ptr + i * stride_global, global_scale)
    else:
        global_scale = tl.load(globals_ptr + i * stride_global)
    for begin in range(0, SPAN, ROWS):
        group = tl.program_id(1) * SPAN + begin + tl.arange(0, ROWS)
        token, offsets = group_offsets(group, stride_token, stride_head, stride_dim, H, D, GROUP)
        used = (group < GROUPS) & (token < valid)
        bits = load_bits(block_ptr + offsets, used[:, None])  # [ROWS, GROUP]
        magnitude = bits & ((1 << (E + M)) - 1)
        amax = tl.max(finite(magnitude, E, M), 1)
        nan = is_nan(magnitude, E, M)
        size = tl.where(nan, float("inf"), widen(magnitude, E, M))
        scale = scale_of(amax, global_scale, 6.0, E, M)
        code = quantize(size, scale, global_scale)
        if FOUR_OVER_SIX:
            other = scale_of(amax, global_scale, 4.0, E, M)
            other_code = quantize(size, other, global_scale)
            kept = squared_error(size, scale, code, global_scale, ROWS)
            better = squared_error(size, other, other_code, global_scale, ROWS) < kept
            scale = tl.where(better, other, scale)
            code = tl.where(better[:, None], other_code, code)
        negative = tl.where(nan, 0, bits >> (E + M))
        codes = pack_e2m1(code | negative << 3, ROWS, GROUP)
        scale = tl.where(token < valid, scale, 0)
        tl.store(row_ptr + SCALES + group, scale.to(tl.uint8), mask=group < GROUPS)
        at = 16 + (group * (GROUP // 2))[:, None] + tl.arange(0, GROUP // 2)[None, :]
        tl.store(row_ptr + at, codes, mask=(group < GROUPS)[:, None])


@triton.jit
def decode_kernel(
    rows_ptr,  # uint8 [n, row bytes]
    globals_ptr,  # fp32 [n], the rows' own or the given one
    ids_ptr,  # int64 [n]
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    stride_row, stride_global, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    GROUP: tl.constexpr, MAX_GLOBAL: tl.constexpr, SCALES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Decode TILE chunks of 8 elements; nothing a row holds moves a store out of its block."""
    i = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + i * stride_row
    valid = tl.load((row_ptr + 2).to(tl.pointer_type(tl.uint16))).to(tl.int32)
    chunk, inside = tile_chunks(T * H * D // 8, TILE)
    token, offsets = chunk_offsets(chunk, stride_token, stride_head, stride_dim, H, D)
    live = inside & (token < valid)  # other tokens have codes and steps of 0
    scale_ptr = row_ptr + SCALES + chunk // (GROUP // 8)
    scale = tl.load(scale_ptr, mask=live, other=0).to(tl.uint32) & 0x7F
    # unused tokens are 0 times this, which must not be NaN: damaged, it may be NaN or infinite
    global_scale = tl.minimum(tl.abs(tl.load(globals_ptr + i * stride_global)), MAX_GLOBAL)
    step = widen(scale, 4, 3) * global_scale
    words, _ = load_codes(row_ptr, chunk, live, 2)
    bits = joined(
        times_step(words, step, 0, E, M), times_step(words, step, 1, E, M),
        times_step(words, step, 2, E, M), times_step(words, step, 3, E, M),
        times_step(words, step, 4, E, M), times_step(words, step, 5, E, M),
        times_step(words, step, 6, E, M), times_step(words, step, 7, E, M),
    )  # fmt: skip
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    tl.store(block_ptr + offsets, bits.to(cache_ptr.dtype.element_ty), mask=inside[:, None])


def compress(
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    num_valid: torch.Tensor | None,
    out: EncodedBlocks,
    **unused: Any,
) -> None:
    """Encode a batch in one launch, without workspace or host sync.

    A measured global scale needs all of its block before the first code: one program walks the
    block twice, and the second read is served by the GPU's cache. Under a given one every tile has
    a program of its own.

    Traffic: reads the elements twice, or once under a given scale; writes the rows.
    """
    codec, spec = cast(Nvfp4, out.codec), out.spec
    groups, measured = spec.numel // GROUP, codec.given is None
    globals_ = global_scales(out)
    sizes = out.nbytes.contiguous()  # a copy if they have gaps, written back below
    valid = block_ids if num_valid is None else num_valid.contiguous()
    span = triton.cdiv(groups, ROWS) * ROWS if measured else ROWS
    encode_kernel[(len(out), triton.cdiv(groups, span))](
        int_view(cache), block_ids.contiguous(), valid, out.payload, globals_, sizes,
        *cache.stride(), out.payload.stride(0), globals_.stride(0),
        **constants(out), LARGEST=LARGEST, MIN_GLOBAL=MIN_GLOBAL, ROW=codec.max_nbytes(spec),
        HAS_VALID=num_valid is not None, MEASURED=measured, FOUR_OVER_SIX=codec.four_over_six,
        SPAN=span, ROWS=ROWS, enable_fp_fusion=False,
    )  # fmt: skip
    if sizes is not out.nbytes:
        out.nbytes.copy_(sizes)


def decompress(
    encoded: EncodedBlocks, cache: torch.Tensor, block_ids: torch.Tensor, **unused: Any
) -> None:
    """Decode a batch in one launch, without workspace or host sync.

    Traffic: reads the rows, writes the elements once.
    """
    globals_ = global_scales(encoded)
    chunks = encoded.spec.numel // 8
    tile, warps = decode_tile(chunks)
    decode_kernel[len(encoded), triton.cdiv(chunks, tile)](
        encoded.payload, globals_, block_ids.contiguous(), int_view(cache),
        encoded.payload.stride(0), globals_.stride(0), *cache.stride(),
        **constants(encoded), MAX_GLOBAL=MAX_GLOBAL, TILE=tile, num_warps=warps,
        enable_fp_fusion=False,
    )  # fmt: skip


def constants(rows: EncodedBlocks) -> dict[str, int]:
    """Constants that both kernels take."""
    spec = rows.spec
    return {
        "T": spec.block_size,
        "H": spec.num_kv_heads,
        "D": spec.head_dim,
        "E": spec.format.exponent_bits,
        "M": spec.format.mantissa_bits,
        "GROUP": GROUP,
        "SCALES": row_layout(rows.codec.sections(spec, 0), {})[0]["scales"],
    }


def global_scales(rows: EncodedBlocks) -> torch.Tensor:
    """fp32 [n]: a view of the rows' own, or the given one under stride 0."""
    check_rows(rows.payload)
    codec = cast(Nvfp4, rows.codec)
    if codec.given is not None:
        return given_scales((codec.given,), rows.payload.device)[0].expand(len(rows))
    begin = row_layout(codec.sections(rows.spec, 0), {})[0]["global"]
    return rows.payload[:, begin : begin + 4].view(torch.float32)[:, 0]


KERNEL = TritonKernel(compress, decompress)
