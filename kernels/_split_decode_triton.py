"""The three kernels that decode split rows: expand the tables, decode, fill in the rest."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._bits_triton import (
    join4,
    join_fields,
    load_fields,
    plane_nbytes,
    raw_nbytes,
)
from kvcodec.kernels._centring_triton import write_origins
from kvcodec.kernels._rans_triton import decode_step, symbol_of, write_slots
from kvcodec.kernels._rows_triton import align16, block_offset


@triton.jit
def read_prefix(
    row_ptr, nbytes, row_nbytes,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, Q: tl.constexpr, LANES: tl.constexpr,
    CENTRED: tl.constexpr = False,
):  # fmt: skip
    """Mode, valid elements, table entries, words and centres of a row, in bytes with padding.

    A damaged row has mode -1 and no elements. Another mode promises that the parts have their sizes
    and tile the row, inside its slot.
    """
    head_ptr = row_ptr.to(tl.pointer_type(tl.uint32))
    head = tl.load(head_ptr)
    mode = (head & 0xFFFF).to(tl.int32)  # with the reserved byte, which is zero
    valid = (head >> 16).to(tl.int32)
    n = tl.minimum(valid, T) * (H * D)
    count0 = tl.load(head_ptr + 1).to(tl.int64)
    count1 = tl.load(head_ptr + 2).to(tl.int64)
    count2 = tl.load(head_ptr + 3).to(tl.int64)
    plain = (count0 == n * ((1 + E + M) // 8)) & (nbytes == 16 + align16(count0))
    coded = (n > 0) & (count0 > 0) & (count0 <= 768) & (count0 % 3 == 0)
    coded = coded & (count2 == raw_nbytes(n, Q, W0, W1, W2, LANES))
    side = 0
    known = mode == 1
    if CENTRED:
        side += tl.where(mode == 2, align16((H * D + 3) // 4 + (H * D + 7) // 8 + 1), 0)
        known = known | (mode == 2)
    parts = align16(count0) + side + 4 * LANES + align16(2 * count1) + align16(count2)
    coded = coded & (nbytes == 16 + parts)
    sound = ((mode == 0) & plain) | (known & coded)
    sound = sound & (nbytes >= 16) & (nbytes <= row_nbytes) & (valid <= T)
    mode = tl.where(sound, mode, -1)
    n = tl.where(sound, n, 0)
    return mode, n, (count0 // 3).to(tl.int32), count1.to(tl.int32), side


@triton.jit
def slots_kernel(
    rows_ptr,  # uint8 [n, row_nbytes], 16-byte aligned
    nbytes_ptr,  # int32 [n], strided
    slots_ptr,  # uint32 [n, 4096]
    stride_row, stride_nbytes, row_nbytes,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, Q: tl.constexpr, LANES: tl.constexpr,
    origins_ptr=None,  # uint8 [n, C]
    CENTRED: tl.constexpr = False,
):  # fmt: skip
    """Decoding table of one coded row, and what its channels add to symbols.

    Reads the row's table and centres, writes 16 KiB and a byte a channel.
    """
    row = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + row * stride_row
    mode, _, num_symbols, _, _ = read_prefix(
        row_ptr, tl.load(nbytes_ptr + row * stride_nbytes), row_nbytes,
        T, H, D, E, M, W0, W1, W2, Q, LANES, CENTRED,
    )  # fmt: skip
    if mode > 0:
        write_slots(slots_ptr + row * 4096, row_ptr + 16, num_symbols)
        if CENTRED:
            write_origins(
                row_ptr, origins_ptr + row * (H * D), mode == 2, 16 + align16(3 * num_symbols),
                H * D,
            )  # fmt: skip


@triton.jit
def load_raw(
    raw_ptr,  # uint8, the raw part of a row of n elements
    first, element,  # int32: an element's field in the first plane, and in the others
    in_first, in_rest,  # which of them to load
    n,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, Q: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Sign-mantissa fields, uint32; bits of planes that are not loaded are zero."""
    raw = load_fields(raw_ptr, first, in_first, W0)
    if W1 > 0:
        raw_ptr += plane_nbytes(n, Q, W0, LANES)
        raw = raw | load_fields(raw_ptr, element, in_rest, W1) << W0
        if W2 > 0:
            raw_ptr += plane_nbytes(n, 0, W1, LANES)
            raw = raw | load_fields(raw_ptr, element, in_rest, W2) << (W0 + W1)
    return raw


