"""OCP MX (mxfp4, mxfp8) on a GPU: one launch for a batch, one program for a tile of groups."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl

from kvcodec.bits import int_view
from kvcodec.block import EncodedBlocks
from kvcodec.codecs._microscaling import MX_GROUP, Mx
from kvcodec.kernels._float_triton import finite, is_nan, load_bits, narrow, pattern, widen
from kvcodec.kernels._microscaling_decode_triton import (
    chunk_offsets,
    decode_tile,
    joined,
    load_codes,
    tile_chunks,
    times_power,
)
from kvcodec.kernels._microscaling_triton import (
    frame_row,
    group_offsets,
    narrow_e2m1,
    pack_e2m1,
    power_of_two,
)
from kvcodec.kernels._rows_triton import check_rows, valid_tokens
from kvcodec.kernels._triton import TritonKernel
from kvcodec.row import row_layout

ROWS = 64  # groups of a program's tile: 16 elements a thread of 4 warps


@triton.jit
def encode_kernel(
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    valid_ptr,  # int32 [n]; unused unless HAS_VALID
    rows_ptr,  # uint8 [n, ROW or more]
    nbytes_ptr,  # int32 [n]
    stride_block, stride_token, stride_head, stride_dim, stride_row,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    CODE_E: tl.constexpr, CODE_M: tl.constexpr, EMAX: tl.constexpr, GROUP: tl.constexpr,
    SCALES: tl.constexpr, ROW: tl.constexpr, HAS_VALID: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Encode a tile of groups, each in registers from its load to its codes."""
    i = tl.program_id(0).to(tl.int64)
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    valid = valid_tokens(valid_ptr, i, T, HAS_VALID)
    row_ptr = rows_ptr + i * stride_row
    GROUPS: tl.constexpr = T * H * D // GROUP
    WIDTH: tl.constexpr = GROUP // 2 if CODE_E == 2 else GROUP  # bytes of a group's codes
    if tl.program_id(1) == 0:
        frame_row(
            row_ptr, nbytes_ptr + i, valid,
            16 + GROUPS * WIDTH, SCALES, SCALES + GROUPS, ROW, False,
        )  # fmt: skip
    group = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    token, offsets = group_offsets(group, stride_token, stride_head, stride_dim, H, D, GROUP)
    used = (group < GROUPS) & (token < valid)
    bits = load_bits(block_ptr + offsets, used[:, None])  # [ROWS, GROUP]
    magnitude = bits & ((1 << (E + M)) - 1)
    amax = tl.max(finite(magnitude, E, M), 1)
    exponent = (widen(amax, E, M).to(tl.uint32, bitcast=True) >> 23).to(tl.int32)
    scale = tl.maximum(exponent - EMAX, 0)
    tl.store(row_ptr + SCALES + group, scale.to(tl.uint8), mask=group < GROUPS)
    inverse = (254 - scale << 23).to(tl.float32, bitcast=True)
    quotient = widen(magnitude, E, M) * inverse[:, None]
    nan, negative = is_nan(magnitude, E, M), bits >> (E + M)
    if CODE_E == 2:
        code = narrow_e2m1(quotient).to(tl.uint32) | negative << 3
        codes = pack_e2m1(tl.where(nan, 7, code), ROWS, GROUP)
    else:
        code = narrow(quotient, CODE_E, CODE_M)
        codes = pattern(code, nan, negative, CODE_E, CODE_M).to(tl.uint8)
    at = 16 + (group * WIDTH)[:, None] + tl.arange(0, WIDTH)[None, :]
    tl.store(row_ptr + at, codes, mask=(group < GROUPS)[:, None])


@triton.jit
def decode_kernel(
    rows_ptr,  # uint8 [n, row bytes]
    ids_ptr,  # int64 [n]
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    stride_row, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    CODE_E: tl.constexpr, CODE_M: tl.constexpr, GROUP: tl.constexpr,
    SCALES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Decode TILE chunks of 8 elements; nothing a row holds moves a store out of its block."""
    i = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + i * stride_row
    valid = tl.load((row_ptr + 2).to(tl.pointer_type(tl.uint16))).to(tl.int32)
    chunk, inside = tile_chunks(T * H * D // 8, TILE)
    token, offsets = chunk_offsets(chunk, stride_token, stride_head, stride_dim, H, D)
    live = inside & (token < valid)  # other tokens have codes and scale bytes of 0
    scale_ptr = row_ptr + SCALES + chunk // (GROUP // 8)
    scale = power_of_two(tl.load(scale_ptr, mask=live, other=0).to(tl.uint32))
    low, high = load_codes(row_ptr, chunk, live, CODE_E)
    FIFTH: tl.constexpr = 4 if CODE_E == 2 else 0  # place of the fifth code in its word
    bits = joined(
        times_power(low, scale, 0, E, M, CODE_E, CODE_M),
        times_power(low, scale, 1, E, M, CODE_E, CODE_M),
        times_power(low, scale, 2, E, M, CODE_E, CODE_M),
        times_power(low, scale, 3, E, M, CODE_E, CODE_M),
        times_power(high, scale, FIFTH, E, M, CODE_E, CODE_M),
        times_power(high, scale, FIFTH + 1, E, M, CODE_E, CODE_M),
        times_power(high, scale, FIFTH + 2, E, M, CODE_E, CODE_M),
        times_power(high, scale, FIFTH + 3, E, M, CODE_E, CODE_M),
    )
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

    Traffic: reads the elements once, writes the rows.
    """
    check_rows(out.payload)
    sizes = out.nbytes.contiguous()  # a copy if they have gaps, written back below
    valid = block_ids if num_valid is None else num_valid.contiguous()
    encode_kernel[grid(out)](
        int_view(cache), block_ids.contiguous(), valid, out.payload, sizes,
        *cache.stride(), out.payload.stride(0),
        **constants(out), EMAX=cast(Mx, out.codec).emax, ROW=out.codec.max_nbytes(out.spec),
        HAS_VALID=num_valid is not None, ROWS=ROWS, enable_fp_fusion=False,
    )  # fmt: skip
    if sizes is not out.nbytes:
        out.nbytes.copy_(sizes)


def decompress(
    encoded: EncodedBlocks, cache: torch.Tensor, block_ids: torch.Tensor, **unused: Any
) -> None:
    """Decode a batch in one launch, without workspace or host sync.

    Traffic: reads the rows, writes the elements once.
    """
    check_rows(encoded.payload)
    chunks = encoded.spec.numel // 8
    tile, warps = decode_tile(chunks)
    decode_kernel[len(encoded), triton.cdiv(chunks, tile)](
        encoded.payload, block_ids.contiguous(), int_view(cache),
        encoded.payload.stride(0), *cache.stride(),
        **constants(encoded), TILE=tile, num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip


def grid(rows: EncodedBlocks) -> tuple[int, int]:
    """A program for every tile of every row."""
    return len(rows), triton.cdiv(rows.spec.numel // MX_GROUP, ROWS)


def constants(rows: EncodedBlocks) -> dict[str, int]:
    """Constants that both kernels take."""
    codec, spec = cast(Mx, rows.codec), rows.spec
    return {
        "T": spec.block_size,
        "H": spec.num_kv_heads,
        "D": spec.head_dim,
        "E": spec.format.exponent_bits,
        "M": spec.format.mantissa_bits,
        "CODE_E": codec.target.exponent_bits,
        "CODE_M": codec.target.mantissa_bits,
        "GROUP": MX_GROUP,
        "SCALES": row_layout(codec.sections(spec, 0), {})[0]["scales"],
    }


KERNEL = TritonKernel(compress, decompress)
