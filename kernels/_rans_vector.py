"""The rANS coder over many rows at once: a step is a few numpy calls on [rows * lanes] states.

Same bytes as `kvcodec.rans`, which defines them. A numpy call costs about a microsecond before it
touches an element, so rows are worth taking together: see `MAX_STATES`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvcodec import rans
from kvcodec.bits import U8
from kvcodec.errors import CorruptDataError

Ints = rans.Ints
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]

# Past this a step's arrays no longer fit the L2 cache, and the calls are long enough anyway. With
# 32 lanes or more it also means at most 256 rows, whose numbers fit a byte.
MAX_STATES = 8192


def normalize(counts: Ints) -> Ints:
    """`rans.normalize` of every row of counts [n, k]; a row of zeros stays zeros."""
    total = counts.sum(1, keepdims=True)
    freqs: Ints = (counts * rans.TOTAL + total // 2) // np.maximum(total, 1)
    freqs[(counts > 0) & (freqs == 0)] = 1
    left = rans.TOTAL - freqs.sum(1)
    left[total[:, 0] == 0] = 0
    while (rows := np.flatnonzero(left)).size:
        change = np.where(left[rows] > 0, left[rows], -1)
        freqs[rows, freqs[rows].argmax(1)] += change
        left[rows] -= change
    return freqs


def lane_lengths(num_symbols: Ints, lanes: int) -> Ints:
    """Symbols of each lane, [n, lanes], for rows of so many symbols [n]."""
    rounds, rest = np.divmod(num_symbols[:, None], rans.GROUP * lanes)
    tail = np.clip(rest - rans.GROUP * np.arange(lanes), 0, rans.GROUP)
    return rounds * rans.GROUP + tail


def encode(symbols: U8, num_symbols: Ints, freqs: Ints, seeds: Ints) -> tuple[U32, list[U16]]:
    """Code the first `num_symbols[i]` of `symbols[i]` under `freqs[i]`, for every row.

    symbols: [n, size], size a multiple of `GROUP * lanes`, zeros past `num_symbols`; n <= 256.
    freqs: [n, 256]. seeds: [n, lanes].
    Returns the states [n, lanes] and each row's words in reading order.

    States are held as float64, whose division vectorises. They stay exact: below 2^32 a quotient
    by f <= 4096 lies 2^-12 or more under the next integer, so rounding to 53 bits never reaches it.
    """
    n, lanes = seeds.shape
    # one more entry, for lanes that have run out: frequency 4096 from slot 0 changes no state
    freq_of = np.append(freqs, rans.TOTAL).astype(np.float64)
    begin_of = np.append(np.cumsum(freqs, 1) - freqs, 0).astype(np.float64)
    lengths = lane_lengths(num_symbols, lanes).reshape(-1)
    starts = set(lengths.tolist())
    table = np.full(n * lanes, 256 * n)
    table_of = np.repeat(np.arange(n) * 256, lanes)
    steps = symbols.reshape(n, -1, lanes, rans.GROUP).transpose(1, 3, 0, 2).reshape(-1, n * lanes)
    at = np.empty(n * lanes, np.intp)
    state = (rans.LOWER + seeds).reshape(-1).astype(np.float64)
    freq, begin, quotient = (np.empty_like(state) for _ in range(3))
    spill = np.empty(state.size, np.bool_)
    spilled, emitted = [], []
    for t in range(lengths.max())[::-1]:
        if t + 1 in starts:
            np.copyto(table, table_of, where=lengths == t + 1)
        np.add(steps[t], table, at)
        freq_of.take(at, out=freq, mode="clip")
        begin_of.take(at, out=begin, mode="clip")
        np.multiply(state, 2.0 ** (rans.PROB_BITS - 32), quotient)
        np.greater_equal(quotient, freq, spill)
        (where,) = spill.nonzero()
        full = state.take(where)
        state[where] = np.floor(full * 2.0**-16)
        spilled.append(where)
        emitted.append(full)
        np.divide(state, freq, quotient)
        np.floor(quotient, quotient)
        np.subtract(rans.TOTAL, freq, freq)  # TOTAL * q + (x - f * q) + b = x + (TOTAL - f) * q + b
        np.multiply(quotient, freq, quotient)
        np.add(state, quotient, state)
        np.add(state, begin, state)
    row_of = np.concatenate(spilled[::-1]) // lanes
    words = np.concatenate(emitted[::-1]).astype(np.uint32).astype(np.uint16)  # low halves
    words = words[np.argsort(row_of.astype(np.uint8), kind="stable")]
    ends = np.cumsum(np.bincount(row_of, minlength=n))
    return state.astype(np.uint32).reshape(n, lanes), np.split(words, ends[:-1])


def decode(
    freqs: Ints, states: U32, words: list[U16], num_symbols: Ints, size: int
) -> tuple[U8, Ints]:
    """Inverse of `encode`: symbols [n, size], 0 past `num_symbols`, and the seeds [n, lanes].

    freqs: [n, 256], each a valid table. size: a multiple of `GROUP * lanes`.

    Raises:
        CorruptDataError: where `rans.Decoder` would.
    """
    reader = Reader(states, words)
    return reader.plane(freqs, num_symbols, size), reader.finish()


class Reader:
    """Walks the streams of many rows, a plane at a time; `rans.Decoder` for a batch."""

    def __init__(self, states: U32, words: list[U16]) -> None:
        if (states < rans.LOWER).any():
            raise CorruptDataError("rANS: an initial state is below 2^16")
        self.shape = states.shape
        self.state: U32 = states.astype(np.uint32).reshape(-1)
        sizes = np.array([row.size for row in words])
        self.ends = np.cumsum(sizes)
        self.read: Ints = self.ends - sizes  # next word of each row in the stream
        self.stream = np.concatenate([*words, np.zeros(1, np.uint16)]).astype(np.uint32)

    def plane(self, freqs: Ints, num_symbols: Ints, size: int) -> U8:
        """Next plane: symbols [n, size], 0 past `num_symbols`; arguments as `decode`."""
        n, lanes = self.shape
        state, stream, read = self.state, self.stream, self.read
        # one table more, for lanes that have run out: frequency 4096 from slot 0 keeps a state
        freq = np.append(freqs, rans.TOTAL)
        begin = np.append(np.cumsum(freqs, 1) - freqs, 0)
        symbol_of = np.repeat(np.arange(freq.size).astype(np.uint8), freq)  # [(n + 1) * 4096]
        entry_of = (freq << rans.PROB_BITS | begin).astype(np.uint32)  # [n * 256 + 1]
        lengths = lane_lengths(num_symbols, lanes).reshape(-1)
        stops = set(lengths.tolist())
        row_of = np.repeat(np.arange(n), lanes)
        slots_at, symbols_at = row_of * rans.TOTAL, row_of * 256
        slot, entry, factor = (np.empty_like(state) for _ in range(3))
        need = np.empty(state.size, np.bool_)
        at, count_up = np.empty(state.size, np.intp), np.arange(state.size)
        u12, u16, mask, lower = map(np.uint32, (rans.PROB_BITS, 16, rans.TOTAL - 1, rans.LOWER))
        steps = np.zeros((size // lanes, n * lanes), np.uint8)
        for t, symbols in enumerate(steps[: lengths.max()]):
            if t in stops:
                slots_at[lengths == t], symbols_at[lengths == t] = n * rans.TOTAL, n * 256
            np.bitwise_and(state, mask, slot)
            np.add(slot, slots_at, at)
            symbol_of.take(at, out=symbols, mode="clip")
            np.add(symbols, symbols_at, at)
            entry_of.take(at, out=entry, mode="clip")
            np.right_shift(entry, u12, factor)
            np.bitwise_and(entry, mask, entry)
            np.right_shift(state, u12, state)
            np.multiply(state, factor, state)
            np.add(state, slot, state)
            np.subtract(state, entry, state)
            np.less(state, lower, need)
            (where,) = need.nonzero()
            rows = row_of.take(where)
            counts = np.bincount(rows, minlength=n)
            read += counts
            # a row's words of this step end where it has read to; those of earlier rows come first
            source = (read - counts.cumsum()).take(rows)
            source += count_up[: where.size]
            refill = state.take(where)
            refill <<= u16
            refill |= stream.take(source, mode="clip")
            state[where] = refill
        grid = steps.reshape(-1, rans.GROUP, n, lanes).transpose(2, 0, 3, 1)
        return grid.reshape(n, -1)

    def finish(self) -> Ints:
        """The seeds [n, lanes], after checking that every stream was used up."""
        if (self.read != self.ends).any() or (self.state >> 16 != 1).any():
            raise CorruptDataError("rANS: a stream does not end where its states do")
        return self.state.reshape(self.shape).astype(np.int64) & 0xFFFF


def encode_steps(freqs: Ints, begins: Ints, seeds: Ints) -> tuple[U32, list[U16]]:
    """`rans.encode` of n rows side by side: grids [steps, n * lanes], frequency 0 for no symbol.

    seeds: [n, lanes], n <= 256. Returns the states [n, lanes] and each row's words.
    """
    n, lanes = seeds.shape
    state = (rans.LOWER + seeds).reshape(-1)
    spilled, emitted = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for freq, begin in zip(freqs[::-1], begins[::-1], strict=True):
        if not freq.any():
            continue
        (where,) = ((freq > 0) & (state >= freq << (32 - rans.PROB_BITS))).nonzero()
        full = state[where]
        state[where] = full >> 16
        spilled.append(where)
        emitted.append(full)
        quotient = state // np.maximum(freq, 1)
        factor = np.where(freq > 0, rans.TOTAL - freq, 0)
        state += factor * quotient + begin  # x + (4096 - f) * (x div f) + b
    row_of = np.concatenate(spilled[::-1]) // lanes
    words = np.concatenate(emitted[::-1]).astype(np.uint16)  # low halves
    words = words[np.argsort(row_of.astype(np.uint8), kind="stable")]
    ends = np.cumsum(np.bincount(row_of, minlength=n))
    return state.astype(np.uint32).reshape(n, lanes), np.split(words, ends[:-1])