@triton.jit
def add_origin(symbol, origins_ptr, row, element, live, C: tl.constexpr, E: tl.constexpr):
    """Exponents of symbols, uint32."""
    origin = tl.load(origins_ptr + row * C + element % C, mask=live, other=0)
    return (symbol + origin.to(tl.uint32)) & ((1 << E) - 1)


@triton.jit
def decode_group(
    state, at, n, slots_ptr, words_ptr, read, num_words,
    GROUPED: tl.constexpr = False, FULL: tl.constexpr = False,
):  # fmt: skip
    """Entries of the four elements from `at` on in each lane, then state and words read.

    GROUPED: they are all below n or none of them. FULL: all are.
    """
    live = at < n
    a, state, read = decode_step(state, live, slots_ptr, words_ptr, read, num_words, FULL)
    if not GROUPED:
        live = at + 1 < n
    b, state, read = decode_step(state, live, slots_ptr, words_ptr, read, num_words, FULL)
    if not GROUPED:
        live = at + 2 < n
    c, state, read = decode_step(state, live, slots_ptr, words_ptr, read, num_words, FULL)
    if not GROUPED:
        live = at + 3 < n
    d, state, read = decode_step(state, live, slots_ptr, words_ptr, read, num_words, FULL)
    return a, b, c, d, state, read


@triton.jit
def pair_exponents(a, b, origins, CENTRED: tl.constexpr):
    """Exponents of two entries at bit 7 of the halves of a word."""
    if CENTRED:
        symbols = ((a >> 12) & 0xFF) | ((b << 4) & 0xFF0000)
        exponents = ((symbols + ((origins & 0xFF) | ((origins << 8) & 0xFF0000))) & 0xFF00FF) << 7
    else:
        exponents = ((a >> 5) & 0x7F80) | ((b << 11) & 0x7F800000)
    return exponents


@triton.jit
def join_groups(a, b, c, d, raw, origins, CENTRED: tl.constexpr):
    """bf16 elements of groups, int64, from their entries and four bytes of fields, uint32.

    Of two fields side by side, the sign of the lower and the mantissa of the upper move together.
    """
    first = (raw & 0x7F) | ((raw << 8) & 0x7F8000) | ((raw << 16) & 0x80000000)
    second = ((raw >> 16) & 0x7F) | ((raw >> 8) & 0x7F8000) | (raw & 0x80000000)
    first = first | pair_exponents(a, b, origins, CENTRED)
    second = second | pair_exponents(c, d, origins >> 16, CENTRED)
    return (first.to(tl.uint64) | (second.to(tl.uint64) << 32)).to(tl.int64, bitcast=True)


