"""The steps of formats/rans.md in Triton: one program codes a row, its lanes are a 1-D tensor.

Integer arithmetic only. A state below 2^32 splits as x = 4096 * h + slot, so that f * h < 2^32 and
everything fits uint32. Positions in a stream are int32: a block has at most 2^24 elements.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kvcodec.kernels._bits_triton import count_bits


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
def count_before(flags):
    """Flags that are set before each lane, bool [32] or [64], and in all; int32.

    The flags of 32 threads become a word, since a warp adds up distinct bits in one instruction;
    what stands before a lane is a population count. Of 64 lanes a thread has two neighbours.
    """
    bit = 1 << tl.arange(0, 32).to(tl.uint32)
    flags = flags.to(tl.uint32)
    if flags.shape[0] == 64:
        first, second = tl.split(tl.reshape(flags, (32, 2)))
        word0 = tl.sum(tl.where(first != 0, bit, 0).to(tl.int32)).to(tl.uint32)
        word1 = tl.sum(tl.where(second != 0, bit, 0).to(tl.int32)).to(tl.uint32)
        each = count_bits(word0 & (bit - 1)) + count_bits(word1 & (bit - 1))
        before = tl.reshape(tl.join(each, each + first), (64,))
        total = count_bits(word0) + count_bits(word1)
    else:
        word = tl.sum(tl.where(flags != 0, bit, 0).to(tl.int32)).to(tl.uint32)
        before = count_bits(word & (bit - 1))
        total = count_bits(word)
    return before.to(tl.int32), total.to(tl.int32)


@triton.jit
def decode_step(state, live, table_ptr, words_ptr, read, num_words, FULL: tl.constexpr = False):
    """Take one symbol in every live lane; returns their entries, state and read.

    state: uint32 [LANES]. table_ptr: uint32 [4096], an entry a slot: `write_slots`.
    words_ptr: uint16 [num_words]; a damaged stream that asks for more reads zeros.
    FULL: all lanes are live.
    """
    entry = tl.load(table_ptr + (state & 4095).to(tl.int32))
    high = state >> 12
    coded = (entry >> 20) * high + (high + (entry & 0xFFF))
    if not FULL:
        coded = tl.where(live, coded, state)
    need = coded < 65536
    before, total = count_before(need)
    at = read + before
    word = tl.load(words_ptr + at, mask=need & (at < num_words), other=0).to(tl.uint32)
    state = tl.where(need, (coded << 16) | word, coded)
    return entry, state, read + total


@triton.jit
def first_entry(symbol, freq, first):
    """What, with a slot added, tells a decoder about it; wraps around below the first slot.

    An entry is `slot - first | symbol << 12 | frequency - 1 << 20`.
    """
    return ((symbol << 12) | ((freq - 1) << 20)) - first


@triton.jit
def symbol_of(entry):
    """The symbol of a slot's entry, uint32."""
    return (entry >> 12) & 0xFF


@triton.jit
def write_slots(slots_ptr, table_ptr, num_symbols):
    """Expand a row's symbol table into one entry per slot.

    slots_ptr: uint32 [4096], see `first_entry`.
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
        entry = tl.where(slot >= begin, slot + first_entry(symbol, freq, begin), entry)
        begin += freq
        k += 1
    tl.store(slots_ptr + slot, entry)
