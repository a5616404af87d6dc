"""Codes below n packed into bytes: a bit stream for powers of two, else digits of an integer.

Where n is not a power of two, `group(n)` codes share an integer of a few bytes: 10 codes below 48
take 7 bytes. formats/turboangle.md.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kvcodec.bits import U8

Codes = npt.NDArray[np.int64]


def is_power_of_two(n: int) -> bool:
    """Whether codes have whole bits."""
    return n & (n - 1) == 0


@lru_cache(maxsize=64)
def group(n: int) -> tuple[int, int]:
    """(m, b): m codes below n in an integer of b bytes.

    b is at most 8 and chosen for the fewest bytes per code; of equals, the smallest.
    """
    best = (1, digits_nbytes(n, 1))
    for nbytes in range(best[1], 9):
        m = 1
        while n ** (m + 1) <= 256**nbytes:  # exact: integers
            m += 1
        if nbytes * best[0] < best[1] * m:
            best = (m, nbytes)
    return best


def digits_nbytes(n: int, count: int) -> int:
    """Bytes of the smallest integer type that holds `count` digits to the base n."""
    return -(-(n**count - 1).bit_length() // 8)  # exact: integers


def packed_nbytes(count: int, n: int) -> int:
    """Bytes of `count` codes."""
    if is_power_of_two(n):
        return digits_nbytes(n, count)
    m, nbytes = group(n)
    return count // m * nbytes + digits_nbytes(n, count % m)


def pack(codes: Codes, n: int) -> U8:
    """[..., count] codes below n to [..., packed_nbytes]."""
    count = codes.shape[-1]
    if is_power_of_two(n):
        places = np.arange(n.bit_length() - 1)
        stream = (codes[..., None] >> places & 1).reshape(*codes.shape[:-1], -1)
        return np.packbits(stream.astype(np.uint8), axis=-1, bitorder="little")
    m, nbytes = group(n)
    pieces = []
    for begin in range(0, count, m):
        digits = codes[..., begin : begin + m].astype(np.uint64)
        word = np.zeros(digits.shape[:-1], "<u8")
        for j in reversed(range(digits.shape[-1])):
            word = word * np.uint64(n) + digits[..., j]
        size = nbytes if digits.shape[-1] == m else digits_nbytes(n, digits.shape[-1])
        pieces.append(word.astype("<u8")[..., None].view(np.uint8)[..., :size])
    return np.concatenate(pieces, -1)


def unpack(packed: U8, count: int, n: int) -> Codes:
    """[..., packed_nbytes] to [..., count] codes below n, whatever the bytes are."""
    if is_power_of_two(n):
        width = n.bit_length() - 1
        stream = np.unpackbits(packed, axis=-1, count=count * width, bitorder="little")
        bits = stream.reshape(*packed.shape[:-1], count, width).astype(np.int64)
        return (bits << np.arange(width)).sum(-1)
    m, nbytes = group(n)
    codes = np.zeros((*packed.shape[:-1], count), np.int64)
    for begin in range(0, count, m):
        data = packed[..., begin // m * nbytes :][..., :nbytes]
        wide = np.zeros((*data.shape[:-1], 8), np.uint8)
        wide[..., : data.shape[-1]] = data
        word = wide.view("<u8")[..., 0]
        for j in range(begin, min(begin + m, count)):
            codes[..., j] = (word % np.uint64(n)).astype(np.int64)
            word = word // np.uint64(n)
    return codes