@triton.jit
def load_origins(origins_ptr, row, group, live, C: tl.constexpr, CENTRED: tl.constexpr):
    """Four bytes of origins of each group, uint32; anything unless CENTRED."""
    origins = group.to(tl.uint32)
    if CENTRED:
        origins_ptr = origins_ptr.to(tl.pointer_type(tl.uint32)) + row * (C // 4)
        origins = tl.load(origins_ptr + group % (C // 4), mask=live, other=0)
    return origins


@triton.jit
def decode_groups(
    row_ptr, slots_ptr, cache_ptr, origins_ptr, row, n, num_words, states_at,
    stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr, LANES: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """Elements of a coded row of bf16 in a cache of groups; D is a multiple of 4.

    A lane's group is a word of fields, four entries and one store of 8 bytes.
    """
    C: tl.constexpr = H * D
    lane = tl.arange(0, LANES)
    words_at = states_at + 4 * LANES
    raw_ptr = row_ptr + words_at + align16(2 * num_words)
    words_ptr = (row_ptr + words_at).to(tl.pointer_type(tl.uint16))
    # fields of a group, but for the first groups, whose first two are in the seeds
    fields_ptr = (raw_ptr - 2 * LANES).to(tl.pointer_type(tl.uint32))
    state = tl.load((row_ptr + states_at).to(tl.pointer_type(tl.uint32)) + lane)
    a0, b0, c0, d0, state, read = decode_group(
        state, 4 * lane, n, slots_ptr, words_ptr, 0, num_words, True
    )
    FULL: tl.constexpr = C % (4 * LANES) == 0  # rounds, because tokens are made of such
    # where rounds are also made of whole heads, lanes keep their place in a round
    STEADY: tl.constexpr = FULL and 4 * LANES % D == 0
    home = block_offset(lane, stride_token, stride_head, stride_dim, H, D // 4)
    begin = LANES
    while 4 * begin < n:
        group = begin + lane
        live = 4 * group < n
        if FULL:
            raw = tl.load(fields_ptr + group)
        else:
            raw = tl.load(fields_ptr + group, mask=live, other=0)
        a, b, c, d, state, read = decode_group(
            state, 4 * group, n, slots_ptr, words_ptr, read, num_words, True, FULL
        )
        origins = load_origins(origins_ptr, row, group, live, C, CENTRED)
        elements = join_groups(a, b, c, d, raw, origins, CENTRED)
        if STEADY:
            token = tl.cast(begin // (C // 4), tl.int64)
            head = tl.cast(begin // (D // 4) % H, tl.int64)
            offset = home + (token * stride_token + head * stride_head)
        else:
            offset = block_offset(group, stride_token, stride_head, stride_dim, H, D // 4)
        if FULL:
            tl.store(cache_ptr + offset, elements)
        else:
            tl.store(cache_ptr + offset, elements, mask=live)
        begin += LANES
    live = 4 * lane < n
    raw = tl.load(raw_ptr.to(tl.pointer_type(tl.uint16)) + lane, mask=live, other=0)
    raw = (state & 0xFFFF) | (raw.to(tl.uint32) << 16)
    origins = load_origins(origins_ptr, row, lane, live, C, CENTRED)
    tl.store(cache_ptr + home, join_groups(a0, b0, c0, d0, raw, origins, CENTRED), mask=live)


@triton.jit
def decode_kernel(
    rows_ptr, nbytes_ptr, slots_ptr,  # as slots_kernel
    cache_ptr,  # intW [num_blocks, T, H, D], any strides; or groups, int64 [..., D / 4]
    ids_ptr,  # int64 [n]
    stride_row, stride_nbytes, row_nbytes, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, Q: tl.constexpr, LANES: tl.constexpr,
    GROUPED: tl.constexpr,
    origins_ptr=None, CENTRED: tl.constexpr = False,  # as slots_kernel
):  # fmt: skip
    """Valid elements of one coded row. Reads the row and its slots, writes the elements once."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + row * stride_row
    mode, n, num_symbols, num_words, side = read_prefix(
        row_ptr, tl.load(nbytes_ptr + row * stride_nbytes), row_nbytes,
        T, H, D, E, M, W0, W1, W2, Q, LANES, CENTRED,
    )  # fmt: skip
    if mode > 0:
        cache_ptr += tl.load(ids_ptr + row) * stride_block
        slots_ptr += row * 4096
        states_at = 16 + align16(3 * num_symbols) + side
        if GROUPED:
            decode_groups(
                row_ptr, slots_ptr, cache_ptr, origins_ptr, row, n, num_words, states_at,
                stride_token, stride_head, stride_dim, H, D, LANES, CENTRED,
            )  # fmt: skip
        else:
            decode_elements(
                row_ptr, slots_ptr, cache_ptr, origins_ptr, row, n, num_words, states_at,
                stride_token, stride_head, stride_dim,
                H, D, E, M, W0, W1, W2, Q, LANES, CENTRED,
            )  # fmt: skip


@triton.jit
def decode_elements(
    row_ptr, slots_ptr, cache_ptr, origins_ptr, row, n, num_words, states_at,
    stride_token, stride_head, stride_dim,
    H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, Q: tl.constexpr, LANES: tl.constexpr,
    CENTRED: tl.constexpr,
):  # fmt: skip
    """Elements of a coded row, of any format, in a cache of elements."""
    lane = tl.arange(0, LANES)
    head = tl.arange(0, 4 * LANES)  # elements of round 0
    words_at = states_at + 4 * LANES
    raw_ptr = row_ptr + words_at + align16(2 * num_words)
    words_ptr = (row_ptr + words_at).to(tl.pointer_type(tl.uint16))
    state = tl.load((row_ptr + states_at).to(tl.pointer_type(tl.uint32)) + lane)

    # Round 0 lacks the fields that the last states carry: its exponents wait in registers.
    a, b, c, d, state, read = decode_group(state, 4 * lane, n, slots_ptr, words_ptr, 0, num_words)
    waiting = symbol_of(join4(a, b, c, d, LANES))
    begin = 4 * LANES
    while begin < n:
        element = begin + head
        live = element < n
        raw = load_raw(raw_ptr, element - Q * LANES, element, live, live, n, W0, W1, W2, Q, LANES)
        a, b, c, d, state, read = decode_group(
            state, begin + 4 * lane, n, slots_ptr, words_ptr, read, num_words
        )
        exponent = symbol_of(join4(a, b, c, d, LANES))
        if CENTRED:
            exponent = add_origin(exponent, origins_ptr, row, element, live, H * D, E)
        bits = join_fields(exponent, raw, E, M)
        offset = block_offset(element, stride_token, stride_head, stride_dim, H, D)
        tl.store(cache_ptr + offset, bits.to(cache_ptr.dtype.element_ty), mask=live)
        begin += 4 * LANES

    live = head < n
    column = head % 4
    first = head // 4 * (4 - Q) + column - Q
    raw = load_raw(raw_ptr, first, head, live & (column >= Q), live, n, W0, W1, W2, Q, LANES)
    seed = state & 0xFFFF
    seed = join4(seed, seed >> W0, seed >> (2 * W0), seed >> (3 * W0), LANES)
    raw = raw | tl.where(column < Q, seed & ((1 << W0) - 1), 0)
    offset = block_offset(head, stride_token, stride_head, stride_dim, H, D)
    if CENTRED:
        waiting = add_origin(waiting, origins_ptr, row, head, live, H * D, E)
    bits = join_fields(waiting, raw, E, M)
    tl.store(cache_ptr + offset, bits.to(cache_ptr.dtype.element_ty), mask=live)


@triton.jit
def fill_kernel(
    rows_ptr, nbytes_ptr,  # as slots_kernel
    cache_ptr, ids_ptr,  # as decode_kernel
    stride_row, stride_nbytes, row_nbytes, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, Q: tl.constexpr, LANES: tl.constexpr,
    TILE: tl.constexpr, CENTRED: tl.constexpr = False,
):  # fmt: skip
    """One tile of what decode_kernel leaves: the elements of raw rows, zeros in unused slots."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + row * stride_row
    mode, n, _, _, _ = read_prefix(
        row_ptr, tl.load(nbytes_ptr + row * stride_nbytes), row_nbytes,
        T, H, D, E, M, W0, W1, W2, Q, LANES, CENTRED,
    )  # fmt: skip
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    elements_ptr = (row_ptr + 16).to(tl.pointer_type(cache_ptr.dtype.element_ty))
    raw = tl.where(mode == 0, n, 0)
    elements = tl.load(elements_ptr + at, mask=at < raw, other=0)
    cache_ptr += tl.load(ids_ptr + row) * stride_block
    offset = block_offset(at, stride_token, stride_head, stride_dim, H, D)
    left = (at >= n - raw) & (at < T * H * D)
    tl.store(cache_ptr + offset, elements, mask=left)
