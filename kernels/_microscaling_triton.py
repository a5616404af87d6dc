"""E2M1 codes, power-of-two scales and rows of groups for Triton kernels, in integer code."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def narrow_e2m1(value):
    """E2M1 magnitude of fp32 values >= 0: nearest even, saturating. Anything for NaN.

    Adding a power of two rounds to a multiple of its ulp and counts it: 1/2 for codes up to 2, 1
    up to 4, 2 from there. Each of the three counts is the least where it holds.
    """
    fine = (value + 4194304.0).to(tl.int32, bitcast=True) - 0x4A800000  # 2^22
    middle = (value + 8388608.0).to(tl.int32, bitcast=True) - 0x4AFFFFFE  # 2^23, and code 2
    coarse = (value + 16777216.0).to(tl.int32, bitcast=True) - 0x4B7FFFFC  # 2^24, and code 4
    return tl.minimum(tl.minimum(fine, middle), tl.minimum(coarse, 7))


@triton.jit
def widen_e2m1(magnitude):
    """fp32 values of E2M1 magnitudes given as uint32: as subnormals of fp32, times 2^126."""
    return (magnitude << 22).to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def power_of_two(field):
    """2^(field - 127) for uint32 fields 0 to 254."""
    return tl.where(field == 0, 1 << 22, field << 23).to(tl.float32, bitcast=True)


@triton.jit
def pack_e2m1(codes, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """[ROWS, GROUP] codes to [ROWS, GROUP / 2] bytes, element 2i in the low half."""
    low, high = tl.split(tl.reshape(codes, (ROWS, GROUP // 2, 2)))
    return (low | high << 4).to(tl.uint8)


@triton.jit
def group_offsets(
    group, stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Tokens [ROWS] of groups, and offsets [ROWS, GROUP] of their elements in a block, int64."""
    PER_HEAD: tl.constexpr = D // GROUP
    token = group // (H * PER_HEAD)
    head = group // PER_HEAD % H
    first = group % PER_HEAD * GROUP
    start = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    d = (first[:, None] + tl.arange(0, GROUP)[None, :]).to(tl.int64)
    return token, start[:, None] + d * stride_dim


@triton.jit
def frame_row(
    row_ptr, nbytes_ptr, valid,
    CODES_END: tl.constexpr, SCALES: tl.constexpr, SCALES_END: tl.constexpr, ROW: tl.constexpr,
    HAS_GLOBAL: tl.constexpr,
):  # fmt: skip
    """Write what is neither code nor scale: the prefix, zero padding, and the row's bytes."""
    lane = tl.arange(0, 16)
    prefix = tl.where(lane == 2, valid & 0xFF, tl.where(lane == 3, valid >> 8, 0))
    tl.store(row_ptr + lane, prefix.to(tl.uint8))
    zero = tl.zeros([16], tl.uint8)
    tl.store(row_ptr + CODES_END + lane, zero, mask=lane < SCALES - CODES_END)
    PADDED: tl.constexpr = (SCALES_END + 15) // 16 * 16
    tl.store(row_ptr + SCALES_END + lane, zero, mask=lane < PADDED - SCALES_END)
    if HAS_GLOBAL:
        tl.store(row_ptr + PADDED + lane, zero, mask=lane >= 4)
    tl.store(nbytes_ptr, ROW)
