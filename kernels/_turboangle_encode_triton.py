"""The encoder of turboangle on a GPU: a tile of vectors from elements to codes in one pass."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._float_triton import load_bits, narrow, widen
from kvcodec.kernels._rotation_triton import hadamard
from kvcodec.kernels._rows_triton import valid_tokens
from kvcodec.kernels._turboangle_triton import (
    clamp,
    levels,
    log_of,
    norm_value,
    pack_codes,
    round_small,
    scale_for,
)


@triton.jit
def nearest(a, b, edges_ptr, N: tl.constexpr, TURNS: tl.constexpr):
    """Codes of the directions nearest to (a, b), int32.

    A polynomial estimates the angle to a tenth of a step; it decides nothing. The boundary that is
    nearest by it is compared exactly.
    """
    x, y = tl.abs(a), tl.abs(b)
    s = tl.div_rn(tl.minimum(x, y), tl.maximum(x, y) + 8.271806125530277e-25)  # 2^-80
    s2 = s * s
    octant = s * (0.995354 + s2 * (s2 * 0.079331 - 0.288679))
    quadrant = tl.where(y > x, 1.5707964 - octant, octant)
    half = tl.where(a < 0, 3.1415927 - quadrant, quadrant)
    angle = tl.where(b < 0, 6.2831855 - half, half)
    i = tl.minimum((angle * TURNS).to(tl.int32), N - 1)
    past = b * tl.load(edges_ptr + 2 * i) > a * tl.load(edges_ptr + 2 * i + 1)
    code = tl.where(past, i + 1, i)
    return tl.where(code < N, code, 0)


@triton.jit
def frame_row(
    row_ptr, nbytes_ptr, valid,
    ANGLES_END: tl.constexpr, NORMS: tl.constexpr, NORMS_END: tl.constexpr, ENDS: tl.constexpr,
    ENDS_END: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """Write the prefix, the padding of the parts, and the row's bytes."""
    lane = tl.arange(0, 16)
    prefix = tl.where(lane == 2, valid & 0xFF, tl.where(lane == 3, valid >> 8, 0))
    tl.store(row_ptr + lane, prefix.to(tl.uint8))
    zero = tl.zeros([16], tl.uint8)
    tl.store(row_ptr + ANGLES_END + lane, zero, mask=lane < NORMS - ANGLES_END)
    tl.store(row_ptr + NORMS_END + lane, zero, mask=lane < ENDS - NORMS_END)
    tl.store(row_ptr + ENDS_END + lane, zero, mask=lane < ROW - ENDS_END)
    tl.store(nbytes_ptr, ROW)


