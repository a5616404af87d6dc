"""Channel centring of exponents: where each channel lies, and what coding it would cost.

A channel is one (head, dim) of a block. In integers only; formats/split.md, mode 2, is the page.
"""

from __future__ import annotations

import numpy as np

from kvcodec import rans
from kvcodec.bits import U8, pack_plane, unpack_plane
from kvcodec.row import align

WINDOW = 8  # octaves that centres may span: 3 bits a channel
BELOW = 3  # of them below the mean centre
COST_BITS = 12  # fraction bits of an estimated cost


def part_nbytes(channels: int) -> int:
    """Bytes of the part that says where the channels lie."""
    return -(-channels // 4) - (-channels // 8) + 1


def centres(exponent: U8) -> rans.Ints:
    """Centre of every channel, [channels], from exponents [tokens, channels].

    M, M - 1 or M - 2, with M the largest exponent: M less the mean of min(M - exponent, 2), rounded
    with ties to M. Exact zeros and the long tail of small values count like M - 2.
    """
    tokens = len(exponent)
    most = exponent.max(0).astype(np.int64)
    below = np.minimum(most - exponent, 2).sum(0)  # exact: integers
    return most - (2 * below > tokens) - (2 * below > 3 * tokens)


def measure(exponent: U8, exponent_bits: int) -> U8:
    """The centres part of a row: fields in planes of 2 and 1 bits, then the base.

    The base is the mean centre, ties up, less 3, less half the range of an exponent: symbols then
    lie about the middle of their range. A centre outside the window is drawn to its edge.
    """
    middle = centres(exponent)
    total, channels = int(middle.sum()), middle.size  # exact: integers
    first = (2 * total + channels) // (2 * channels) - BELOW
    field = np.clip(middle - first, 0, WINDOW - 1)
    planes = [
        pack_plane(np.pad(part, (0, -channels % (8 // width))), width)
        for part, width in ((field & 3, 2), (field >> 2, 1))
    ]
    base = np.array([(first - (1 << (exponent_bits - 1))) & 0xFF], np.uint8)
    return np.concatenate([*planes, base])


def origins(part: U8, channels: int) -> U8:
    """What a reader adds to the symbols of each channel, [channels], from a centres part."""
    cut = -(-channels // 4)
    low, high = unpack_plane(part[:cut], 2), unpack_plane(part[cut:-1], 1)
    field = low[:channels] | high[:channels] << 2
    return field + part[-1]  # mod 256


def estimate(counts: rans.Ints) -> int:
    """Bytes that a table and its words take, nearly, from the counts of symbols [256].

    A symbol costs 12 - log2(f) bits; log2 between powers of two is a parabola, off by at most
    0.0085, so that no library decides a mode.
    """
    present = counts > 0
    freq = rans.normalize(counts)[present]
    power = np.searchsorted(1 << np.arange(rans.PROB_BITS + 1), freq, side="right") - 1
    x = (freq << (rans.PROB_BITS - power)) - rans.TOTAL  # 4096 times the fraction
    curve = (x * (rans.TOTAL - x) * 11) >> 17
    cost = ((rans.PROB_BITS - power) << COST_BITS) - x - curve
    total = int((counts[present] * cost).sum())  # exact: integers
    return align(3 * freq.size) + (total >> (COST_BITS + 3))
