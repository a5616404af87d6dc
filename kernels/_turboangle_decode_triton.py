"""The decoder of turboangle on a GPU: a tile of vectors from codes to elements in one pass."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._float_triton import load_bits, narrow
from kvcodec.kernels._rotation_triton import hadamard
from kvcodec.kernels._turboangle_triton import (
    clamp,
    levels,
    log_of,
    norm_value,
    power_of,
    round_small,
    scale_for,
    unpack_codes,
)


@triton.jit
def decode_kernel(
    rows_ptr,  # uint8 [n, row bytes]
    stored_ptr,  # int16 or int32: the rows' norms [n, T H P] when WHOLE, else minmax [n, T H 2]
    ids_ptr,  # int64 [n]
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    flips_ptr,  # int32 [D], sign bits of the diagonal
    factors_ptr,  # fp32 [D]
    directions_ptr,  # fp32 [N, 2]
    powers_ptr,  # int64, powers of N
    logs_ptr,  # int32 [257], then the table of powers of two [257]
    stride_row, stride_stored, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    STORED_E: tl.constexpr, STORED_M: tl.constexpr, WHOLE: tl.constexpr, LOG: tl.constexpr,
    N: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, GROUP_NBYTES: tl.constexpr,
    A: tl.constexpr, NORM_BITS: tl.constexpr, NORM_GROUP: tl.constexpr,
    NORM_NBYTES: tl.constexpr, B: tl.constexpr, NORMS: tl.constexpr,
    STAGES: tl.constexpr, ROWS: tl.constexpr, D_PAD: tl.constexpr,
):  # fmt: skip
    """Decode ROWS vectors; nothing a row holds moves a store out of its block."""
    P: tl.constexpr = D // 2
    PAIRS: tl.constexpr = D_PAD // 2
    i = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + i * stride_row
    valid = tl.load(row_ptr + 2).to(tl.int32) | tl.load(row_ptr + 3).to(tl.int32) << 8
    v = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    token, head = v // H, v % H
    inside, place = v < T * H, v.to(tl.int64)
    p = tl.arange(0, PAIRS)[None, :]
    k = unpack_codes(
        row_ptr + 16 + place * A, inside, powers_ptr, P, N, BITS, GROUP, GROUP_NBYTES, A, PAIRS
    )
    stored = stored_ptr + i * stride_stored
    if WHOLE:
        data = load_bits(stored + place[:, None] * P + p, inside[:, None] & (p < P))
        norm = norm_value(data, STORED_E, STORED_M)
        down, up = scale_for(tl.max(norm, 1))
        r = norm * down[:, None]
    else:
        least = norm_value(load_bits(stored + place * 2, inside), STORED_E, STORED_M)
        most = norm_value(load_bits(stored + place * 2 + 1, inside), STORED_E, STORED_M)
        down, up = scale_for(most)
        low, high = levels(least * down, most * down, LOG)
        q = unpack_codes(
            row_ptr + NORMS + place * B, inside, powers_ptr,
            P, 1 << NORM_BITS, NORM_BITS, NORM_GROUP, NORM_NBYTES, B, PAIRS,
        ).to(tl.float32)  # fmt: skip
        top = tl.full([1], (1 << NORM_BITS) - 1.0, tl.float32)
        if LOG:
            base = log_of(logs_ptr, low)
            step = tl.div_rn((log_of(logs_ptr, high) - base).to(tl.float32), top)
            r = power_of(logs_ptr + 257, base[:, None] + round_small(q * step[:, None]))
        else:
            r = low[:, None] + q * tl.div_rn(high - low, top)[:, None]
        r = clamp(r, low[:, None], high[:, None])
    cos, sin = tl.load(directions_ptr + 2 * k), tl.load(directions_ptr + 2 * k + 1)
    y = tl.reshape(tl.join(r * cos, r * sin), [ROWS, D_PAD])
    d = tl.arange(0, D_PAD)[None, :]
    factors = tl.load(factors_ptr + d, mask=d < D, other=0.0)
    flips = tl.load(flips_ptr + d, mask=d < D, other=0)
    turned = hadamard(y, factors, D, STAGES, ROWS, D_PAD).to(tl.int32, bitcast=True) ^ flips
    x = turned.to(tl.float32, bitcast=True) * up[:, None]
    sign = tl.where(x < 0, 1, 0).to(tl.uint32) << (E + M)
    bits = narrow(tl.abs(x), E, M) | sign
    bits = tl.where((token < valid)[:, None], bits, 0)
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    start = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    at = block_ptr + start[:, None] + d.to(tl.int64) * stride_dim
    tl.store(at, bits.to(cache_ptr.dtype.element_ty), mask=inside[:, None] & (d < D))
