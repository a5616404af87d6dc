"""The steps of formats/rans.md in Triton: one program codes a row, its lanes are a 1-D tensor.

Integer arithmetic only. A state below 2^32 splits as x = 4096 * h + slot, so that f * h < 2^32 and
everything fits uint32. Positions in a stream are int32: a block has at most 2^24 elements.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normalize(counts, total):
    """Frequencies of `rans.normalize` from counts int32 [k] that sum to total > 0."""
    symbol = tl.arange(0, counts.shape[0])
    scaled = counts.to(tl.int64) * 4096 + total // 2
    freqs = (scaled // total).to(tl.int32)
    freqs = tl.where((counts > 0) & (freqs == 0), 1, freqs)
    left = 4096 - tl.sum(freqs)
    while left != 0:  # at most once up, or k times down
        change = tl.where(left > 0, left, -1)
        freqs += tl.where(symbol == tl.argmax(freqs, 0), change, 0)
        left -= change
    return freqs


@triton.jit
def encode_step(state, entry, words_ptr, end):
    """Code one symbol in every lane, or none where entry is 4096; returns state and end.

    state: uint32 [LANES]. entry: uint32 [LANES], `frequency | first slot << 16`.
    words_ptr: uint16, filled downward from `end`; what would fall below 0 is counted, not stored.
    """
    freq = entry & 0xFFFF
    spill = (state >> 20) >= freq  # state >= freq << 20, which would overflow
    spilled = spill.to(tl.int32)
    end -= tl.sum(spilled)
    at = end + tl.cumsum(spilled) - 1
    tl.store(words_ptr + at, (state & 0xFFFF).to(tl.uint16), mask=spill & (at >= 0))
    state = tl.where(spill, state >> 16, state)
    quotient = state // freq
    # 4096 * q + (x - f * q) + b
    return state + quotient * (4096 - freq) + (entry >> 16), end


@triton.jit
def decode_step(state, live, table_ptr, words_ptr, read, num_words):
    """Take one symbol in every live lane; returns symbols, state and read.

    state: uint32 [LANES]. table_ptr: uint32 [4096], as `write_slots` makes it.
    words_ptr: uint16 [num_words]; a damaged stream that asks for more reads zeros.
    """
    entry = tl.load(table_ptr + (state & 4095).to(tl.int32))
    coded = (((entry >> 8) & 0xFFF) + 1) * (state >> 12) + (entry >> 20)
    state = tl.where(live, coded, state)
    need = state < 65536
    needed = need.to(tl.int32)
    at = read + tl.cumsum(needed) - 1
    word = tl.load(words_ptr + at, mask=need & (at < num_words), other=0).to(tl.uint32)
    state = tl.where(need, (state << 16) | word, state)
    return entry & 0xFF, state, read + tl.sum(needed)


@triton.jit
def write_slots(slots_ptr, table_ptr, num_symbols):
    """Expand a row's symbol table into one entry per slot.

    slots_ptr: uint32 [4096], `symbol | frequency - 1 << 8 | slot - first slot << 20`.
    table_ptr: uint8 [3 * num_symbols], 16-byte aligned: frequencies u16, then symbols u8.
    A table that does not sum to 4096 gives wrong entries, all of them inside the array.
    """
    freqs_ptr = table_ptr.to(tl.pointer_type(tl.uint16))
    slot = tl.arange(0, 4096).to(tl.uint32)
    entry = tl.zeros((4096,), tl.uint32)
    begin = tl.load(freqs_ptr).to(tl.uint32) * 0
    k = 0
    while k < num_symbols:
        freq = tl.load(freqs_ptr + k).to(tl.uint32)
        symbol = tl.load(table_ptr + 2 * num_symbols + k).to(tl.uint32)
        packed = symbol | ((freq - 1) & 0xFFF) << 8
        entry = tl.where(slot >= begin, packed | (slot - begin) << 20, entry)
        begin += freq
        k += 1
    tl.store(slots_ptr + slot, entry)
