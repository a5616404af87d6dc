"""The three kernels that encode bitplane rows: bases, sizes, planes with what follows them.

A launch never loads what another thread of it stored: a barrier inside a kernel does not wait for
stores on every GPU.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._bitplane_triton import load_halves, plane_rows, plane_words
from kvcodec.kernels._bits_triton import exponent_of, raw_of
from kvcodec.kernels._float_triton import load_bits
from kvcodec.kernels._rows_triton import align16, block_offset, valid_tokens


@triton.jit
def bases_kernel(
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    valid_ptr,  # int32 [n]; unused unless HAS_VALID
    rows_ptr,  # uint8 [n, row_nbytes], 16-byte aligned
    stride_block, stride_token, stride_head, stride_dim, stride_row,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_VALID: tl.constexpr,
    E: tl.constexpr, M: tl.constexpr, QUANTILE: tl.constexpr, DEPTH: tl.constexpr,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Bases of some channels of one block: the level, bit by bit, by counting what reaches it.

    Reads the channels E times, from the L2 cache after the first; writes a byte for each.
    """
    row = tl.program_id(0).to(tl.int64)
    valid = valid_tokens(valid_ptr, row, T, HAS_VALID)
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    reach = tl.maximum(valid // QUANTILE, 1)
    level = tl.zeros((CHANNELS,), tl.int32)
    for i in range(E):
        candidate = level | (1 << (E - 1 - i))
        count = tl.zeros((CHANNELS,), tl.int32)
        begin = 0
        while begin < valid:
            token = begin + tl.arange(0, TOKENS)
            element = token[:, None] * (H * D) + channel[None, :]
            live = (token[:, None] < valid) & (channel[None, :] < H * D)
            offset = block_offset(element, stride_token, stride_head, stride_dim, H, D)
            exponent = exponent_of(load_bits(cache_ptr + offset, live), E, M)
            count += tl.sum((live & (exponent >= candidate[None, :])).to(tl.int32), 0)
            begin += TOKENS
        level = tl.where(count >= reach, candidate, level)
    base = (level - DEPTH) & ((1 << E) - 1)
    bases_ptr = rows_ptr + row * stride_row + 16
    tl.store(bases_ptr + channel, base.to(tl.uint8), mask=(channel < H * D) & (valid > 0))


@triton.jit
def codes_of(exponent, base, live, E: tl.constexpr, TWO_LEVEL: tl.constexpr):
    """First code, flag of a second code, flag of an escape, second code; uint32."""
    distance = (exponent.to(tl.uint32) - base) & ((1 << E) - 1)
    if TWO_LEVEL:
        near = (distance < 4) | (distance >= (1 << E) - 7)
        code = tl.minimum(distance, 3)
    else:
        near = distance < 8
        code = distance
    kept = (near & live).to(tl.uint32)
    further = kept * (TWO_LEVEL & (distance > 2)).to(tl.uint32)
    second = tl.where(distance == 3, 0, distance & 7)
    return code * kept, further, live.to(tl.uint32) - kept, second


@triton.jit
def load_tile(
    cache_ptr, bases_ptr, tile, n, stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr, W: tl.constexpr,
    TWO_LEVEL: tl.constexpr, PAIRED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Patterns of both elements of every place [16 slots, TILE], then what `codes_of` says."""
    column = tile * TILE + tl.arange(0, TILE)
    pair = tl.arange(0, 16)[:, None] * W + column[None, :]
    limit = tl.where(column < W, n, 0)[None, :]  # a column past the last has no elements
    even, odd = load_halves(
        cache_ptr, pair, limit, stride_token, stride_head, stride_dim, H, D, PAIRED
    )
    base0 = tl.load(bases_ptr + (2 * pair) % (H * D)).to(tl.uint32)
    base1 = tl.load(bases_ptr + (2 * pair + 1) % (H * D)).to(tl.uint32)
    code0, more0, out0, second0 = codes_of(
        exponent_of(even, E, M), base0, 2 * pair < limit, E, TWO_LEVEL
    )
    code1, more1, out1, second1 = codes_of(
        exponent_of(odd, E, M), base1, 2 * pair + 1 < limit, E, TWO_LEVEL
    )
    return even, odd, code0 | (code1 << 16), more0, more1, out0, out1, second0, second1


@triton.jit
def count_kernel(
    cache_ptr,  # as bases_kernel, or pairs, [num_blocks, T, H, D / 2]
    ids_ptr, valid_ptr, rows_ptr,  # as bases_kernel
    counts_ptr,  # int32 [n, tiles, 2]: second codes, escapes
    stride_block, stride_token, stride_head, stride_dim, stride_row, row_nbytes,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_VALID: tl.constexpr,
    E: tl.constexpr, M: tl.constexpr,
    W: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    TWO_LEVEL: tl.constexpr, PLANES: tl.constexpr, PAIRED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Second codes and escapes of one tile, and zeros where its second codes may come to stand."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    n = valid_tokens(valid_ptr, row, T, HAS_VALID) * (H * D)
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    row_ptr = rows_ptr + row * stride_row
    _, _, _, more0, more1, out0, out1, _, _ = load_tile(
        cache_ptr, row_ptr + 16, tile, n, stride_token, stride_head, stride_dim,
        H, D, E, M, W, TWO_LEVEL, PAIRED, TILE,
    )  # fmt: skip
    counts_ptr += (row * tl.num_programs(1) + tile) * 2
    tl.store(counts_ptr, tl.sum(tl.sum((more0 + more1).to(tl.int32), 0)))
    tl.store(counts_ptr + 1, tl.sum(tl.sum((out0 + out1).to(tl.int32), 0)))
    if TWO_LEVEL:
        # 768 words hold all second codes of a tile
        at = PLANES + 4 * (plane_words(n, W, W0, W1, W2, TWO_LEVEL) + 768 * tile)
        words_ptr = (row_ptr + at).to(tl.pointer_type(tl.uint32))
        k = tl.arange(0, 1024)
        live = (k < 768) & (at + 4 * k < row_nbytes)
        tl.store(words_ptr + k, tl.zeros((1024,), tl.uint32), mask=live)


@triton.jit
def store_plane(
    plane_ptr, values, tile, rows,
    WIDTH: tl.constexpr, W: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One plane's words of a tile, from the values [16 slots, TILE] in the halves of words."""
    PER: tl.constexpr = 16 // WIDTH
    shift = (tl.arange(0, 16) % PER * WIDTH).to(tl.uint32)
    placed = tl.reshape((values << shift[:, None]).to(tl.int32, bitcast=True), (WIDTH, PER, TILE))
    words = tl.sum(placed, 1)  # bits of different slots: the sum is their union
    row = tl.arange(0, WIDTH)[:, None]
    column = (tile * TILE + tl.arange(0, TILE))[None, :]
    live = (row < rows) & (column < W)
    tl.store(plane_ptr.to(tl.pointer_type(tl.int32)) + row * W + column, words, mask=live)


@triton.jit
def fields_of(
    even, odd,
    E: tl.constexpr, M: tl.constexpr, SHIFT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Bits of the fields of sign and mantissa for one plane, in the halves of words."""
    low = (raw_of(even, E, M) >> SHIFT) & ((1 << WIDTH) - 1)
    high = (raw_of(odd, E, M) >> SHIFT) & ((1 << WIDTH) - 1)
    return low | (high << 16)


@triton.jit
def ranks(first, second, begin):
    """Place of each flagged element: by column, then slot, then half, from `begin` on."""
    here = (first + second).to(tl.int32)
    column = tl.sum(here, 0)
    before = (begin + tl.cumsum(column) - column)[None, :] + tl.cumsum(here, 0) - here
    return before, before + first.to(tl.int32)


@triton.jit
def put_code(stream_ptr, code, rank, first_bit, flag):
    """A second code to its bits of the stream, which hold zeros: any order gives the same."""
    bit = first_bit + 3 * rank
    wide = code.to(tl.uint64) << (bit & 31).to(tl.uint64)
    word = wide.to(tl.uint32).to(tl.int32, bitcast=True)
    past = (wide >> 32).to(tl.int32)
    tl.atomic_or(stream_ptr + bit // 32, word, mask=(flag != 0) & (word != 0))
    tl.atomic_or(stream_ptr + bit // 32 + 1, past, mask=(flag != 0) & (past != 0))


@triton.jit
def put_escape(
    positions_ptr, values_ptr, place, bits, rank, flag, E: tl.constexpr, M: tl.constexpr
):
    """Position and exponent of an escape to the lists."""
    tl.store(positions_ptr + rank, place.to(tl.uint16), mask=flag != 0)
    tl.store(values_ptr + rank, exponent_of(bits, E, M).to(tl.uint8), mask=flag != 0)


@triton.jit
def write_kernel(
    cache_ptr, ids_ptr, valid_ptr, rows_ptr, counts_ptr,  # as count_kernel
    nbytes_ptr,  # int32 [n], strided
    stride_block, stride_token, stride_head, stride_dim, stride_row, stride_nbytes,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_VALID: tl.constexpr,
    E: tl.constexpr, M: tl.constexpr,
    W: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    TWO_LEVEL: tl.constexpr, ENDS: tl.constexpr, PLANES: tl.constexpr, PAIRED: tl.constexpr,
    TILES: tl.constexpr, POW2_TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of one row, coded or raw. Reads its elements once, writes its part of the row."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    valid = valid_tokens(valid_ptr, row, T, HAS_VALID)
    n = valid * (H * D)
    ITEMSIZE: tl.constexpr = (1 + E + M) // 8
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    row_ptr = rows_ptr + row * stride_row
    head_ptr = row_ptr.to(tl.pointer_type(tl.int32))
    each = tl.arange(0, POW2_TILES)
    known = each < TILES
    count_ptr = counts_ptr + (row * TILES + each) * 2
    words = (tl.load(count_ptr, mask=known, other=0) * 3 + 31) // 32
    escapes = tl.load(count_ptr + 1, mask=known, other=0)
    num_words = tl.sum(words)
    num_escapes = tl.sum(escapes)
    first_word = tl.sum(tl.where(each < tile, words, 0))
    first_escape = tl.sum(tl.where(each < tile, escapes, 0))
    num_planes = plane_words(n, W, W0, W1, W2, TWO_LEVEL)
    stream_at = PLANES + 4 * num_planes
    escapes_at = stream_at + align16(4 * num_words)
    nbytes = escapes_at + align16(3 * num_escapes)
    raw_nbytes = 16 + align16(n * ITEMSIZE)
    coded = (n > 0) & (nbytes < raw_nbytes)

    if coded:
        if tile == 0:
            small = tl.arange(0, 16)
            zero = tl.zeros((16,), tl.uint8)
            tl.store(head_ptr, 1 | (valid << 16))
            tl.store(head_ptr + 1, num_planes)
            tl.store(nbytes_ptr + row * stride_nbytes, nbytes)
            at = 16 + H * D + small
            tl.store(row_ptr + at, zero, mask=at < ENDS)
            ends_ptr = (row_ptr + ENDS).to(tl.pointer_type(tl.int32))
            if TWO_LEVEL:
                tl.store(head_ptr + 2, num_words)
                tl.store(head_ptr + 3, 3 * num_escapes)
                tl.store(ends_ptr + 2 * each, tl.cumsum(words), mask=known)
                tl.store(ends_ptr + 2 * each + 1, tl.cumsum(escapes), mask=known)
                at = ENDS + 8 * TILES + small
            else:
                tl.store(head_ptr + 2, 3 * num_escapes)
                tl.store(head_ptr + 3, 0)
                tl.store(ends_ptr + each, tl.cumsum(escapes), mask=known)
                at = ENDS + 4 * TILES + small
            tl.store(row_ptr + at, zero, mask=at < PLANES)
            at = escapes_at + 3 * num_escapes + small
            tl.store(row_ptr + at, zero, mask=at < nbytes)

        even, odd, code, more0, more1, out0, out1, second0, second1 = load_tile(
            cache_ptr, row_ptr + 16, tile, n, stride_token, stride_head, stride_dim,
            H, D, E, M, W, TWO_LEVEL, PAIRED, TILE,
        )  # fmt: skip
        plane_ptr = (row_ptr + PLANES).to(tl.pointer_type(tl.uint32))
        rows = plane_rows(n, 2, W)
        store_plane(plane_ptr, code & 0x30003, tile, rows, 2, W, TILE)
        plane_ptr += rows * W
        if not TWO_LEVEL:
            rows = plane_rows(n, 1, W)
            store_plane(plane_ptr, (code >> 2) & 0x10001, tile, rows, 1, W, TILE)
            plane_ptr += rows * W
        rows = plane_rows(n, W0, W)
        store_plane(plane_ptr, fields_of(even, odd, E, M, 0, W0), tile, rows, W0, W, TILE)
        if W1 > 0:
            plane_ptr += rows * W
            rows = plane_rows(n, W1, W)
            store_plane(plane_ptr, fields_of(even, odd, E, M, W0, W1), tile, rows, W1, W, TILE)
        if W2 > 0:
            plane_ptr += rows * W
            rows = plane_rows(n, W2, W)
            fields = fields_of(even, odd, E, M, W0 + W1, W2)
            store_plane(plane_ptr, fields, tile, rows, W2, W, TILE)

        rank0, rank1 = ranks(out0, out1, first_escape)
        positions_ptr = (row_ptr + escapes_at).to(tl.pointer_type(tl.uint16))
        values_ptr = row_ptr + escapes_at + 2 * num_escapes
        place = 32 * tl.arange(0, TILE)[None, :] + 2 * tl.arange(0, 16)[:, None]
        put_escape(positions_ptr, values_ptr, place, even, rank0, out0, E, M)
        put_escape(positions_ptr, values_ptr, place + 1, odd, rank1, out1, E, M)
        if TWO_LEVEL:
            rank0, rank1 = ranks(more0, more1, 0)
            stream_ptr = (row_ptr + stream_at).to(tl.pointer_type(tl.int32))
            put_code(stream_ptr, second0, rank0, 32 * first_word, more0)
            put_code(stream_ptr, second1, rank1, 32 * first_word, more1)
    else:
        if tile == 0:
            tl.store(head_ptr, valid << 16)
            tl.store(head_ptr + 1, n * ITEMSIZE)
            tl.store(head_ptr + 2, 0)
            tl.store(head_ptr + 3, 0)
            tl.store(nbytes_ptr + row * stride_nbytes, raw_nbytes)
        store_raw(
            cache_ptr, row_ptr, tile, n, stride_token, stride_head, stride_dim,
            H, D, ITEMSIZE, PAIRED, TILE,
        )  # fmt: skip


@triton.jit
def store_raw(
    cache_ptr, row_ptr, tile, n, stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr, ITEMSIZE: tl.constexpr, PAIRED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """One tile's share of a raw row, 16 pairs of neighbours for each of its columns."""
    element_ty: tl.constexpr = cache_ptr.dtype.element_ty
    elements_ptr = (row_ptr + 16).to(tl.pointer_type(element_ty))
    end = align16(n * ITEMSIZE) // ITEMSIZE
    for i in range(16):
        pair = (tile * 16 + i) * TILE + tl.arange(0, TILE)
        if PAIRED:
            offset = block_offset(pair, stride_token, stride_head, stride_dim, H, D // 2)
            both = tl.load(cache_ptr + offset, mask=2 * pair < n, other=0)
            tl.store(elements_ptr + pair, both, mask=2 * pair < end)
        else:
            for half in tl.static_range(2):
                element = 2 * pair + half
                offset = block_offset(element, stride_token, stride_head, stride_dim, H, D)
                bits = tl.load(cache_ptr + offset, mask=element < n, other=0)
                tl.store(elements_ptr + element, bits, mask=element < end)
