"""The encoders of fp8 on a GPU: rows of a tile in one pass, groups of any size in two."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._float_triton import finite, is_nan, load_bits, narrow, pattern, widen
from kvcodec.kernels._rows_triton import valid_tokens


@triton.jit
def quantize(
    bits, scale,
    E: tl.constexpr, M: tl.constexpr, CODE_E: tl.constexpr, CODE_M: tl.constexpr,
):  # fmt: skip
    """Codes of elements under their scales; sign and NaN go by bits, around the division."""
    magnitude = bits & ((1 << (E + M)) - 1)
    code = narrow(tl.div_rn(widen(magnitude, E, M), scale), CODE_E, CODE_M)
    nan, negative = is_nan(magnitude, E, M), bits >> (E + M)
    return pattern(code, nan, negative, CODE_E, CODE_M).to(tl.uint8)


@triton.jit
def load_scale(scale_ptr, mask):
    """fp32 scales, from fp32 or from UE8M0 bytes; 0 is 2^-127 there, 255 NaN."""
    stored = tl.load(scale_ptr, mask=mask, other=0)
    if scale_ptr.dtype.element_ty == tl.uint8:
        power = stored.to(tl.uint32)
        bits = tl.where(power == 0, 0x400000, tl.where(power == 255, 0x7FC00000, power << 23))
        scale = bits.to(tl.uint32).to(tl.float32, bitcast=True)
    else:
        scale = stored
    return scale


@triton.jit
def scale_of(
    amax,
    E: tl.constexpr, M: tl.constexpr, LARGEST: tl.constexpr, MIN_SCALE: tl.constexpr,
    POWER: tl.constexpr, MIN_POWER: tl.constexpr,
):  # fmt: skip
    """Scale of a group from its largest finite magnitude."""
    scale = tl.div_rn(widen(amax, E, M), LARGEST)
    if POWER:
        bits = tl.maximum(scale, MIN_POWER).to(tl.uint32, bitcast=True)
        scale = ((bits + 0x7FFFFF) >> 23 << 23).to(tl.float32, bitcast=True)
    else:
        scale = tl.where(amax == 0, 1.0, tl.maximum(scale, MIN_SCALE))
    return scale


@triton.jit
def store_scale(scale_ptr, scale, used, mask, POWER: tl.constexpr):
    """Scales as a row holds them, zeros where they are not used."""
    if POWER:
        stored = (scale.to(tl.uint32, bitcast=True) >> 23).to(tl.uint8)
        tl.store(scale_ptr, tl.where(used, stored, 0).to(tl.uint8), mask=mask)
    else:
        tl.store(scale_ptr, tl.where(used, scale, 0.0), mask=mask)


@triton.jit
def frame_row(
    row_ptr, nbytes_ptr, valid,
    CODES_END: tl.constexpr, SCALES: tl.constexpr, SCALES_END: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """Write what is neither code nor scale: the prefix, zero padding, and the row's bytes."""
    lane = tl.arange(0, 16)
    prefix = tl.where(lane == 2, valid & 0xFF, tl.where(lane == 3, valid >> 8, 0))
    tl.store(row_ptr + lane, prefix.to(tl.uint8))
    zero = tl.zeros([16], tl.uint8)
    tl.store(row_ptr + CODES_END + lane, zero, mask=lane < SCALES - CODES_END)
    tl.store(row_ptr + SCALES_END + lane, zero, mask=lane < ROW - SCALES_END)
    tl.store(nbytes_ptr, ROW)


