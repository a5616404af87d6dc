"""Float fields and sign-mantissa planes in Triton.

A format is given by its widths, E exponent bits and M mantissa bits; its planes by their widths W0,
W1, W2 (0: no such plane) and by Q, the fields of a lane's first group that ride in the lane's seed.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.bits import FloatFormat, plane_widths
from kvcodec.codecs.split import seeded


def format_constants(fmt: FloatFormat) -> dict[str, int]:
    """Constants that describe a format's fields."""
    return {"E": fmt.exponent_bits, "M": fmt.mantissa_bits}


def plane_constants(fmt: FloatFormat) -> dict[str, int]:
    """Constants that describe a format's planes; no format has more than three."""
    w0, w1, w2 = (*plane_widths(fmt.raw_bits), 0, 0)[:3]
    return {"W0": w0, "W1": w1, "W2": w2, "Q": seeded(fmt)[1]}


@triton.jit
def exponent_of(bits, E: tl.constexpr, M: tl.constexpr):
    """Exponent field, int32."""
    return ((bits >> M) & ((1 << E) - 1)).to(tl.int32)


@triton.jit
def raw_of(bits, E: tl.constexpr, M: tl.constexpr):
    """Sign and mantissa, `sign << M | mantissa`, uint32."""
    return ((bits >> (M + E)) << M) | (bits & ((1 << M) - 1))


@triton.jit
def join_fields(exponent, raw, E: tl.constexpr, M: tl.constexpr):
    """Bit patterns of exponent and sign-mantissa fields, uint32."""
    return ((raw >> M) << (M + E)) | (exponent << M) | (raw & ((1 << M) - 1))


@triton.jit
def count_bits(flags):
    """Bits that are set, uint32."""
    flags -= (flags >> 1) & 0x55555555
    flags = (flags & 0x33333333) + ((flags >> 2) & 0x33333333)
    flags = (flags + (flags >> 4)) & 0x0F0F0F0F
    return (flags * 0x01010101) >> 24


@triton.jit
def split4(groups, LANES: tl.constexpr):
    """Groups [LANES, 4] -> four [LANES], in registers."""
    even, odd = tl.split(tl.reshape(groups, (LANES, 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def join4(a, b, c, d, LANES: tl.constexpr):
    """Four [LANES] -> the elements of the groups in order, [4 * LANES], in registers.

    One axis and not two, so that a thread's groups become one wide store.
    """
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (4 * LANES,))


@triton.jit
def plane_nbytes(num_elements, Q: tl.constexpr, W: tl.constexpr, LANES: tl.constexpr):
    """Bytes of a plane of W-bit fields; Q fields of each lane's first group are not in it."""
    groups = (num_elements + 3) // 4
    return ((4 * groups - Q * tl.minimum(groups, LANES)) * W + 7) // 8


@triton.jit
def raw_nbytes(
    num_elements,
    Q: tl.constexpr,
    W0: tl.constexpr,
    W1: tl.constexpr,
    W2: tl.constexpr,
    LANES: tl.constexpr,
):
    """Bytes of all planes; a plane of width 0 has none."""
    total = plane_nbytes(num_elements, Q, W0, LANES)
    total += plane_nbytes(num_elements, 0, W1, LANES)
    return total + plane_nbytes(num_elements, 0, W2, LANES)


@triton.jit
def load_fields(plane_ptr, field, mask, W: tl.constexpr):
    """Fields of a plane, uint8 [nbytes], by number; uint32."""
    if W == 8:  # said apart, so that the compiler sees neighbouring bytes and loads them together
        fields = tl.load(plane_ptr + field, mask=mask, other=0).to(tl.uint32)
    else:
        byte = tl.load(plane_ptr + field // (8 // W), mask=mask, other=0).to(tl.uint32)
        fields = (byte >> (field % (8 // W) * W).to(tl.uint32)) & ((1 << W) - 1)
    return fields
