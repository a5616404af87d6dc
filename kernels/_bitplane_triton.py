"""Columns, planes and rows of bitplane as its Triton kernels see them.

A block's geometry: T, H, D; W columns, a tile of 256 of them to a program. PAIRED: the cache is a
view whose elements are two neighbours of a head, so that a column of a slot is one load or store.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._float_triton import load_bits
from kvcodec.kernels._rows_triton import align16, block_offset


@triton.jit
def moved(word, FROM: tl.constexpr, AT: tl.constexpr, WIDTH: tl.constexpr):
    """WIDTH bits of both halves of a word, from bit FROM to bit AT; zeros around them."""
    MASK: tl.constexpr = (((1 << WIDTH) - 1) << AT) * 0x10001
    if FROM >= AT:
        shifted = word >> (FROM - AT)
    else:
        shifted = word << (AT - FROM)
    return shifted & MASK


@triton.jit
def pair_offsets(
    pair, stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """Offsets of a pair's elements in a block; the pair's own, twice, in a PAIRED cache."""
    if PAIRED:
        offset = block_offset(pair, stride_token, stride_head, stride_dim, H, D // 2)
        next_offset = offset
    else:
        offset = block_offset(2 * pair, stride_token, stride_head, stride_dim, H, D)
        next_offset = block_offset(2 * pair + 1, stride_token, stride_head, stride_dim, H, D)
    return offset, next_offset


@triton.jit
def live_halves(pair, column, n, W: tl.constexpr, TILE: tl.constexpr, PAIRED: tl.constexpr):
    """Which elements of pairs are among the first n, even ones and odd ones."""
    if PAIRED:  # n is even; without a factor the compiler sees that neighbours agree
        even = pair < n // 2
        odd = even
    else:
        even = 2 * pair < n
        odd = 2 * pair + 1 < n
    if W % TILE != 0:
        even = even & (column < W)
        odd = odd & (column < W)
    return even, odd


@triton.jit
def load_pair(cache_ptr, offset, next_offset, even, odd, M: tl.constexpr, PAIRED: tl.constexpr):
    """Patterns of pairs, zeros where not live: in halves of a word, twice; fp32, a word each."""
    if PAIRED:
        both = tl.load(cache_ptr + offset, mask=even, other=0)
        HALF: tl.constexpr = both.dtype.primitive_bitwidth // 2
        if HALF == 8:
            first = both.to(tl.uint16, bitcast=True).to(tl.uint32)
            first = (first | (first << 8)) & 0xFF00FF
            second = first
        elif HALF == 16:
            first = both.to(tl.uint32, bitcast=True)
            second = first
        else:
            wide = both.to(tl.uint64, bitcast=True)
            first = wide.to(tl.uint32)
            second = (wide >> 32).to(tl.uint32)
    else:
        first = load_bits(cache_ptr + offset, even)
        second = load_bits(cache_ptr + next_offset, odd)
        if M < 23:
            first = first | (second << 16)
            second = first
    return first, second


@triton.jit
def load_bases(bases_ptr, pair, C: tl.constexpr, E: tl.constexpr, AT: tl.constexpr):
    """Bases of both elements of a pair, at bit AT of the halves of a word."""
    if C % 2 == 0:
        both = tl.load(bases_ptr.to(tl.pointer_type(tl.uint16)) + pair % (C // 2)).to(tl.uint32)
        both = both | (both << 8)
    else:
        even = tl.load(bases_ptr + (2 * pair) % C).to(tl.uint32)
        odd = tl.load(bases_ptr + (2 * pair + 1) % C).to(tl.uint32)
        both = even | (odd << 16)
    return (both & (((1 << E) - 1) * 0x10001)) << AT


@triton.jit
def plane_rows(n, width: tl.constexpr, W: tl.constexpr):
    """Rows of words of a plane of n elements."""
    slots = (n + 2 * W - 1) // (2 * W)
    return (slots * width + 15) // 16


@triton.jit
def plane_words(
    n, W: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    TWO_LEVEL: tl.constexpr,
):  # fmt: skip
    """Words of all planes of n elements."""
    rows = plane_rows(n, 2, W) + plane_rows(n, W0, W)
    if not TWO_LEVEL:
        rows += plane_rows(n, 1, W)
    if W1 > 0:
        rows += plane_rows(n, W1, W)
    if W2 > 0:
        rows += plane_rows(n, W2, W)
    return rows * W


@triton.jit
def read_prefix(
    row_ptr, nbytes, row_nbytes,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, ITEMSIZE: tl.constexpr,
    W: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    TWO_LEVEL: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    """Mode, valid elements, words of the stream and escapes of a row; mode -1, n 0 if damaged.

    Mode 0 or 1 promises that the parts have their sizes and tile the row, inside its slot.
    """
    head_ptr = row_ptr.to(tl.pointer_type(tl.uint32))
    head = tl.load(head_ptr)
    mode = (head & 0xFFFF).to(tl.int32)  # with the reserved byte, which is zero
    valid = (head >> 16).to(tl.int32)
    n = tl.minimum(valid, T) * (H * D)
    count0 = tl.load(head_ptr + 1).to(tl.int64)
    words = tl.load(head_ptr + 2).to(tl.int64)
    escapes = words
    if TWO_LEVEL:
        escapes = tl.load(head_ptr + 3).to(tl.int64)
    else:
        words = words * 0
    plain = (count0 == n * ITEMSIZE) & (nbytes == 16 + align16(count0))
    coded = (n > 0) & (count0 == plane_words(n, W, W0, W1, W2, TWO_LEVEL)) & (escapes % 3 == 0)
    coded = coded & (nbytes == PLANES + 4 * count0 + align16(4 * words) + align16(escapes))
    sound = ((mode == 0) & plain) | ((mode == 1) & coded)
    sound = sound & (nbytes >= 16) & (nbytes <= row_nbytes) & (valid <= T)
    mode = tl.where(sound, mode, -1)
    n = tl.where(sound, n, 0)
    return mode, n, words.to(tl.int32), (escapes // 3).to(tl.int32)
