"""The decoder of fp8 for groups of eight dimensions or more: words of four codes, in registers."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._float_triton import narrow, round_high
from kvcodec.kernels._fp8_encode_triton import load_scale


@triton.jit
def product(
    words, size, turned, centre, radius,
    AT: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    CODE_E: tl.constexpr, CODE_M: tl.constexpr,
):  # fmt: skip
    """Elements of the codes in byte AT of words under scales of these sizes, uint32."""
    DOWN: tl.constexpr = 8 * AT - 23 + CODE_M
    field = (words >> DOWN if DOWN > 0 else words << -DOWN) & (0x7F << (23 - CODE_M))
    # a subnormal of the code is one of fp32 here, so the product with a power of two is exact
    value = field.to(tl.float32, bitcast=True) * 2.0 ** (128 - (1 << (CODE_E - 1)))
    if CODE_E == 5:
        value = tl.where(field < 0x7C << 21, value, float("inf"))
    result = (value * size).to(tl.uint32, bitcast=True)
    if CODE_E == 5:
        number = (field <= 0x7C << 21) & (result <= 0x7F800000)
    else:
        number = tl.abs(value - centre) <= radius
    negative = (words << (24 - 8 * AT)) & 0x80000000
    if E == 8 and M == 7:
        bits = tl.where(number, tl.minimum(result, 0x7F7F0000), turned | 0x7FC00000)
        bits = (round_high(bits, 16) ^ negative) >> 16
    else:
        QUIET: tl.constexpr = ((1 << E) - 1) << M | (1 << (M - 1))
        UP: tl.constexpr = 31 - E - M
        bits = narrow(result.to(tl.float32, bitcast=True), E, M)
        bits = tl.where(number, bits, turned >> UP | QUIET) ^ (negative >> UP)
    return bits


@triton.jit
def decode_words(
    words, scale,
    E: tl.constexpr, M: tl.constexpr, CODE_E: tl.constexpr, CODE_M: tl.constexpr,
):  # fmt: skip
    """Elements [N, 8], uint32, of words [N, 2] of four codes under scales [N, 1].

    Only a damaged scale is infinite, NaN or negative. E4M3 codes are numbers within `radius` of
    `centre`: all but NaN; no code under NaN; under infinity all but NaN and 0, whose product is
    NaN. A negative scale turns the signs of all codes; NaN, which keeps its own, turns twice.
    """
    bits = scale.to(tl.uint32, bitcast=True)
    turned = bits & 0x80000000
    size = tl.abs(scale)
    words ^= (bits.to(tl.int32, bitcast=True) >> 31).to(tl.uint32, bitcast=True) & 0x80808080
    infinite = size == float("inf")
    centre = tl.where(infinite, 240.0, 0.0)
    radius = tl.where(infinite, 239.999, 464.0 + size * 0.0)
    a = product(words, size, turned, centre, radius, 0, E, M, CODE_E, CODE_M)
    b = product(words, size, turned, centre, radius, 1, E, M, CODE_E, CODE_M)
    c = product(words, size, turned, centre, radius, 2, E, M, CODE_E, CODE_M)
    d = product(words, size, turned, centre, radius, 3, E, M, CODE_E, CODE_M)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (words.shape[0], 8))


@triton.jit
def decode_words_kernel(
    rows_ptr,  # uint8 [n, row bytes]
    scales_ptr,  # fp32 or UE8M0 bytes [n, scales of a row], the rows' own or given ones
    ids_ptr,  # int64 [n]
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    stride_row, stride_scales, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    CODE_E: tl.constexpr, CODE_M: tl.constexpr, CODES: tl.constexpr,
    GROUP_TOKENS: tl.constexpr, GROUP_HEADS: tl.constexpr, GROUP_DIMS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Decode TILE chunks of 8 elements; nothing a row holds moves a store out of its block."""
    i = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + i * stride_row
    valid = tl.load((row_ptr + 2).to(tl.pointer_type(tl.uint16))).to(tl.int32)
    local = tl.arange(0, TILE)
    chunk = tl.program_id(1) * TILE + local
    inside = chunk < T * H * D // 8
    r, d = chunk // (D // 8), chunk % (D // 8)
    token, head = r // H, r % H
    live = inside & (token < valid)  # other tokens have code 0 and scale 0
    group = token // GROUP_TOKENS * (H // GROUP_HEADS) + head // GROUP_HEADS
    group = group * (D // GROUP_DIMS) + d // (GROUP_DIMS // 8)
    scale = load_scale(scales_ptr + i * stride_scales + group, live)
    pair = tl.arange(0, 2)[None, :]
    words_ptr = (row_ptr + CODES).to(tl.pointer_type(tl.uint32)) + tl.program_id(1) * (2 * TILE)
    words = tl.load(words_ptr + 2 * local[:, None] + pair, mask=live[:, None], other=0)
    bits = decode_words(words, scale[:, None], E, M, CODE_E, CODE_M)  # [TILE, 8]
    start = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    at = start[:, None] + (8 * d[:, None] + tl.arange(0, 8)[None, :]).to(tl.int64) * stride_dim
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    tl.store(block_ptr + at, bits.to(cache_ptr.dtype.element_ty), mask=inside[:, None])
