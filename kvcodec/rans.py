"""The reference rANS coder: the definition behind formats/rans.md, in integers only.

Interleaved lanes share one stream of 16-bit words. The coder sees a grid `[steps, lanes]`: in
step t every lane with a symbol codes it, then the lanes that must exchange a word do so in
ascending lane order. A decoder walks the steps forward, the encoder backward.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvcodec.bits import U8
from kvcodec.errors import CorruptDataError

PROB_BITS = 12
TOTAL = 1 << PROB_BITS
LOWER = 1 << 16  # states live in [LOWER, 2^32)
ESCAPE = 256  # reserved symbol of static tables
GROUP = 4  # consecutive elements that stay in one lane

Ints = npt.NDArray[np.int64]


def num_lanes(block_nbytes: int) -> int:
    """Lanes of a row, from the raw bytes of a full block."""
    return 64 if block_nbytes >= 16 * 1024 else 32


def normalize(counts: Ints) -> Ints:
    """Frequencies that sum to 4096 with every counted symbol at 1 or more.

    Round half up, then give or take what is left one unit at a time to or from the largest
    frequency, the lowest symbol among equals. All zeros stay zeros.
    """
    total = int(counts.sum())  # exact: integers
    if total == 0:
        return np.zeros_like(counts)
    freqs = (counts * TOTAL + total // 2) // total
    freqs[(counts > 0) & (freqs == 0)] = 1
    while (left := TOTAL - int(freqs.sum())) != 0:  # exact: integers
        freqs[np.argmax(freqs)] += left if left > 0 else -1
    return freqs


def starts(freqs: Ints) -> Ints:
    """First slot of each symbol, [..., symbols]: the frequencies of the symbols before it."""
    return np.cumsum(freqs, -1) - freqs  # exact: integers


def pack_table(freqs: Ints) -> U8:
    """Sparse table: k frequencies u16, then k symbols u8, ascending; 3k bytes."""
    symbols = np.flatnonzero(freqs)
    head = freqs[symbols].astype("<u2").view(np.uint8)
    return np.concatenate([head, symbols.astype(np.uint8)])


def unpack_table(data: U8) -> Ints:
    """Inverse of `pack_table`: int64 [256]; anything that is not a table is an error."""
    k, rest = divmod(data.size, 3)
    freqs = np.zeros(256, np.int64)
    if rest or k == 0 or k > 256:
        raise CorruptDataError(f"symbol table of {data.size} bytes, wanted 3 to 768 in threes")
    symbols = data[2 * k :].astype(np.int64)
    freqs[symbols] = np.frombuffer(data[: 2 * k].tobytes(), "<u2")
    total = int(freqs.sum())  # exact: integers
    if (np.diff(symbols) <= 0).any() or (freqs[symbols] == 0).any() or total != TOTAL:
        raise CorruptDataError(
            "symbol table: symbols do not ascend or frequencies do not sum to 4096"
        )
    return freqs


def to_grid(elements: npt.NDArray[np.generic], lanes: int, fill: int) -> Ints:
    """Element-ordered [n] -> [steps, lanes]; `fill` where a lane has no element.

    Group g of 4 consecutive elements belongs to lane g % lanes.
    """
    rounds = -(-elements.size // (GROUP * lanes))
    grid = np.full(rounds * GROUP * lanes, fill, np.int64)
    grid[: elements.size] = elements
    return grid.reshape(rounds, lanes, GROUP).swapaxes(1, 2).reshape(-1, lanes)


def from_grid(grid: Ints, n: int) -> Ints:
    """Inverse of `to_grid`."""
    lanes = grid.shape[1]
    return grid.reshape(-1, GROUP, lanes).swapaxes(1, 2).reshape(-1)[:n]


def encode(freqs: Ints, begins: Ints, seeds: Ints) -> tuple[Ints, Ints]:
    """Code a grid of symbols given as (frequency, first slot) pairs; frequency 0 marks no symbol.

    seeds: [lanes], 16-bit payload that the decoder gets back from the final states.
    Returns the lanes' states, as the decoder starts from them, and the words in reading order.
    """
    state = LOWER | seeds
    words: list[Ints] = []
    for freq, begin in zip(freqs[::-1], begins[::-1], strict=True):
        spill = (freq > 0) & (state >= freq << (32 - PROB_BITS))
        words.append(state[spill][::-1] & 0xFFFF)
        state = np.where(spill, state >> 16, state)
        divisor = np.maximum(freq, 1)
        coded = ((state // divisor) << PROB_BITS) + state % divisor + begin
        state = np.where(freq > 0, coded, state)
    stream = np.concatenate(words)[::-1] if words else np.zeros(0, np.int64)
    return state, stream


class Decoder:
    """Walks a stream forward; a caller may choose another table at every step."""

    def __init__(self, states: npt.NDArray[np.uint32], words: npt.NDArray[np.uint16]) -> None:
        self.state: Ints = states.astype(np.int64)
        self.words: Ints = words.astype(np.int64)
        self.read = 0
        if (self.state < LOWER).any():
            raise CorruptDataError("rANS: an initial state is below 2^16")

    def step(self, freqs: Ints, live: npt.NDArray[np.bool_]) -> Ints:
        """Next symbol of every live lane (0 elsewhere) under a table of 256 frequencies."""
        slot = self.state & (TOTAL - 1)
        symbol = np.repeat(np.arange(freqs.size), freqs)[slot]
        coded = freqs[symbol] * (self.state >> PROB_BITS) + slot - starts(freqs)[symbol]
        self._advance(np.where(live, coded, self.state))
        return np.where(live, symbol, 0)

    def step_each(self, freqs: Ints) -> Ints:
        """Next symbol of the first n lanes, each under a table of its own: freqs [n, symbols]."""
        slot = self.state[: len(freqs)] & (TOTAL - 1)
        begins = starts(freqs)
        symbol = (begins <= slot[:, None]).sum(1) - 1
        freq, begin = (np.take_along_axis(x, symbol[:, None], 1)[:, 0] for x in (freqs, begins))
        coded = freq * (self.state[: len(freqs)] >> PROB_BITS) + slot - begin
        self._advance(np.append(coded, self.state[len(freqs) :]))
        return symbol

    def _advance(self, state: Ints) -> None:
        """The next states, each below 2^16 refilled by a word in ascending lane order."""
        self.state = state
        need = self.state < LOWER
        count = int(need.sum())  # exact: integers
        if self.read + count > self.words.size:
            raise CorruptDataError(f"rANS: the stream of {self.words.size} words is cut")
        self.state[need] = self.state[need] << 16 | self.words[self.read : self.read + count]
        self.read += count

    def finish(self) -> Ints:
        """The seeds, after checking that the stream was used up and every lane came home."""
        if self.read != self.words.size or (self.state >> 16 != 1).any():
            raise CorruptDataError("rANS: the stream does not end where its states do")
        return self.state & 0xFFFF