@triton.jit
def encode_kernel(
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    valid_ptr,  # int32 [n]; unused unless HAS_VALID
    rows_ptr,  # uint8 [n, ROW or more]
    stored_ptr,  # int16 or int32: the rows' norms [n, T H P] when WHOLE, else minmax [n, T H 2]
    nbytes_ptr,  # int32 [n]
    flips_ptr,  # int32 [D], sign bits of the diagonal
    factors_ptr,  # fp32 [D]
    edges_ptr,  # fp32 [N, 2], boundaries
    powers_ptr,  # int64, powers of N
    logs_ptr,  # int32 [257]
    stride_block, stride_token, stride_head, stride_dim, stride_row, stride_stored,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    STORED_E: tl.constexpr, STORED_M: tl.constexpr, WHOLE: tl.constexpr, LOG: tl.constexpr,
    N: tl.constexpr, TURNS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    GROUP_NBYTES: tl.constexpr, A: tl.constexpr, NORM_BITS: tl.constexpr,
    NORM_GROUP: tl.constexpr, NORM_NBYTES: tl.constexpr, B: tl.constexpr,
    NORMS: tl.constexpr, ENDS: tl.constexpr, ENDS_END: tl.constexpr, ROW: tl.constexpr,
    HAS_VALID: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr, D_PAD: tl.constexpr,
):  # fmt: skip
    """Encode ROWS vectors: rotate, then angles, then norms between their minimum and maximum."""
    P: tl.constexpr = D // 2
    PAIRS: tl.constexpr = D_PAD // 2
    MAX: tl.constexpr = (((1 << E) - 1) << M) - 1
    i = tl.program_id(0).to(tl.int64)
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    valid = valid_tokens(valid_ptr, i, T, HAS_VALID)
    row_ptr = rows_ptr + i * stride_row
    if tl.program_id(1) == 0:
        frame_row(
            row_ptr, nbytes_ptr + i, valid, 16 + T * H * A, NORMS, NORMS + T * H * B, ENDS,
            ENDS_END, ROW,
        )  # fmt: skip
    v = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    token, head = v // H, v % H
    d = tl.arange(0, D_PAD)[None, :]  # [1, D_PAD]
    start = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    at = block_ptr + start[:, None] + d.to(tl.int64) * stride_dim
    bits = load_bits(at, ((token < valid) & (v < T * H))[:, None] & (d < D))  # [ROWS, D_PAD]
    magnitude = bits & ((1 << (E + M)) - 1)
    number = tl.minimum(tl.where(magnitude > MAX + 1, 0, magnitude), MAX)
    down, up = scale_for(widen(tl.max(number, 1), E, M))  # [ROWS]
    flips = tl.load(flips_ptr + d, mask=d < D, other=0).to(tl.uint32, bitcast=True)
    sign = ((bits >> (E + M)) << 31) ^ flips
    x = (widen(number, E, M).to(tl.uint32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    factors = tl.load(factors_ptr + d, mask=d < D, other=0.0)
    y = hadamard(x * down[:, None], factors, D, STAGES, ROWS, D_PAD)
    y = tl.where(tl.abs(y) < 8.673617379884035e-19, 0.0, y)  # 2^-60
    a, b = tl.split(tl.reshape(y, [ROWS, PAIRS, 2]))  # [ROWS, PAIRS]
    p = tl.arange(0, PAIRS)[None, :]
    real, inside = p < P, v < T * H
    codes = tl.where(real, nearest(a, b, edges_ptr, N, TURNS), 0)
    place = v.to(tl.int64)
    pack_codes(
        codes, row_ptr + 16 + place * A, inside, powers_ptr,
        P, N, BITS, GROUP, GROUP_NBYTES, A, ROWS, PAIRS,
    )  # fmt: skip
    r = tl.sqrt_rn(a * a + b * b)
    stored = stored_ptr + i * stride_stored
    kind = stored_ptr.dtype.element_ty
    if WHOLE:
        data = narrow(r * up[:, None], STORED_E, STORED_M)
        keep = inside[:, None] & real
        tl.store(stored + place[:, None] * P + p, data.to(kind), mask=keep)
    else:
        least = tl.min(tl.where(real, r, float("inf")), 1)
        most = tl.max(tl.where(real, r, 0.0), 1)
        least, most = narrow(least * up, STORED_E, STORED_M), narrow(most * up, STORED_E, STORED_M)
        tl.store(stored + place * 2, least.to(kind), mask=inside)
        tl.store(stored + place * 2 + 1, most.to(kind), mask=inside)
        low, high = levels(
            norm_value(least, STORED_E, STORED_M) * down,
            norm_value(most, STORED_E, STORED_M) * down,
            LOG,
        )
        position = clamp(r, low[:, None], high[:, None])
        if LOG:
            base = log_of(logs_ptr, low)
            above = (log_of(logs_ptr, position) - base[:, None]).to(tl.float32)
            span = (log_of(logs_ptr, high) - base).to(tl.float32)
        else:
            above, span = position - low[:, None], high - low
        span = tl.where(span == 0, 1.0, span)
        q = round_small(tl.div_rn(above, span[:, None]) * ((1 << NORM_BITS) - 1.0))
        pack_codes(
            tl.where(real, q, 0), row_ptr + NORMS + place * B, inside, powers_ptr,
            P, 1 << NORM_BITS, NORM_BITS, NORM_GROUP, NORM_NBYTES, B, ROWS, PAIRS,
        )  # fmt: skip
