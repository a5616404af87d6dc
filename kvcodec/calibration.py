"""Tables of a plane from the keys or values that a model made: counts of what follows what.

The tables decide how small rows are, never whether they come back, so this may use floats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvcodec import contexts, rans
from kvcodec.bits import FloatFormat, UInt
from kvcodec.exact import widen
from kvcodec.tables import BUCKETS, DEAD, HISTORIES, PREVIOUS, WINDOW, Tables

Ints = rans.Ints

CLASSES = 8  # of channels, by the shape of their exponents' distribution
SIGN_CLASSES = (8, 4)  # by how biased a channel's sign is, then by how it lasts
ROUNDS = 6  # of moving channels between classes
PRIOR = 16  # samples that the table of all contexts together is worth in each of them


def make_tables(windows: Sequence[UInt], fmt: FloatFormat) -> Tables:
    """Tables of one plane from the bit patterns [tokens, heads, head_dim] of sequences.

    Every sequence is read from its first token to its last, so positions weigh as they occur.
    """
    heads, head_dim = windows[0].shape[1:]
    flat = [window.reshape(len(window), -1) for window in windows]
    dead = ~np.any([window.any(0) for window in flat], axis=0)
    histogram = np.sum([_histogram(window, fmt) for window in flat], 0)
    centre = np.where(dead, 0, [_centre(counts) for counts in histogram])
    bias, lasts = _sign_statistics(flat)
    kind = np.where(dead, DEAD, _classes(histogram, centre, dead))
    sign_kind = _sign_classes(bias, lasts, dead)
    arrays = {
        "mean": _mean(flat, fmt),
        "centre": centre.astype(np.uint8),
        "class": kind.astype(np.uint8),
        "flip": ((bias > 0) & ~dead).astype(np.uint8),
        "sign_class": sign_kind.astype(np.uint8),
    }
    arrays = {name: array.reshape(heads, head_dim) for name, array in arrays.items()}
    return Tables((fmt.name, heads, head_dim), arrays | _count(flat, arrays, fmt))


def _histogram(bits: UInt, fmt: FloatFormat) -> Ints:
    """Exponents of every channel, [channels, 256]."""
    exponent = (bits.astype(np.int64) >> fmt.mantissa_bits) & ((1 << fmt.exponent_bits) - 1)
    place = exponent + 256 * np.arange(bits.shape[1])
    return np.bincount(place.reshape(-1), minlength=256 * bits.shape[1]).reshape(-1, 256)


def _centre(counts: Ints) -> int:
    """log2 of the root mean square, nearly and rounded, as an exponent; integers."""
    total = sum(count << 2 * exponent for exponent, count in enumerate(counts.tolist()))
    return (total // max(1, int(counts.sum()))).bit_length() // 2


def _mean(flat: Sequence[UInt], fmt: FloatFormat) -> UInt:
    """Mean of every channel's finite values as bf16 patterns, [channels]."""
    total, number = 0.0, 0
    for window in flat:
        values = widen(window, fmt).astype(np.float64)
        finite = np.isfinite(values)
        total, number = total + np.where(finite, values, 0).sum(0), number + finite.sum(0)
    mean = np.clip(total / np.maximum(number, 1), -3e38, 3e38).astype(np.float32)
    bits = mean.view(np.uint32).astype(np.int64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _sign_statistics(flat: Sequence[UInt]) -> tuple[Ints, Ints]:
    """Per channel: negative less positive values, and signs that are as the one before."""
    top = 8 * flat[0].itemsize - 1
    signs = [(window >> top).astype(np.int64) for window in flat]
    bias = np.sum([2 * s.sum(0) - len(s) for s in signs], 0)
    return bias, np.sum([(s[1:] == s[:-1]).sum(0) for s in signs], 0)


def _quantiles(values: Ints, parts: int) -> Ints:
    """Number of the equal part, by rank, that each value falls in."""
    rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return rank * parts // max(1, values.size)


def _sign_classes(bias: Ints, lasts: Ints, dead: np.typing.NDArray[np.bool_]) -> Ints:
    live = np.flatnonzero(~dead)
    outer, inner = SIGN_CLASSES
    by_bias, found = _quantiles(abs(bias[live]), outer), np.zeros(bias.size, np.int64)
    for part in range(outer):
        members = live[by_bias == part]
        found[members] = part * inner + _quantiles(lasts[members], inner)
    return found


def _classes(histogram: Ints, centre: Ints, dead: np.typing.NDArray[np.bool_]) -> Ints:
    """Class of every channel: each under the class table that codes it shortest, a few rounds.

    Begins with equal parts by entropy.
    """
    symbol = contexts.symbol_of(np.arange(256), centre[:, None])
    counts = np.stack([(histogram * (symbol == s)).sum(1) for s in range(WINDOW + 1)], 1)
    share = counts / counts.sum(1, keepdims=True)
    entropy = -(share * np.log2(np.maximum(share, 1e-12))).sum(1)
    kind = np.zeros(centre.size, np.int64)
    kind[~dead] = _quantiles(entropy[~dead], CLASSES)
    for _ in range(ROUNDS):
        tables = np.stack([counts[(kind == k) & ~dead].sum(0) for k in range(CLASSES)]) + 0.5
        bits = -np.log2(tables / tables.sum(1, keepdims=True))
        kind = (share @ bits.T).argmin(1)
    return kind


def _count(flat: Sequence[UInt], arrays: dict[str, UInt], fmt: FloatFormat) -> dict[str, UInt]:
    """Frequencies given the contexts, from counts over all live channels and tokens."""
    kind = arrays["class"].reshape(-1)
    live = np.flatnonzero(kind != DEAD)
    kind, sign_kind, centre, flip = (
        arrays[name].reshape(-1)[live].astype(np.int64)
        for name in ("class", "sign_class", "centre", "flip")
    )
    leads = 1 << min(fmt.mantissa_bits, contexts.LEADING)
    shapes = {
        "exponents": (CLASSES, PREVIOUS, WINDOW + 1),
        "mantissas": (CLASSES, WINDOW + 1, leads),
        "signs": (SIGN_CLASSES[0] * SIGN_CLASSES[1], HISTORIES, BUCKETS, 2),
    }
    counts = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
    for window in flat:
        wide = window[:, live].astype(np.int64)
        exponent = (wide >> fmt.mantissa_bits) & ((1 << fmt.exponent_bits) - 1)
        leading = (wide >> contexts.low_bits(fmt)) & (leads - 1)
        sign = wide >> (fmt.mantissa_bits + fmt.exponent_bits) ^ flip
        symbol = contexts.symbol_of(exponent, centre)
        previous, bucket = contexts.previous_of(symbol), contexts.bucket_of(symbol)
        nothing, one = np.zeros_like(sign), 1 + sign
        _add(counts["exponents"], kind, np.full_like(symbol, contexts.NONE), symbol)
        _add(counts["exponents"], kind, previous[:-1], symbol[1:])
        _add(counts["mantissas"], kind, symbol, leading)
        _add(counts["signs"], sign_kind, nothing, bucket, sign)
        _add(counts["signs"], sign_kind, one[:-1], bucket[1:], sign[1:])
        two = contexts.history_after(one[:-2], sign[1:-1])
        _add(counts["signs"], sign_kind, two, bucket[2:], sign[2:])
    made = {name: _frequencies(table) for name, table in counts.items()}
    made["mantissas"] = np.pad(made["mantissas"], ((0, 0), (0, 0), (0, 8 - leads)))
    made["signs"] = made["signs"][..., 1]
    return made


def _add(counts: Ints, *index: Ints) -> None:
    """counts[index] += 1 for every element of the indices, which broadcast."""
    place = index[0]
    for at, size in zip(index[1:], counts.shape[1:], strict=True):
        place = place * size + at
    counts += np.bincount(place.reshape(-1), minlength=counts.size).reshape(counts.shape)


def _frequencies(counts: Ints) -> UInt:
    """Tables that sum to 4096 with 1 or more for every symbol; rare contexts lean on all others.

    counts: [classes, ..., symbols].
    """
    classes, symbols = len(counts), counts.shape[-1]
    flat = counts.reshape(classes, -1, symbols)
    together = [rans.normalize(16 * row.sum(0) + 1) for row in flat]
    scaled = flat * (rans.TOTAL // PRIOR) + np.stack(together)[:, None]
    tables = [rans.normalize(row) for row in scaled.reshape(-1, symbols)]
    return np.stack(tables).reshape(counts.shape).astype(np.uint16)
