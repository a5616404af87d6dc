"""Codes and fields of pairs of elements in the halves of words, for the encoder of bitplane."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._bitplane_triton import load_bases, moved
from kvcodec.kernels._bits_triton import raw_of


@triton.jit
def distances_from(bases_ptr, pair, C: tl.constexpr, E: tl.constexpr, TWO_LEVEL: tl.constexpr):
    """What to add to exponents, in halves, so that `codes_of` sees them as distances."""
    FROM: tl.constexpr = (1 << E) + (7 if TWO_LEVEL else 0)
    return FROM * 0x10001 - load_bases(bases_ptr, pair, C, E, 0)


@triton.jit
def codes_of(
    first, second, distances, even, odd,
    E: tl.constexpr, M: tl.constexpr, TWO_LEVEL: tl.constexpr,
):  # fmt: skip
    """Codes and flags of escapes in the halves of words; zeros where there is no element.

    A code of 3 and up is, TWO_LEVEL, code 3 with what is over it as second code.
    """
    ONES: tl.constexpr = 0x10001
    if M == 23:
        exponents = (first >> 23) & 0xFF | (second >> 7) & 0xFF0000
    else:
        exponents = first >> M
    # a half cannot overflow into its neighbour: exponents and distances have at most 9 bits
    near = ((exponents & (((1 << E) - 1) * ONES)) + distances) & (((1 << E) - 1) * ONES)
    live = tl.where(even, 0xFFFF, 0).to(tl.uint32) | tl.where(odd, 0xFFFF0000, 0).to(tl.uint32)
    LEAST: tl.constexpr = 11 if TWO_LEVEL else 8  # of an escape
    out = ((near + ((1 << E) - LEAST) * ONES) >> E) & ONES & live
    code = near
    if TWO_LEVEL:  # 0..6 are the exponents under the base, codes 4..10; 7..10 are codes 0..3
        code = near + 4 * ONES - 11 * (((near + 9 * ONES) >> 4) & ONES)
    return code & (live ^ (out * 0xFFFF)), out


@triton.jit
def put_field(
    word, first, second, slot: tl.constexpr,
    E: tl.constexpr, M: tl.constexpr, SHIFT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add a slot's bits of one plane of the fields to a word of the plane."""
    AT: tl.constexpr = WIDTH * (slot % (16 // WIDTH))
    if M == 23:
        low = (raw_of(first, E, M) >> SHIFT) & 0xFF
        word |= (low | ((raw_of(second, E, M) >> SHIFT) & 0xFF) << 16) << AT
    elif SHIFT + WIDTH <= M:
        word |= moved(first, SHIFT, AT, WIDTH)
    else:
        if SHIFT < M:
            word |= moved(first, SHIFT, AT, M - SHIFT)
        word |= moved(first, E + M, AT + M - SHIFT, 1)
    return word


@triton.jit
def push(window, code):
    """Put the code of a half before a column's second codes; codes under 3 have none."""
    over = code + 13  # 16 and what is over 3
    return tl.where((over & 16) != 0, (window << 3) | (over & 7), window)


@triton.jit
def put_windows(stream_ptr, window, bit):
    """Second codes to their bits of the stream, which hold zeros: any order gives the same."""
    at = bit & 31
    word = window << at
    past = (window >> 1) >> (31 - at)
    to_ptr = stream_ptr + (bit >> 5).to(tl.int32)
    tl.atomic_or(to_ptr, word.to(tl.int32, bitcast=True), mask=word != 0, sem="relaxed")
    tl.atomic_or(to_ptr + 1, past.to(tl.int32, bitcast=True), mask=past != 0, sem="relaxed")


@triton.jit
def by_slot(flags):
    """Bits s of the halves of words to bits 2s and 2s + 1."""
    flags = (flags & 0xFF0000FF) | ((flags & 0xFF00) << 8) | ((flags >> 8) & 0xFF00)
    flags = (flags & 0xF00FF00F) | ((flags & 0xF000F0) << 4) | ((flags >> 4) & 0xF000F0)
    flags = (flags & 0xC3C3C3C3) | ((flags & 0xC0C0C0C) << 2) | ((flags >> 2) & 0xC0C0C0C)
    return (flags & 0x99999999) | ((flags & 0x22222222) << 1) | ((flags >> 1) & 0x22222222)
