"""The decoder of turboangle on a GPU: a tile of vectors from codes to elements in one pass."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._float_triton import load_bits, narrow
from kvcodec.kernels._rotation_triton import hadamard, hadamard_of_runs
from kvcodec.kernels._turboangle_triton import (
    clamp,
    code_of,
    levels,
    load_run,
    log_of,
    norm_value,
    power_of,
    round_small,
    scale_for,
    unpack_codes,
)


@triton.jit
def load_direction(directions_ptr, code):
    """Cosines and sines of codes, each pair in one access."""
    pair = tl.load(directions_ptr.to(tl.pointer_type(tl.uint64)) + code)
    cos = (pair & 0xFFFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)
    return cos, (pair >> 32).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def radius(q, low, high, base, step, logs_ptr, LOG: tl.constexpr):
    """Norms of codes given as fp32, between the levels of their vectors."""
    if LOG:
        r = power_of(logs_ptr + 257, base + round_small(q * step))
    else:
        r = low + q * step
    return clamp(r, low, high)


@triton.jit
def point(
    runs, levels_, directions_ptr, logs_ptr,
    J: tl.constexpr, BITS: tl.constexpr, NORM_BITS: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """Coordinates of pair J of runs."""
    cos, sin = load_direction(directions_ptr, code_of(runs[0], runs[1], BITS, J))
    q = code_of(runs[2], runs[3], NORM_BITS, J).to(tl.float32)
    r = radius(q, levels_[0], levels_[1], levels_[2], levels_[3], logs_ptr, LOG)
    return r * cos, r * sin


@triton.jit
def join8(a, b, c, d, e, f, g, h):
    """Eight tensors side by side, neighbours in a thread: [..., 2, 2, 2]."""
    even = tl.join(tl.join(a, e), tl.join(c, g))
    return tl.join(even, tl.join(tl.join(b, f), tl.join(d, h)))


@triton.jit
def join_points(
    runs, levels_, directions_ptr, logs_ptr,
    BITS: tl.constexpr, NORM_BITS: tl.constexpr, LOG: tl.constexpr,
    ROWS: tl.constexpr, D_PAD: tl.constexpr,
):  # fmt: skip
    """Elements [ROWS, D_PAD] of runs of 8 pairs, of which each is in one thread."""
    x0, y0 = point(runs, levels_, directions_ptr, logs_ptr, 0, BITS, NORM_BITS, LOG)
    x1, y1 = point(runs, levels_, directions_ptr, logs_ptr, 1, BITS, NORM_BITS, LOG)
    x2, y2 = point(runs, levels_, directions_ptr, logs_ptr, 2, BITS, NORM_BITS, LOG)
    x3, y3 = point(runs, levels_, directions_ptr, logs_ptr, 3, BITS, NORM_BITS, LOG)
    x4, y4 = point(runs, levels_, directions_ptr, logs_ptr, 4, BITS, NORM_BITS, LOG)
    x5, y5 = point(runs, levels_, directions_ptr, logs_ptr, 5, BITS, NORM_BITS, LOG)
    x6, y6 = point(runs, levels_, directions_ptr, logs_ptr, 6, BITS, NORM_BITS, LOG)
    x7, y7 = point(runs, levels_, directions_ptr, logs_ptr, 7, BITS, NORM_BITS, LOG)
    x = join8(x0, x1, x2, x3, x4, x5, x6, x7)
    y = join8(y0, y1, y2, y3, y4, y5, y6, y7)
    return tl.reshape(tl.join(x, y), [ROWS, D_PAD])


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
    flip_words_ptr,  # int32 [D / 16], flips of 16 neighbours, the first lowest, when RUNS
    stride_row, stride_stored, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    STORED_E: tl.constexpr, STORED_M: tl.constexpr, WHOLE: tl.constexpr, LOG: tl.constexpr,
    N: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, GROUP_NBYTES: tl.constexpr,
    A: tl.constexpr, NORM_BITS: tl.constexpr, NORM_GROUP: tl.constexpr,
    NORM_NBYTES: tl.constexpr, B: tl.constexpr, NORMS: tl.constexpr,
    STAGES: tl.constexpr, RUNS: tl.constexpr, ROWS: tl.constexpr, D_PAD: tl.constexpr,
):  # fmt: skip
    """Decode ROWS vectors; nothing a row holds moves a store out of its block."""
    P: tl.constexpr = D // 2
    PAIRS: tl.constexpr = D_PAD // 2
    i = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + i * stride_row
    valid = tl.load(row_ptr + 2).to(tl.int32) | tl.load(row_ptr + 3).to(tl.int32) << 8
    # lines of the tile: vectors, or the runs of 16 elements that a thread decodes
    PER: tl.constexpr = D_PAD // 16 if RUNS else 1
    WIDTH: tl.constexpr = D_PAD // PER
    line = tl.arange(0, ROWS * PER)
    v, run = tl.program_id(1) * ROWS + line // PER, line % PER
    token, head = v // H, v % H
    inside, place = v < T * H, v.to(tl.int64)
    stored = stored_ptr + i * stride_stored
    codes_at, norms_at = row_ptr + 16 + place * A, row_ptr + NORMS + place * B
    if not WHOLE:
        least = norm_value(load_bits(stored + place * 2, inside), STORED_E, STORED_M)
        most = norm_value(load_bits(stored + place * 2 + 1, inside), STORED_E, STORED_M)
        down, up = scale_for(most)
        low, high = levels(least * down, most * down, LOG)
        top = tl.full([1], (1 << NORM_BITS) - 1.0, tl.float32)
        if LOG:
            base = log_of(logs_ptr, low)
            step = tl.div_rn((log_of(logs_ptr, high) - base).to(tl.float32), top)
        else:
            base, step = low, tl.div_rn(high - low, top)
    d = (run * WIDTH)[:, None] + tl.arange(0, WIDTH)[None, :]
    if RUNS:
        codes = load_run(codes_at, run, inside, BITS, A)
        norms = load_run(norms_at, run, inside, NORM_BITS, B)
        runs, between = (codes[0], codes[1], norms[0], norms[1]), (low, high, base, step)
        y = join_points(runs, between, directions_ptr, logs_ptr, BITS, NORM_BITS, LOG, ROWS, D_PAD)
        y = hadamard_of_runs(y, tl.load(factors_ptr), D, STAGES, ROWS, D_PAD, 4)
        y = tl.reshape(y, [ROWS * PER, WIDTH])
        word = tl.load(flip_words_ptr + run)[:, None]
        flips = (word << (31 - tl.arange(0, 16))[None, :]) & -0x80000000
    else:
        p = tl.arange(0, PAIRS)[None, :]
        k = unpack_codes(codes_at, inside, powers_ptr, P, N, BITS, GROUP, GROUP_NBYTES, A, PAIRS)
        if WHOLE:
            data = load_bits(stored + place[:, None] * P + p, inside[:, None] & (p < P))
            norm = norm_value(data, STORED_E, STORED_M)
            down, up = scale_for(tl.max(norm, 1))
            r = norm * down[:, None]
        else:
            q = unpack_codes(
                norms_at, inside, powers_ptr,
                P, 1 << NORM_BITS, NORM_BITS, NORM_GROUP, NORM_NBYTES, B, PAIRS,
            ).to(tl.float32)  # fmt: skip
            r = radius(q, low[:, None], high[:, None], base[:, None], step[:, None], logs_ptr, LOG)
        cos, sin = load_direction(directions_ptr, k)
        y = tl.reshape(tl.join(r * cos, r * sin), [ROWS, D_PAD])
        factors = tl.load(factors_ptr + d, mask=d < D, other=0.0)
        flips = tl.load(flips_ptr + d, mask=d < D, other=0)
        y = hadamard(y, factors, D, STAGES, ROWS, D_PAD)
    turned = y.to(tl.int32, bitcast=True) ^ flips
    x = turned.to(tl.float32, bitcast=True) * up[:, None] + 0.0  # +0 for -0
    sign = x.to(tl.uint32, bitcast=True) >> 31 << (E + M)
    bits = narrow(tl.abs(x), E, M) | sign
    bits = tl.where((token < valid)[:, None], bits, 0)
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    start = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    at = block_ptr + start[:, None] + d.to(tl.int64) * stride_dim
    tl.store(at, bits.to(cache_ptr.dtype.element_ty), mask=inside[:, None] & (d < D))