@triton.jit
def encode_rows_kernel(
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    valid_ptr,  # int32 [n]; unused unless HAS_VALID
    rows_ptr,  # uint8 [n, ROW or more]
    scales_ptr,  # [n, scales of a row]: the rows' own when MEASURED (POWER: UE8M0), else given ones
    nbytes_ptr,  # int32 [n]
    stride_block, stride_token, stride_head, stride_dim, stride_row, stride_scales,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    CODE_E: tl.constexpr, CODE_M: tl.constexpr, LARGEST: tl.constexpr, MIN_SCALE: tl.constexpr,
    POWER: tl.constexpr, MIN_POWER: tl.constexpr,
    CODES: tl.constexpr, SCALES: tl.constexpr, SCALES_END: tl.constexpr, ROW: tl.constexpr,
    MEASURED: tl.constexpr, HAS_VALID: tl.constexpr,
    GROUP_HEADS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, D_PAD: tl.constexpr,
):  # fmt: skip
    """Encode ROWS of the PARTS of token-heads, each under its own scale or a given one."""
    i = tl.program_id(0).to(tl.int64)
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    valid = valid_tokens(valid_ptr, i, T, HAS_VALID)
    row_ptr = rows_ptr + i * stride_row
    if tl.program_id(1) == 0:
        frame_row(row_ptr, nbytes_ptr + i, valid, CODES + T * H * D, SCALES, SCALES_END, ROW)
    WIDTH: tl.constexpr = D // PARTS
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    token, head = r // (H * PARTS), r // PARTS % H
    d = tl.arange(0, D_PAD)[None, :]  # [1, D_PAD]
    inside = (r < T * H * PARTS)[:, None] & (d < WIDTH)
    start = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    start += (r % PARTS * WIDTH).to(tl.int64) * stride_dim
    at = block_ptr + start[:, None] + d.to(tl.int64) * stride_dim
    bits = load_bits(at, inside & (token < valid)[:, None])  # [ROWS, D_PAD]
    scale_ptr = scales_ptr + i * stride_scales
    if MEASURED:
        amax = tl.max(finite(bits & ((1 << (E + M)) - 1), E, M), 1)
        scale = scale_of(amax, E, M, LARGEST, MIN_SCALE, POWER, MIN_POWER)
        store_scale(scale_ptr + r, scale, token < valid, r < T * H * PARTS, POWER)
    else:
        scale = tl.load(scale_ptr + head // GROUP_HEADS)
    codes = quantize(bits, scale[:, None], E, M, CODE_E, CODE_M)
    tl.store(row_ptr + CODES + (r * WIDTH)[:, None] + d, codes, mask=inside)


@triton.jit
def encode_groups_kernel(
    cache_ptr,  # as above, up to stride_scales
    ids_ptr,
    valid_ptr,
    rows_ptr,
    scales_ptr,
    nbytes_ptr,
    stride_block, stride_token, stride_head, stride_dim, stride_row, stride_scales,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    CODE_E: tl.constexpr, CODE_M: tl.constexpr, LARGEST: tl.constexpr, MIN_SCALE: tl.constexpr,
    POWER: tl.constexpr, MIN_POWER: tl.constexpr,
    CODES: tl.constexpr, SCALES: tl.constexpr, SCALES_END: tl.constexpr, ROW: tl.constexpr,
    MEASURED: tl.constexpr, HAS_VALID: tl.constexpr,
    GROUP_TOKENS: tl.constexpr, GROUP_HEADS: tl.constexpr, PER_TOKEN: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Encode one group, whatever its size: a pass for the scale, a pass for the codes."""
    i = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    valid = valid_tokens(valid_ptr, i, T, HAS_VALID)
    row_ptr = rows_ptr + i * stride_row
    if group == 0:
        frame_row(row_ptr, nbytes_ptr + i, valid, CODES + T * H * D, SCALES, SCALES_END, ROW)
    token = group // (H // GROUP_HEADS) * GROUP_TOKENS
    head = group % (H // GROUP_HEADS) * GROUP_HEADS
    COUNT: tl.constexpr = GROUP_TOKENS * GROUP_HEADS * D
    scale_ptr = scales_ptr + i * stride_scales + group
    if MEASURED:
        amax = tl.zeros([TILE], tl.uint32)
        for begin in range(0, COUNT, TILE):
            bits, _ = group_tile(
                block_ptr, begin, token, head, valid, stride_token, stride_head, stride_dim,
                H, D, GROUP_HEADS, COUNT, TILE,
            )  # fmt: skip
            amax = tl.maximum(amax, finite(bits & ((1 << (E + M)) - 1), E, M))
        scale = scale_of(tl.max(amax, 0), E, M, LARGEST, MIN_SCALE, POWER, MIN_POWER)
        store_scale(scale_ptr, scale, (token < valid) | (not PER_TOKEN), True, POWER)
    else:
        scale = tl.load(scale_ptr)
    for begin in range(0, COUNT, TILE):
        bits, place = group_tile(
            block_ptr, begin, token, head, valid, stride_token, stride_head, stride_dim,
            H, D, GROUP_HEADS, COUNT, TILE,
        )  # fmt: skip
        codes = quantize(bits, scale, E, M, CODE_E, CODE_M)
        tl.store(row_ptr + CODES + place, codes, mask=begin + tl.arange(0, TILE) < COUNT)


@triton.jit
def encode_channels_kernel(
    cache_ptr,  # as above, up to stride_scales
    ids_ptr,
    valid_ptr,
    rows_ptr,
    scales_ptr,
    nbytes_ptr,
    stride_block, stride_token, stride_head, stride_dim, stride_row, stride_scales,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    CODE_E: tl.constexpr, CODE_M: tl.constexpr, LARGEST: tl.constexpr, MIN_SCALE: tl.constexpr,
    POWER: tl.constexpr, MIN_POWER: tl.constexpr,
    CODES: tl.constexpr, SCALES: tl.constexpr, SCALES_END: tl.constexpr, ROW: tl.constexpr,
    MEASURED: tl.constexpr, HAS_VALID: tl.constexpr, GROUP_HEADS: tl.constexpr,
    ROWS: tl.constexpr, D_TILE: tl.constexpr,
):  # fmt: skip
    """Encode D_TILE channels of a head: a pass over the tokens for scales, a pass for codes."""
    i = tl.program_id(0).to(tl.int64)
    TILES: tl.constexpr = (D + D_TILE - 1) // D_TILE
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    valid = valid_tokens(valid_ptr, i, T, HAS_VALID)
    row_ptr = rows_ptr + i * stride_row
    if tl.program_id(1) == 0:
        frame_row(row_ptr, nbytes_ptr + i, valid, CODES + T * H * D, SCALES, SCALES_END, ROW)
    head = tl.program_id(1) // TILES
    d = tl.program_id(1) % TILES * D_TILE + tl.arange(0, D_TILE)[None, :]  # [1, D_TILE]
    block_ptr += head.to(tl.int64) * stride_head + d.to(tl.int64) * stride_dim
    amax = tl.zeros([1, D_TILE], tl.uint32)
    for begin in range(0, T, ROWS):
        token = begin + tl.arange(0, ROWS)[:, None]
        at = block_ptr + token.to(tl.int64) * stride_token
        bits = load_bits(at, (token < valid) & (d < D))  # [ROWS, D_TILE]
        most = tl.max(finite(bits & ((1 << (E + M)) - 1), E, M), 0, keep_dims=True)
        amax = tl.maximum(amax, most)
    scale = scale_of(amax, E, M, LARGEST, MIN_SCALE, POWER, MIN_POWER)
    store_scale(scales_ptr + i * stride_scales + head * D + d, scale, d < D, d < D, POWER)
    for begin in range(0, T, ROWS):
        token = begin + tl.arange(0, ROWS)[:, None]
        at = block_ptr + token.to(tl.int64) * stride_token
        bits = load_bits(at, (token < valid) & (d < D))
        codes = quantize(bits, scale, E, M, CODE_E, CODE_M)
        place = (token * H + head) * D + d
        tl.store(row_ptr + CODES + place, codes, mask=(token < T) & (d < D))


@triton.jit
def group_tile(
    block_ptr, begin, first_token, first_head, valid, stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr,
    GROUP_HEADS: tl.constexpr, COUNT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Patterns of elements `begin...` of a group, and their places among the row's codes."""
    e = begin + tl.arange(0, TILE)
    d = e % D
    token = first_token + e // (D * GROUP_HEADS)
    head = first_head + e // D % GROUP_HEADS
    at = block_ptr + token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    bits = load_bits(at + d.to(tl.int64) * stride_dim, (e < COUNT) & (token < valid))
    return bits, (token * H + head) * D + d
