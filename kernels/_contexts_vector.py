"""Modes 3 and 4 of formats/split.md for many rows at once; bytes of `kvcodec.codecs.split`.

Rows of equally many tokens lie side by side: channels of n rows are n * channels columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvcodec import contexts, rans
from kvcodec.bits import UInt
from kvcodec.block import BlockSpec
from kvcodec.codecs.split import CONTEXT
from kvcodec.contexts import Model
from kvcodec.errors import CorruptDataError
from kvcodec.kernels._bits_vector import pack_raw, plane_nbytes, unpack_raw
from kvcodec.kernels._rans_vector import encode_steps
from kvcodec.row import Row
from kvcodec.tables import WINDOW, Tables

Ints = rans.Ints

MAX_NUMEL = 1 << 18  # elements whose steps are in memory at once
KINDS = 4  # steps of an element


def chunks(rows: list[int], valid: list[int], spec: BlockSpec) -> list[list[int]]:
    """Rows of equally many tokens in runs that are coded together; at most 256."""
    step = min(256, max(1, MAX_NUMEL // spec.numel))
    same: dict[int, list[int]] = {}
    for row in rows:
        same.setdefault(valid[row], []).append(row)
    return [run[i : i + step] for run in same.values() for i in range(0, len(run), step)]


def _model(tables: Tables, spec: BlockSpec, n: int) -> Model:
    """The model of one row, its channels repeated for n rows."""
    model = Model(tables, spec.format)
    for name in ("centre", "kind", "flip", "sign_kind"):
        setattr(model, name, np.tile(getattr(model, name), n))
    return model


def _padded(values: UInt, lanes: int) -> UInt:
    """[n, size] with zeros up to whole rounds of groups."""
    return np.pad(values, ((0, 0), (0, -values.shape[1] % (rans.GROUP * lanes))))


def encode_parts(
    bits: UInt, spec: BlockSpec, tables: Tables, mode: int
) -> list[dict[str, UInt] | None]:
    """Parts of the rows of bits [n, tokens * channels]; None where a dead channel is not zero."""
    n, lanes = len(bits), rans.num_lanes(spec.nbytes)
    model = _model(tables, spec, n)
    block = bits.reshape(n, -1, spec.token_numel)
    live = np.ascontiguousarray(block[:, :, model.channels].transpose(1, 0, 2))  # [tokens, n, c]
    tokens, _, channels = live.shape
    fits = np.count_nonzero(block, (1, 2)) == np.count_nonzero(live, (0, 2))
    steps, low = contexts.code(live.reshape(tokens, -1), model, history=mode == CONTEXT)
    seeds, raw = np.zeros((n, lanes), np.int64), [np.zeros(0, np.uint8)] * n
    if contexts.low_bits(spec.format):
        fmt = contexts.low_format(spec.format)
        fields = low.reshape(tokens, n, channels).swapaxes(0, 1).reshape(n, -1)
        seeds, planes = pack_raw(_padded(fields, lanes), fmt, lanes)
        cuts = plane_nbytes(tokens * channels, fmt, lanes)
        raw = [
            np.concatenate([plane[i, :cut] for plane, cut in zip(planes, cuts, strict=True)])
            for i in range(n)
        ]
    freqs, begins = (_to_lanes(part, n, lanes) for part in steps)
    states, words = encode_steps(freqs, begins, seeds)
    return [
        {"states": states[i], "words": words[i], "raw": raw[i]} if fits[i] else None
        for i in range(n)
    ]


def _to_lanes(values: Ints, n: int, lanes: int) -> Ints:
    """[tokens, 4, n * channels] -> [steps, n * lanes], see `contexts.to_lanes`."""
    tokens, channels = len(values), values.shape[2] // n
    rounds = -(-channels // lanes)
    padded = np.zeros((tokens, KINDS, n, rounds * lanes), values.dtype)
    padded[..., :channels] = values.reshape(tokens, KINDS, n, channels)
    grid = padded.reshape(tokens, KINDS, n, rounds, lanes).transpose(3, 0, 1, 2, 4)
    return grid.reshape(-1, n * lanes)


@dataclass(frozen=True, slots=True)
class _Slots:
    """Tables [contexts, symbols], and the symbol of every slot [contexts * 4096]."""

    freqs: Ints
    begins: Ints
    symbols: UInt

    @classmethod
    def of(cls, freqs: Ints) -> _Slots:
        flat = freqs.reshape(-1, freqs.shape[-1])
        symbols = np.tile(np.arange(flat.shape[1], dtype=np.uint8), len(flat))
        return cls(
            flat.reshape(-1), rans.starts(flat).reshape(-1), symbols.repeat(flat.reshape(-1))
        )


class _Decoder:
    """The states [n, lanes] of n rows, and where each has read to."""

    def __init__(self, rows: list[Row]) -> None:
        self.state = np.stack([row.parts["states"] for row in rows]).astype(np.int64)
        if (self.state < rans.LOWER).any():
            raise CorruptDataError("rANS: an initial state is below 2^16")
        words = [row.parts["words"] for row in rows]
        sizes = np.array([part.size for part in words])
        self.ends = np.cumsum(sizes)
        self.read = self.ends - sizes
        self.stream = np.concatenate([*words, np.zeros(1, np.uint16)]).astype(np.int64)

    def step(self, context: Ints, slots: _Slots, symbols: int) -> Ints:
        """Next symbols [n, w] of the first w lanes, under the tables at `context` [n, w]."""
        state = self.state[:, : context.shape[1]]
        slot = state & (rans.TOTAL - 1)
        symbol = slots.symbols.take(context << rans.PROB_BITS | slot).astype(np.int64)
        at = context * symbols + symbol
        self._advance(
            slots.freqs.take(at) * (state >> rans.PROB_BITS) + slot - slots.begins.take(at)
        )
        return symbol

    def literal(self, live: np.typing.NDArray[np.bool_]) -> Ints:
        """An escaped exponent for the lanes [n, w] that are live, 0 for the others."""
        state = self.state[:, : live.shape[1]]
        slot = state & (rans.TOTAL - 1)
        coded = contexts.LITERAL * (state >> rans.PROB_BITS) + slot % contexts.LITERAL
        self._advance(np.where(live, coded, state))
        return np.where(live, slot // contexts.LITERAL, 0)

    def _advance(self, state: Ints) -> None:
        need = state < rans.LOWER
        if need.any():
            rank = np.cumsum(need, 1) + self.read[:, None] - 1
            state[need] = state[need] << 16 | self.stream.take(rank[need], mode="clip")
            self.read += need.sum(1)
        self.state[:, : state.shape[1]] = state

    def finish(self) -> Ints:
        """The seeds [n, lanes], after the checks of `rans.Decoder.finish`."""
        if (self.read != self.ends).any() or (self.state >> 16 != 1).any():
            raise CorruptDataError("rANS: a stream does not end where its states do")
        return self.state & 0xFFFF


def decode_parts(rows: list[Row], spec: BlockSpec, tables: Tables) -> UInt:
    """Bit patterns [n, tokens * channels] of rows of one mode and equally many tokens."""
    fmt, n, tokens, lanes = spec.format, len(rows), rows[0].num_valid, rans.num_lanes(spec.nbytes)
    if tokens == 0:
        raise CorruptDataError("split: a coded row without valid tokens")
    model, history = Model(tables, fmt), rows[0].mode == CONTEXT
    channels = model.channels.size
    exponents, signs, mantissas = map(_Slots.of, (model.exponents, model.signs, model.mantissas))
    _, previous_of, symbols = model.exponents.shape
    _, histories, buckets, _ = model.signs.shape
    decoder = _Decoder(rows)
    sign, exponent, leading = (np.zeros((tokens, n, channels), np.int64) for _ in range(3))
    for first in range(0, channels, lanes):
        at = slice(first, min(first + lanes, channels))
        kind, sign_kind = model.kind[None, at], model.sign_kind[None, at]
        previous = np.full((n, kind.size), contexts.NONE)
        before = np.zeros_like(previous)
        for t in range(tokens):
            symbol = decoder.step(kind * previous_of + previous, exponents, symbols)
            exponent[t, :, at] = model.centre[at] + symbol - contexts.BELOW
            escaped = symbol == WINDOW
            if escaped.any():
                literal = decoder.literal(escaped)
                exponent[t, :, at] = np.where(escaped, literal, exponent[t, :, at])
            where = (sign_kind * histories + before) * buckets + contexts.bucket_of(symbol)
            coded = decoder.step(where, signs, 2)
            leading[t, :, at] = decoder.step(kind * symbols + symbol, mantissas, 8)
            sign[t, :, at] = coded ^ model.flip[at]
            if history:
                previous = contexts.previous_of(symbol)
                before = contexts.history_after(before, coded)
    if exponent.size and (exponent.min() < 0 or exponent.max() >> fmt.exponent_bits):
        raise CorruptDataError("split: an exponent leaves the range of its type")
    low = _low_bits(rows, decoder.finish(), tokens * channels, spec)
    low = low.reshape(n, tokens, channels).swapaxes(0, 1)
    bits = np.zeros((n, tokens, spec.token_numel), f"u{fmt.itemsize}")
    joined = contexts.join(sign, exponent, leading, low, fmt)
    bits[:, :, model.channels] = joined.swapaxes(0, 1)
    return bits.reshape(n, -1)


def _low_bits(rows: list[Row], seeds: Ints, numel: int, spec: BlockSpec) -> UInt:
    """Low mantissa bits [n, numel], from the raw parts and the seeds."""
    fmt, lanes, parts = spec.format, seeds.shape[1], [row.parts["raw"] for row in rows]
    low = contexts.low_bits(fmt) > 0
    fields = contexts.low_format(fmt)
    cuts = plane_nbytes(numel, fields, lanes) if low else [0]
    for part in parts:
        if part.size != sum(cuts):
            raise CorruptDataError(f"split: raw part has {part.size} bytes, wanted {sum(cuts)}")
    if not low:
        return np.zeros((len(rows), numel), np.int64)
    size = -(-numel // (rans.GROUP * lanes)) * rans.GROUP * lanes
    planes = [np.zeros((len(rows), n), np.uint8) for n in plane_nbytes(size, fields, lanes)]
    for i, part in enumerate(parts):
        for plane, end, cut in zip(planes, np.cumsum(cuts), cuts, strict=True):
            plane[i, :cut] = part[end - cut : end]
    return unpack_raw(planes, seeds, fields)[:, :numel]
