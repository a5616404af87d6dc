"""The two kernels that decode bitplane rows: planes to elements, then escapes and the rest.

Escapes wait for their own launch: a barrier inside a kernel does not wait for stores on every GPU.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._bitplane_triton import (
    live_halves,
    load_bases,
    moved,
    pair_offsets,
    plane_rows,
    plane_words,
    read_prefix,
)
from kvcodec.kernels._bits_triton import count_bits
from kvcodec.kernels._float_triton import load_bits
from kvcodec.kernels._rows_triton import block_offset


@triton.jit
def take(word, slot: tl.constexpr, WIDTH: tl.constexpr, AT: tl.constexpr):
    """The values of a slot, at bit AT of the halves of a word."""
    return moved(word, WIDTH * (slot % (16 // WIDTH)), AT, WIDTH)


@triton.jit
def load_row(plane_ptr, row, column, rows, W: tl.constexpr, TILE: tl.constexpr):
    """One row of a plane's words, uint32; zeros where the row does not exist."""
    word = row * W + column
    live = word < rows * W
    if W % TILE != 0:
        live = live & (column < W)
    return tl.load(plane_ptr + word, mask=live, other=0)


@triton.jit
def join_narrow(
    exponents, field0, field1, field2, slot: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
):  # fmt: skip
    """Elements of at most half a word in the halves of one; exponents stand at bit M already."""
    EXPONENTS: tl.constexpr = (((1 << E) - 1) << M) * 0x10001
    SIGNS: tl.constexpr = (1 << (E + M)) * 0x10001
    if M == 7:  # a field is a byte, and one shift brings its sign or its mantissa to its place
        if slot % 2 == 0:
            rest = ((field0 << 8) & SIGNS) | (field0 & (0xFFFFFFFF - SIGNS))
        else:
            rest = (field0 & SIGNS) | ((field0 >> 8) & (0xFFFFFFFF - SIGNS))
        joined = (exponents & EXPONENTS) | (rest & (0xFFFFFFFF - EXPONENTS))
    else:
        fields = take(field0, slot, W0, 0)
        if W1 > 0:
            fields |= take(field1, slot, W1, W0)
        if W2 > 0:
            fields |= take(field2, slot, W2, W0 + W1)
        rest = ((fields << E) & SIGNS) | (fields & (((1 << M) - 1) * 0x10001))
        joined = (exponents & EXPONENTS) | rest
    return joined


@triton.jit
def join_wide(exponent, field0, field1, field2):
    """fp32 patterns from exponents and the three bytes of their fields."""
    field = (field0 & 0xFF) | ((field1 & 0xFF) << 8) | ((field2 & 0xFF) << 16)
    return ((field >> 23) << 31) | ((exponent & 0xFF) << 23) | (field & 0x7FFFFF)


@triton.jit
def store_halves(
    cache_ptr, offset, next_offset, even, odd, both, even_live, odd_live, PAIRED: tl.constexpr
):
    """Both elements of each pair; `both` holds them for a PAIRED cache."""
    element_ty = cache_ptr.dtype.element_ty
    if PAIRED:
        tl.store(cache_ptr + offset, both.to(element_ty, bitcast=True), mask=even_live)
    else:
        tl.store(cache_ptr + offset, even.to(element_ty), mask=even_live)
        tl.store(cache_ptr + next_offset, odd.to(element_ty), mask=odd_live)


