"""The three kernels that encode bitplane rows: bases, sizes, planes with what follows them.

A tile's slots are taken one after the other, unrolled: a thread has whole columns, whose words it
fills by shifts, and neighbours only add up how many codes and escapes stand before theirs. A launch
never loads what another thread of it stored: a barrier inside a kernel does not wait for stores on
every GPU.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._bitplane_codes_triton import (
    by_slot,
    codes_of,
    distances_from,
    push,
    put_field,
    put_windows,
)
from kvcodec.kernels._bitplane_triton import (
    live_halves,
    load_pair,
    moved,
    pair_offsets,
    plane_rows,
    plane_words,
)
from kvcodec.kernels._bits_triton import count_bits, exponent_of, join4
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
    known = tl.where(valid > 0, H * D, 0)
    tl.store(bases_ptr + channel, base.to(tl.uint8), mask=channel < known)


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
    column = tile * TILE + tl.arange(0, TILE)
    STEADY: tl.constexpr = (2 * W) % (H * D) == 0  # a column has one channel in all slots
    distances = distances_from(row_ptr + 16, column, H * D, E, TWO_LEVEL)
    begin, next_begin = pair_offsets(column, stride_token, stride_head, stride_dim, H, D, PAIRED)
    step = tl.cast(stride_token, tl.int64) * (2 * W // (H * D))
    more = tl.zeros((TILE,), tl.uint32)
    outs = more
    for slot in tl.static_range(16):
        pair = slot * W + column
        if STEADY:
            offset, next_offset = begin + slot * step, next_begin + slot * step
        else:
            distances = distances_from(row_ptr + 16, pair, H * D, E, TWO_LEVEL)
            offset, next_offset = pair_offsets(
                pair, stride_token, stride_head, stride_dim, H, D, PAIRED
            )
        even, odd = live_halves(pair, column, n, W, TILE, PAIRED)
        first, second = load_pair(cache_ptr, offset, next_offset, even, odd, M, PAIRED)
        code, out = codes_of(first, second, distances, even, odd, E, M, TWO_LEVEL)
        outs += out
        if TWO_LEVEL:
            more += ((code + 0xD000D) >> 4) & 0x10001
    counts_ptr += (row * tl.num_programs(1) + tile) * 2
    tl.store(counts_ptr, tl.sum(((more & 0xFFFF) + (more >> 16)).to(tl.int32)))
    tl.store(counts_ptr + 1, tl.sum(((outs & 0xFFFF) + (outs >> 16)).to(tl.int32)))
    if TWO_LEVEL:
        # 768 words hold all second codes of a tile
        at = PLANES + 4 * (plane_words(n, W, W0, W1, W2, TWO_LEVEL) + 768 * tile)
        words_ptr = (row_ptr + at).to(tl.pointer_type(tl.uint32))
        k = tl.arange(0, 1024)
        live = (k < 768) & (at + 4 * k < row_nbytes)
        tl.store(words_ptr + k, tl.zeros((1024,), tl.uint32), mask=live)


@triton.jit
def store_row(
    planes_ptr, word, first, row: tl.constexpr, rows, column, W: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """One row of a plane's words, if it exists; the plane begins with row `first` of all planes."""
    at = (first + row) * W + column
    live = at < (first + rows) * W
    if W % TILE != 0:
        live = live & (column < W)
    tl.store(planes_ptr + at, word, mask=live)


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

        column = tile * TILE + tl.arange(0, TILE)
        planes_ptr = (row_ptr + PLANES).to(tl.pointer_type(tl.uint32))
        rows2, rows1, rows_f0 = plane_rows(n, 2, W), plane_rows(n, 1, W), plane_rows(n, W0, W)
        first_f0 = rows2
        if not TWO_LEVEL:
            first_f0 += rows1
        first_f1, first_f2 = first_f0 + rows_f0, first_f0 + rows_f0
        if W1 > 0:
            first_f2 += plane_rows(n, W1, W)
        STEADY: tl.constexpr = (2 * W) % (H * D) == 0  # a column has one channel in all slots
        distances = distances_from(row_ptr + 16, column, H * D, E, TWO_LEVEL)
        begin, next_begin = pair_offsets(
            column, stride_token, stride_head, stride_dim, H, D, PAIRED
        )
        step = tl.cast(stride_token, tl.int64) * (2 * W // (H * D))
        none = tl.zeros((TILE,), tl.uint32)
        outs, more, low, high, field0, field1, field2 = none, none, none, none, none, none, none
        window, window0, window1, window2, window3 = none, none, none, none, none
        for slot in tl.static_range(15, -1, -1):  # a window is filled from its last code
            pair = slot * W + column
            if STEADY:
                offset, next_offset = begin + slot * step, next_begin + slot * step
            else:
                distances = distances_from(row_ptr + 16, pair, H * D, E, TWO_LEVEL)
                offset, next_offset = pair_offsets(
                    pair, stride_token, stride_head, stride_dim, H, D, PAIRED
                )
            even, odd = live_halves(pair, column, n, W, TILE, PAIRED)
            first, second = load_pair(cache_ptr, offset, next_offset, even, odd, M, PAIRED)
            code, out = codes_of(first, second, distances, even, odd, E, M, TWO_LEVEL)
            outs += out << slot
            if TWO_LEVEL:
                window = push(window, code >> 16)
                window = push(window, code & 0xFFFF)
                flags = ((code + 0xD000D) >> 4) & 0x10001
                more += flags << slot
                code = (code & 0x30003) | (flags * 3)
                if slot % 4 == 0:
                    if slot == 0:
                        window0 = window
                    elif slot == 4:
                        window1 = window
                    elif slot == 8:
                        window2 = window
                    else:
                        window3 = window
                    window = none
            else:
                high |= moved(code, 2, slot, 1)
                if slot == 0:
                    store_row(planes_ptr, high, rows2, 0, rows1, column, W, TILE)
            low |= moved(code, 0, 2 * (slot % 8), 2)
            if slot % 8 == 0:
                store_row(planes_ptr, low, 0, slot // 8, rows2, column, W, TILE)
                low = none
            field0 = put_field(field0, first, second, slot, E, M, 0, W0)
            if slot % (16 // W0) == 0:
                store_row(planes_ptr, field0, first_f0, slot * W0 // 16, rows_f0, column, W, TILE)
                field0 = none
            if W1 > 0:
                field1 = put_field(field1, first, second, slot, E, M, W0, W1)
                if slot % (16 // W1) == 0:
                    rows = plane_rows(n, W1, W)
                    store_row(planes_ptr, field1, first_f1, slot * W1 // 16, rows, column, W, TILE)
                    field1 = none
            if W2 > 0:
                field2 = put_field(field2, first, second, slot, E, M, W0 + W1, W2)
                if slot % (16 // W2) == 0:
                    rows = plane_rows(n, W2, W)
                    store_row(planes_ptr, field2, first_f2, slot * W2 // 16, rows, column, W, TILE)
                    field2 = none

        if TWO_LEVEL:
            stream_ptr = (row_ptr + stream_at).to(tl.pointer_type(tl.int32))
            count = join4(
                count_bits(more & 0xF000F), count_bits(more & 0xF000F0),
                count_bits(more & 0xF000F00), count_bits(more & 0xF000F000), TILE,
            )  # fmt: skip
            before = tl.cumsum(count.to(tl.int32)).to(tl.uint32) - count
            windows = join4(window0, window1, window2, window3, TILE)
            put_windows(stream_ptr, windows, first_word.to(tl.uint32) * 32 + 3 * before)

        # escapes, one of every column that has one left in each iteration
        left = by_slot(outs)
        count = count_bits(left).to(tl.int32)
        # loaded again, because what waited for its use here would wait in memory
        before = tl.sum(tl.load(count_ptr + 1, mask=each < tile, other=0))
        rank = before + tl.cumsum(count) - count
        positions_ptr = (row_ptr + escapes_at).to(tl.pointer_type(tl.uint16))
        values_ptr = row_ptr + escapes_at + 2 * num_escapes
        most = tl.max(count, 0)
        while most > 0:
            live = left != 0
            place = count_bits((left - 1) & (left ^ 0xFFFFFFFF)).to(tl.int32)  # of the lowest
            pair = place // 2 * W + column
            offset, next_offset = pair_offsets(
                pair, stride_token, stride_head, stride_dim, H, D, PAIRED
            )
            odd = live & (place % 2 == 1)
            first, second = load_pair(cache_ptr, offset, next_offset, live, odd, M, PAIRED)
            if M == 23:
                bits = tl.where(odd, second, first)
            else:
                bits = tl.where(odd, first >> 16, first)
            position = 32 * tl.arange(0, TILE) + place
            tl.store(positions_ptr + rank, position.to(tl.uint16), mask=live)
            tl.store(values_ptr + rank, exponent_of(bits, E, M).to(tl.uint8), mask=live)
            left &= left - 1
            rank += 1
            most -= 1
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
