"""What nvfp4, mxfp4 and mxfp8 decode with: words of codes become chunks of eight elements.

A chunk belongs to one thread, from its word (E2M1) or pair of words to a store of 16 bytes, so that
nothing is exchanged between threads, and neighbours read and write neighbours.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._float_triton import round_high

TILE = 512  # chunks: 4 for each thread of 4 warps


def decode_tile(chunks: int) -> tuple[int, int]:
    """Chunks of a program and its warps; a rest, in the last program, only in tiny blocks."""
    tile = max(64, min(TILE, chunks & -chunks))
    return tile, max(1, tile // 128)


@triton.jit
def tile_chunks(COUNT: tl.constexpr, TILE: tl.constexpr):
    """Numbers of a program's chunks, and which are among the COUNT of a block.

    The hint hides from the compiler that they follow each other: a thread would load neighbouring
    words at once, and elements would have to change threads to be stored without gaps.
    """
    chunk = tl.max_contiguous(tl.program_id(1) * TILE + tl.arange(0, TILE), 1)
    inside = tl.full([TILE], True, tl.int1) if COUNT % TILE == 0 else chunk < COUNT
    return chunk, inside


@triton.jit
def chunk_offsets(
    chunk, stride_token, stride_head, stride_dim, H: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Tokens [N] of chunks, and offsets [N, 8] of their elements in a block, int64."""
    r, d = chunk // (D // 8), chunk % (D // 8)
    token, head = r // H, r % H
    start = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    dims = (8 * d[:, None] + tl.arange(0, 8)[None, :]).to(tl.int64)
    return token, start[:, None] + dims * stride_dim


@triton.jit
def load_codes(row_ptr, chunk, live, CODE_E: tl.constexpr):
    """Words [N] of the codes 0 to 3 and 4 to 7 of chunks; of E2M1, twice the word of all."""
    words_ptr = (row_ptr + 16).to(tl.pointer_type(tl.uint32))
    if CODE_E == 2:
        low = tl.load(words_ptr + chunk, mask=live, other=0)
        high = low
    else:
        at = 2 * chunk[:, None] + tl.arange(0, 2)[None, :]
        pairs = tl.load(words_ptr + at, mask=live[:, None], other=0)
        low, high = tl.split(pairs)
    return low, high


@triton.jit
def shifted(words, UP: tl.constexpr):
    """Words shifted left by UP bits; right, where UP is negative."""
    return words << UP if UP >= 0 else words >> -UP


@triton.jit
def joined(e0, e1, e2, e3, e4, e5, e6, e7):
    """[N, 8] of the eight elements of chunks."""
    even = tl.join(tl.join(e0, e4), tl.join(e2, e6))
    odd = tl.join(tl.join(e1, e5), tl.join(e3, e7))
    return tl.reshape(tl.join(even, odd), (e0.shape[0], 8))


@triton.jit
def times_step(words, step, AT: tl.constexpr, E: tl.constexpr, M: tl.constexpr):
    """Elements, uint32, of the E2M1 codes AT of words under fp32 steps >= 0."""
    BIAS: tl.constexpr = (1 << (E - 1)) - 1
    DROP: tl.constexpr = 23 - M
    MAX: tl.constexpr = (((1 << E) - 1) << M) - 1
    # the magnitude as a subnormal of fp32: 2^126 times too small, which a product mends exactly
    field = shifted(words, 22 - 4 * AT) & (7 << 22)
    code = field.to(tl.float32, bitcast=True)
    if E == 8:
        bits = (code * 2.0**126 * step).to(tl.uint32, bitcast=True)
        bits = tl.minimum(bits, MAX << DROP)
        if DROP > 0:
            bits = round_high(bits, DROP)
    else:
        # In the range of fp16 one product does both, here 2^26 times too small. Any code but 0
        # saturates from steps of 2^27 on; what fp32 loses at the other end rounds to 0 anyway.
        BASE: tl.constexpr = 127 - BIAS - 26
        value = code * (tl.minimum(step, 2.0**27) * 2.0**100)
        bits = tl.minimum(value.to(tl.uint32, bitcast=True), (MAX << DROP) + (BASE << 23))
        # a sum with 2^DROP times its power of two is rounded as the element is
        power = tl.maximum(bits & 0x7F800000, (BASE + 1) << 23).to(tl.float32, bitcast=True)
        unit = power * 2.0**DROP
        rounded = (bits.to(tl.float32, bitcast=True) + unit) - unit
        bits = (rounded * 2.0**-BASE).to(tl.uint32, bitcast=True)
    SIGN: tl.constexpr = 23 + E
    return ((shifted(words, SIGN - 3 - 4 * AT) & (1 << SIGN)) | bits) >> DROP


@triton.jit
def times_power(
    words, scale, AT: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    CODE_E: tl.constexpr, CODE_M: tl.constexpr,
):  # fmt: skip
    """Elements, uint32, of the codes AT of words under fp32 powers of two.

    The product is exact, or a subnormal element. It is taken where subnormals of fp32 are as far
    apart as those of the element, so that it is rounded as they are; then it moves to the place of
    the element's fields.
    """
    BIAS: tl.constexpr = (1 << (E - 1)) - 1
    DROP: tl.constexpr = 23 - M
    MAX: tl.constexpr = (((1 << E) - 1) << M) - 1
    QUIET: tl.constexpr = ((1 << E) - 1) << M | (1 << (M - 1))
    WIDTH: tl.constexpr = 1 + CODE_E + CODE_M
    UP: tl.constexpr = 23 - CODE_M
    field = shifted(words, UP - WIDTH * AT) & (((1 << (WIDTH - 1)) - 1) << UP)
    code = field.to(tl.float32, bitcast=True)
    value = code * 2.0 ** (BIAS - DROP + 1 - (1 << (CODE_E - 1)))
    if CODE_E == 5:
        value = tl.where(field < 0x7C << UP, value, float("inf"))
    bits = (value * scale * 2.0**DROP).to(tl.uint32, bitcast=True)
    bits = tl.minimum(bits, MAX << DROP)
    if CODE_E == 4:
        bits = tl.where(field == 0x7F << UP, QUIET << DROP, bits)
    if CODE_E == 5:
        bits = tl.where(field > 0x7C << UP, QUIET << DROP, bits)
    SIGN: tl.constexpr = 23 + E
    return ((shifted(words, SIGN + 1 - WIDTH - WIDTH * AT) & (1 << SIGN)) | bits) >> DROP