@triton.jit
def decode_kernel(
    rows_ptr,  # uint8 [n, row_nbytes], 16-byte aligned
    nbytes_ptr,  # int32 [n], strided
    cache_ptr,  # intW [num_blocks, T, H, D], any strides; or pairs, [num_blocks, T, H, D / 2]
    ids_ptr,  # int64 [n]
    stride_row, stride_nbytes, row_nbytes, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    W: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    TWO_LEVEL: tl.constexpr, ENDS: tl.constexpr, PLANES: tl.constexpr, PAIRED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Elements of one tile of one coded row; escapes get their channel's base as exponent.

    Reads the planes once and writes the elements once, 16 bytes at a time where heads allow it.
    """
    row = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + row * stride_row
    mode, n, num_words, _ = read_prefix(
        row_ptr, tl.load(nbytes_ptr + row * stride_nbytes), row_nbytes,
        T, H, D, (1 + E + M) // 8, W, W0, W1, W2, TWO_LEVEL, PLANES,
    )  # fmt: skip
    if mode == 1:
        cache_ptr += tl.load(ids_ptr + row) * stride_block
        tile = tl.program_id(1)
        column = tile * TILE + tl.arange(0, TILE)
        low_ptr = (row_ptr + PLANES).to(tl.pointer_type(tl.uint32))
        rows2 = plane_rows(n, 2, W)
        rows1 = plane_rows(n, 1, W)
        high_ptr = low_ptr + rows2 * W
        field0_ptr = high_ptr
        if not TWO_LEVEL:
            field0_ptr += rows1 * W
        rows_f0 = plane_rows(n, W0, W)
        rows_f1 = rows_f0
        rows_f2 = rows_f0
        field1_ptr = field0_ptr + rows_f0 * W
        field2_ptr = field1_ptr
        if W1 > 0:
            rows_f1 = plane_rows(n, W1, W)
            field2_ptr = field1_ptr + rows_f1 * W
        if W2 > 0:
            rows_f2 = plane_rows(n, W2, W)
        AT: tl.constexpr = M if M < 16 else 0  # where exponents of halves are put together
        STEADY: tl.constexpr = (2 * W) % (H * D) == 0  # a column has one channel in all slots
        bases = load_bases(row_ptr + 16, column, H * D, E, AT)
        offset, next_offset = pair_offsets(
            column, stride_token, stride_head, stride_dim, H, D, PAIRED
        )
        step = stride_token.to(tl.int64) * (2 * W // (H * D))
        position = tl.zeros((TILE,), tl.uint32)
        window = position
        stream_ptr = low_ptr
        if TWO_LEVEL:
            ends_ptr = (row_ptr + ENDS).to(tl.pointer_type(tl.uint32))
            begin = tl.load(ends_ptr + 2 * tile - 2, mask=tile > 0, other=0)
            stream_ptr = low_ptr + plane_words(n, W, W0, W1, W2, TWO_LEVEL)
            word = load_row(low_ptr, 0, column, rows2, W, TILE)
            count = count_bits(word & (word >> 1) & 0x55555555)
            word = load_row(low_ptr, 1, column, rows2, W, TILE)
            count += count_bits(word & (word >> 1) & 0x55555555)
            before = tl.cumsum(count.to(tl.int32)).to(tl.uint32) - count
            position = begin * 32 + before * 3
        field1 = position
        field2 = position
        for slot in tl.static_range(16):
            if slot % 8 == 0:
                low = load_row(low_ptr, slot // 8, column, rows2, W, TILE)
            if not TWO_LEVEL and slot == 0:
                high = load_row(high_ptr, 0, column, rows1, W, TILE)
            if slot % (16 // W0) == 0:
                field0 = load_row(field0_ptr, slot * W0 // 16, column, rows_f0, W, TILE)
            if W1 > 0:  # noqa: SIM102  # both sides of `and` are compiled
                if slot % (16 // W1) == 0:
                    field1 = load_row(field1_ptr, slot * W1 // 16, column, rows_f1, W, TILE)
            if W2 > 0:  # noqa: SIM102
                if slot % (16 // W2) == 0:
                    field2 = load_row(field2_ptr, slot * W2 // 16, column, rows_f2, W, TILE)
            if slot > 0:
                if STEADY:
                    offset += step
                    next_offset += step
                else:
                    bases = load_bases(row_ptr + 16, slot * W + column, H * D, E, AT)
                    offset, next_offset = pair_offsets(
                        slot * W + column, stride_token, stride_head, stride_dim, H, D, PAIRED
                    )
            if TWO_LEVEL:
                code = take(low, slot, 2, 0)
                more = code & (code >> 1)
                if slot % 4 == 0:  # at most 8 second codes in 4 slots: 24 bits
                    at = (position >> 5).to(tl.int32)
                    word0 = tl.load(stream_ptr + at, mask=at < num_words, other=0)
                    word1 = tl.load(stream_ptr + at + 1, mask=at + 1 < num_words, other=0)
                    wide = word0.to(tl.uint64) | (word1.to(tl.uint64) << 32)
                    window = (wide >> (position & 31).to(tl.uint64)).to(tl.uint32)
                    four = low >> (2 * (slot % 8))
                    position += count_bits(four & (four >> 1) & 0x550055) * 3
                first = (more & 1) != 0
                code += tl.where(first, window & 7, 0)
                window = tl.where(first, window >> 3, window)
                second = (more >> 16) != 0
                code += tl.where(second, (window & 7) << 16, 0)
                window = tl.where(second, window >> 3, window)
                below = ((code + 0xC000C) >> 4) & 0x10001  # codes from 4 on
                exponents = (code << AT) + bases + below * (((1 << E) - 11) << AT)
            else:
                exponents = (take(low, slot, 2, AT) | take(high, slot, 1, AT + 2)) + bases
            if M == 23:
                even = join_wide(
                    exponents, take(field0, slot, 8, 0), take(field1, slot, 8, 0),
                    take(field2, slot, 8, 0),
                )  # fmt: skip
                odd = join_wide(
                    exponents >> 16, take(field0, slot, 8, 0) >> 16,
                    take(field1, slot, 8, 0) >> 16, take(field2, slot, 8, 0) >> 16,
                )  # fmt: skip
                both = even.to(tl.uint64) | (odd.to(tl.uint64) << 32)
            else:
                both = join_narrow(exponents, field0, field1, field2, slot, E, M, W0, W1, W2)
                even = both & 0xFFFF
                odd = both >> 16
                if E + M == 7:
                    both = (both | (both >> 8)).to(tl.uint16)
            even_live, odd_live = live_halves(slot * W + column, column, n, W, TILE, PAIRED)
            store_halves(
                cache_ptr, offset, next_offset, even, odd, both, even_live, odd_live, PAIRED
            )


@triton.jit
def patch_kernel(
    rows_ptr, nbytes_ptr,  # as decode_kernel
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    stride_row, stride_nbytes, row_nbytes, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    W: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    TWO_LEVEL: tl.constexpr, ENDS: tl.constexpr, PLANES: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    """Exponents of one tile's escapes; elements of a raw row; zeros past the valid tokens.

    Reads 3 bytes and an element for each escape and writes the element back. No two of its threads
    write the same element.
    """
    row = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + row * stride_row
    mode, n, num_words, num_escapes = read_prefix(
        row_ptr, tl.load(nbytes_ptr + row * stride_nbytes), row_nbytes,
        T, H, D, (1 + E + M) // 8, W, W0, W1, W2, TWO_LEVEL, PLANES,
    )  # fmt: skip
    tile = tl.program_id(1)
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    if mode == 1:
        KEPT: tl.constexpr = 0xFFFFFFFF - (((1 << E) - 1) << M)  # sign and mantissa
        PER_TILE: tl.constexpr = 2 if TWO_LEVEL else 1
        ends_ptr = (row_ptr + ENDS).to(tl.pointer_type(tl.uint32)) + PER_TILE * tile + PER_TILE - 1
        limit = num_escapes.to(tl.uint32)
        begin = tl.minimum(tl.load(ends_ptr - PER_TILE, mask=tile > 0, other=0), limit)
        end = tl.minimum(tl.load(ends_ptr), limit).to(tl.int32)
        at = begin.to(tl.int32)
        count0 = tl.load(row_ptr.to(tl.pointer_type(tl.uint32)) + 1).to(tl.int64)
        escapes_ptr = row_ptr + PLANES + 4 * count0 + (4 * num_words.to(tl.int64) + 15) // 16 * 16
        positions_ptr = escapes_ptr.to(tl.pointer_type(tl.uint16))
        values_ptr = escapes_ptr + 2 * num_escapes
        while at < end:
            i = at + tl.arange(0, CHUNK)
            live = i < end
            position = tl.load(positions_ptr + i, mask=live, other=0).to(tl.int32)
            value = tl.load(values_ptr + i, mask=live, other=0).to(tl.uint32) & ((1 << E) - 1)
            column = tile * TILE + position // 32
            element = 2 * ((position % 32) // 2 * W + column) + position % 2
            live = live & (column < W) & (element < n)
            offset = block_offset(element, stride_token, stride_head, stride_dim, H, D)
            bits = load_bits(cache_ptr + offset, live)
            bits = (bits & KEPT) | (value << M)
            tl.store(cache_ptr + offset, bits.to(cache_ptr.dtype.element_ty), mask=live)
            at += CHUNK
    # what decode_kernel left: a tile's share of the block, 32 elements for each of its columns
    begin = tile * (32 * TILE)
    end = tl.minimum(begin + 32 * TILE, T * H * D)
    if mode == 1:
        begin = tl.maximum(begin, n)
    elements_ptr = (row_ptr + 16).to(tl.pointer_type(cache_ptr.dtype.element_ty))
    raw = tl.where(mode == 0, n, 0)
    while begin < end:
        element = begin + tl.arange(0, FILL)
        bits = tl.load(elements_ptr + element, mask=element < raw, other=0)
        offset = block_offset(element, stride_token, stride_head, stride_dim, H, D)
        tl.store(cache_ptr + offset, bits, mask=element < end)
        begin += FILL
