"""Exponents, signs and leading mantissa bits coded with a profile's tables; modes 3 and 4 of split.

Integers only; formats/split.md is the page. A lane owns a channel and walks its tokens, so what
came before in the channel chooses the table without a word between lanes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvcodec import rans
from kvcodec.bits import FloatFormat, UInt
from kvcodec.errors import CorruptDataError
from kvcodec.tables import DEAD, PREVIOUS, WINDOW, Tables

Ints = rans.Ints

NAMES = ("centre", "class", "exponents", "flip", "mantissas", "sign_class", "signs")
BELOW = 16  # of the window, how much lies below the centre
STEPS = PREVIOUS - 2  # exponents before that tables tell apart, the outer ones together
LEADING = 3  # mantissa bits that are coded
LITERAL = 16  # frequency of each of the 256 values of an escaped exponent
UNIFORM = np.full(256, LITERAL)
CERTAIN = np.append(rans.TOTAL, np.zeros(255, np.int64))  # one symbol: no step at all
NONE = PREVIOUS - 1  # nothing before


def live_channels(tables: Tables) -> Ints:
    """Numbers of the channels that are coded, ascending; the others are zero."""
    return np.flatnonzero(tables.arrays["class"].reshape(-1) != DEAD)


def low_bits(fmt: FloatFormat) -> int:
    """Mantissa bits that are stored as they are."""
    return max(0, fmt.mantissa_bits - LEADING)


def low_format(fmt: FloatFormat) -> FloatFormat:
    """A format whose sign-mantissa field is as wide as the low bits."""
    return replace(fmt, mantissa_bits=low_bits(fmt) - 1)


def symbol_of(exponent: Ints, centre: Ints) -> Ints:
    """0..23 in the window about the centre, 24 (the escape) outside."""
    symbol = exponent - centre + BELOW
    return np.where((symbol < 0) | (symbol >= WINDOW), WINDOW, symbol)


def step_of(symbol: Ints) -> Ints:
    """0..12: the symbol as a context, from 7 below the centre to 5 above."""
    return np.clip(symbol - (BELOW - 7), 0, STEPS - 1)


def previous_of(symbol: Ints) -> Ints:
    """The context that a symbol is to the token after it."""
    return np.where(symbol == WINDOW, STEPS, step_of(symbol))


def bucket_of(symbol: Ints) -> Ints:
    """0..4: the magnitude as a context of the sign."""
    return step_of(symbol) // 3


def history_after(history: Ints, sign: Ints) -> Ints:
    """Signs before the next token: 0 none, 1 + s one, 3 + 2 r + s two, r the older."""
    older = np.where(history < 3, history - 1, (history - 3) & 1)
    return np.where(history == 0, 1 + sign, 3 + 2 * older + sign)


class Model:
    """Tables as integers, and what the live channels use of them, [channels] each."""

    def __init__(self, tables: Tables, fmt: FloatFormat) -> None:
        arrays = {name: tables.arrays[name].astype(np.int64) for name in NAMES}
        self.fmt = fmt
        self.channels = live_channels(tables)
        self.centre, self.kind, self.flip, self.sign_kind = (
            arrays[name].reshape(-1)[self.channels]
            for name in ("centre", "class", "flip", "sign_class")
        )
        self.exponents, self.mantissas = arrays["exponents"], arrays["mantissas"]
        self.signs = np.stack([rans.TOTAL - arrays["signs"], arrays["signs"]], -1)


def pair(freqs: Ints, *index: Ints) -> Ints:
    """(frequency, first slot) of the symbols at `index`, the last of which is the symbol."""
    return np.stack([freqs[index], rans.starts(freqs)[index]])


def code(bits: UInt, model: Model, *, history: bool) -> tuple[Ints, UInt]:
    """What the coder takes of the bit patterns [tokens, channels] of live channels.

    Returns (frequency, first slot) [2, tokens, 4, channels], the 4 being exponent, escaped
    exponent, sign and leading mantissa bits, and the low mantissa bits [tokens, channels].
    """
    fmt, kind, sign_kind = model.fmt, model.kind, model.sign_kind
    m, low = fmt.mantissa_bits, low_bits(fmt)
    wide = bits.astype(np.int64)
    exponent = (wide >> m) & ((1 << fmt.exponent_bits) - 1)
    leading = (wide & ((1 << m) - 1)) >> low
    sign = wide >> (m + fmt.exponent_bits) ^ model.flip
    symbol = symbol_of(exponent, model.centre)
    previous = np.full_like(symbol, NONE)
    before = np.zeros_like(symbol)
    if history:
        previous[1:] = previous_of(symbol[:-1])
        for t in range(1, len(symbol)):
            before[t] = history_after(before[t - 1], sign[t - 1])
    escaped = np.where(symbol == WINDOW, LITERAL, 0)
    steps = (
        pair(model.exponents, kind, previous, symbol),
        np.stack([escaped, escaped * exponent]),
        pair(model.signs, sign_kind, before, bucket_of(symbol), sign),
        pair(model.mantissas, kind, symbol, leading),
    )
    return np.stack(steps, 2), (wide & ((1 << low) - 1)).astype(f"u{fmt.itemsize}")


def to_lanes(values: Ints, lanes: int) -> Ints:
    """[tokens, 4, channels] -> [steps, lanes]; lane l walks channels l, l + L, ... in turn."""
    tokens, kinds, channels = values.shape
    rounds = -(-channels // lanes)
    padded = np.pad(values, ((0, 0), (0, 0), (0, rounds * lanes - channels)))
    return padded.reshape(tokens, kinds, rounds, lanes).transpose(2, 0, 1, 3).reshape(-1, lanes)


def decode(
    decoder: rans.Decoder, tokens: int, model: Model, lanes: int, *, history: bool
) -> tuple[Ints, Ints, Ints]:
    """Sign, exponent and leading mantissa bits [tokens, channels] of the live channels."""
    channels = model.channels.size
    sign, exponent, leading = (np.zeros((tokens, channels), np.int64) for _ in range(3))
    for first in range(0, channels, lanes):
        lane = np.arange(min(lanes, channels - first))
        at = first + lane
        kind, sign_kind = model.kind[at], model.sign_kind[at]
        previous, before = np.full(at.size, NONE), np.zeros(at.size, np.int64)
        for t in range(tokens):
            symbol = decoder.step_each(model.exponents[kind, previous])
            escaped = symbol == WINDOW
            literal = decoder.step_each(np.where(escaped[:, None], UNIFORM, CERTAIN))
            exponent[t, at] = np.where(escaped, literal, model.centre[at] + symbol - BELOW)
            coded = decoder.step_each(model.signs[sign_kind, before, bucket_of(symbol)])
            leading[t, at] = decoder.step_each(model.mantissas[kind, symbol])
            sign[t, at] = coded ^ model.flip[at]
            if history:
                previous, before = previous_of(symbol), history_after(before, coded)
    if exponent.size and (exponent.min() < 0 or exponent.max() >> model.fmt.exponent_bits):
        raise CorruptDataError("split: an exponent leaves the range of its type")
    return sign, exponent, leading


def join(sign: Ints, exponent: Ints, leading: Ints, low: UInt, fmt: FloatFormat) -> UInt:
    """Bit patterns out of their fields."""
    m = fmt.mantissa_bits
    bits = sign << (m + fmt.exponent_bits) | exponent << m | leading << low_bits(fmt) | low
    return bits.astype(f"u{fmt.itemsize}")
