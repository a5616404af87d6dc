"""Rows of `segments` on a GPU: segments' rows into a block's row and out of it, and raw blocks."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._rows_triton import block_offset, valid_tokens


@triton.jit
def pack_kernel(
    rows_ptr,  # int64 [n, words], the rows of segment INDEX
    sizes_ptr,  # int32 [n, S], bytes of every segment's row
    valid_ptr,  # int32 [n]; unused unless HAS_VALID
    out_ptr,  # uint8 [n, bytes], 16-byte aligned
    nbytes_ptr,  # int32 [n], strided
    stride_rows, stride_out, stride_nbytes,
    INDEX: tl.constexpr, HAS_VALID: tl.constexpr, LOSSLESS: tl.constexpr,
    S: tl.constexpr, HEADER: tl.constexpr, LANES: tl.constexpr, BOUND: tl.constexpr,
    T: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Copy one tile of one segment's row behind those before it, unless the block stays raw.

    The first program of the first segment writes the prefix.
    """
    row = tl.program_id(0).to(tl.int64)
    begin = HEADER
    total = HEADER
    for k in tl.static_range(S):
        size = tl.load(sizes_ptr + row * S + k)
        total += size
        if k < INDEX:
            begin += size
    kept = LOSSLESS & (total >= BOUND)
    row_ptr = out_ptr + row * stride_out
    if INDEX == 0 and tl.program_id(1) == 0:
        lane = tl.arange(0, LANES)
        valid = valid_tokens(valid_ptr, row, T, HAS_VALID)
        head = tl.where(lane == 0, (valid << 16) | tl.where(kept, 0, 1), 0)
        for k in tl.static_range(S):
            size = tl.load(sizes_ptr + row * S + k)
            head = tl.where((lane == k + 1) & (kept == 0), size, head)
        words_ptr = row_ptr.to(tl.pointer_type(tl.int32))
        tl.store(words_ptr + lane, head, mask=lane < tl.where(kept, 4, HEADER // 4))
        tl.store(nbytes_ptr + row * stride_nbytes, tl.where(kept, BOUND, total))
    words = tl.where(kept, 0, tl.load(sizes_ptr + row * S + INDEX) // 8)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    data = tl.load(rows_ptr + row * stride_rows + at, mask=at < words)
    to_ptr = (row_ptr + begin // 16 * 16).to(tl.pointer_type(tl.int64))
    tl.store(to_ptr + at, data, mask=at < words)


@triton.jit
def unpack_kernel(
    in_ptr, nbytes_ptr,  # uint8 [n, bytes], int32 [n], strided
    rows_ptr,  # int64 [n, words], the rows of segment INDEX
    sizes_ptr,  # int32 [n], their bytes
    stride_in, stride_nbytes, stride_rows,
    INDEX: tl.constexpr, CAPACITY: tl.constexpr, LIMIT: tl.constexpr,
    S: tl.constexpr, HEADER: tl.constexpr, T: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Copy one tile of one segment's row out of a block's row; size 0 if that is raw or damaged."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = in_ptr + row * stride_in
    head_ptr = row_ptr.to(tl.pointer_type(tl.uint32))
    head = tl.load(head_ptr)
    begin = tl.full([], HEADER, tl.int64)
    total = tl.full([], HEADER, tl.int64)
    for k in tl.static_range(S):
        part = tl.load(head_ptr + k + 1, mask=4 * k + 8 <= CAPACITY, other=0).to(tl.int64)
        total += part
        if k < INDEX:
            begin += part
    size = tl.load(head_ptr + INDEX + 1, mask=4 * INDEX + 8 <= CAPACITY, other=0).to(tl.int64)
    sound = ((head & 0xFFFF) == 1) & ((head >> 16) <= T) & (begin % 16 == 0) & (size % 16 == 0)
    sound = sound & (total == tl.load(nbytes_ptr + row * stride_nbytes)) & (total <= CAPACITY)
    sound = sound & (size >= 16) & (size <= LIMIT)
    begin = tl.where(sound, begin, 0)
    own = tl.load((row_ptr + begin).to(tl.pointer_type(tl.uint32)))
    size = tl.where(sound & ((own >> 16) == (head >> 16)), size, 0)
    if tl.program_id(1) == 0:
        tl.store(sizes_ptr + row, size.to(tl.int32))
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    from_ptr = (row_ptr + begin // 16 * 16).to(tl.pointer_type(tl.int64))
    data = tl.load(from_ptr + at, mask=at < size // 8, other=0)
    tl.store(rows_ptr + row * stride_rows + at, data, mask=at < size // 8)


@triton.jit
def keep_kernel(
    cache_ptr, ids_ptr,  # intW [num_blocks, T, H, D], any strides; int64 [n]
    out_ptr,  # uint8 [n, bytes], prefixes written
    stride_block, stride_token, stride_head, stride_dim, stride_out,
    BEGIN: tl.constexpr, END: tl.constexpr, STOP: tl.constexpr, WIDTH: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Copy one tile of one run of a block that stays raw: zeros for unused tokens, up to STOP.

    BEGIN, END, STOP, WIDTH: elements; those of a token and head take WIDTH.
    """
    row = tl.program_id(0).to(tl.int64)
    row_ptr = out_ptr + row * stride_out
    head = tl.load(row_ptr.to(tl.pointer_type(tl.uint32)))
    kept = (head & 0xFFFF) == 0
    at = BEGIN + tl.program_id(1) * TILE + tl.arange(0, TILE)
    used = (at < END) & ((at - BEGIN) // (WIDTH * H) < (head >> 16).to(tl.int32)) & kept
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    offset = block_offset(at, stride_token, stride_head, stride_dim, H, D)
    data = tl.load(cache_ptr + offset, mask=used, other=0)
    to_ptr = (row_ptr + 16).to(tl.pointer_type(cache_ptr.dtype.element_ty))
    tl.store(to_ptr + at, data, mask=(at < STOP) & kept)


@triton.jit
def return_kernel(
    in_ptr, nbytes_ptr, cache_ptr, ids_ptr,  # as above
    stride_in, stride_nbytes, stride_block, stride_token, stride_head, stride_dim,
    BEGIN: tl.constexpr, END: tl.constexpr, WIDTH: tl.constexpr, BOUND: tl.constexpr,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Copy one tile of one run of a raw row into its block; nothing for any other row."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = in_ptr + row * stride_in
    head = tl.load(row_ptr.to(tl.pointer_type(tl.uint32)))
    sound = ((head & 0xFFFF) == 0) & ((head >> 16) <= T)
    sound = sound & (tl.load(nbytes_ptr + row * stride_nbytes) == BOUND)
    at = BEGIN + tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (at < END) & sound
    used = inside & ((at - BEGIN) // (WIDTH * H) < (head >> 16).to(tl.int32))
    from_ptr = (row_ptr + 16).to(tl.pointer_type(cache_ptr.dtype.element_ty))
    data = tl.load(from_ptr + at, mask=used, other=0)
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    offset = block_offset(at, stride_token, stride_head, stride_dim, H, D)
    tl.store(cache_ptr + offset, data, mask=inside)
