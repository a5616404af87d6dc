"""A row: the bytes of one encoded block. Prefix, then the parts the codec declares.

    byte 0     mode u8
    byte 1     reserved, zero
    byte 2     num_valid u16
    byte 4     a u32 count for every variable part, in declared order
    ...        zeros to a multiple of 16; then each part, zero-padded to a multiple of 16

Little-endian throughout. `nbytes` is the end of the last part's padding: the parts tile the row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvcodec.bits import U8
from kvcodec.errors import CorruptDataError

if TYPE_CHECKING:
    from kvcodec.block import EncodedBlocks

ALIGNMENT = 16


def align(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment of parts and rows."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a row: numpy dtype string (little-endian) and shape.

    shape: None for a variable part, a 1-D array whose length stands as a count in the prefix.
    head_axis: the axis of `shape` that runs over heads, when heads can be cut out of the row.
    coding: how `entropy=rans` codes the part, see `kvcodec.stack`.
    tokens: tokens that an entry along the first axis belongs to; entries of unused tokens are
        zeros, and `entropy=rans` leaves them out. 0: the part belongs to the block as a whole.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None = None
    head_axis: int | None = None
    coding: str = "raw"
    tokens: int = 0

    def nbytes(self, count: int = 0) -> int:
        """Bytes of the part without padding; `count` elements if it is variable."""
        numel = count if self.shape is None else math.prod(self.shape)
        return numel * np.dtype(self.dtype).itemsize

    def used_nbytes(self, num_valid: int) -> int:
        """Bytes of a static part, from its start, that belong to the first `num_valid` tokens."""
        if not self.tokens or self.shape is None:
            return self.nbytes()
        return -(-num_valid // self.tokens) * (self.nbytes() // self.shape[0])


@dataclass(frozen=True, slots=True)
class Row:
    """A parsed row; the parts are views of its bytes."""

    mode: int
    num_valid: int
    parts: dict[str, npt.NDArray[Any]]


def prefix_nbytes(sections: tuple[Section, ...]) -> int:
    """Bytes before the first part."""
    return align(4 + 4 * sum(s.shape is None for s in sections))


def row_layout(
    sections: tuple[Section, ...], counts: Mapping[str, int]
) -> tuple[dict[str, int], int]:
    """Offset of every part, and the row's total bytes."""
    offset, offsets = prefix_nbytes(sections), {}
    for section in sections:
        offsets[section.name] = offset
        offset += align(section.nbytes(counts.get(section.name, 0)))
    return offsets, offset


def write_row(
    out: U8,
    sections: tuple[Section, ...],
    mode: int,
    num_valid: int,
    parts: Mapping[str, npt.NDArray[Any]],
) -> int:
    """Write one row into `out` and return its bytes. All padding is zeroed."""
    counts = {s.name: parts[s.name].size for s in sections if s.shape is None}
    offsets, nbytes = row_layout(sections, counts)
    out[:nbytes] = 0
    out[0] = mode
    out[2:4] = np.array([num_valid], "<u2").view(np.uint8)
    if counts:
        out[4 : 4 + 4 * len(counts)] = np.array(list(counts.values()), "<u4").view(np.uint8)
    for section in sections:
        data = np.ascontiguousarray(parts[section.name], section.dtype).reshape(-1).view(np.uint8)
        begin = offsets[section.name]
        out[begin : begin + data.size] = data
    return nbytes


def read_row(row: U8, sections: tuple[Section, ...], block_size: int) -> Row:
    """Parse exactly `row.size` bytes; every size is checked before a part is touched.

    Raises:
        CorruptDataError: the row is cut, the counts do not tile it, or a field is out of range.
    """
    prefix = prefix_nbytes(sections)
    if row.size < prefix:
        raise CorruptDataError(f"row of {row.size} bytes is shorter than its {prefix}-byte prefix")
    mode, num_valid = int(row[0]), int(row[2]) | int(row[3]) << 8
    if row[1] != 0:
        raise CorruptDataError(f"row: reserved byte is {int(row[1])}, wanted 0")
    if num_valid > block_size:
        raise CorruptDataError(f"row: num_valid {num_valid} is over the block size {block_size}")
    variable = [s.name for s in sections if s.shape is None]
    fields = row[4 : 4 + 4 * len(variable)].tobytes()
    counts = dict(zip(variable, np.frombuffer(fields, "<u4").tolist(), strict=True))
    offsets, nbytes = row_layout(sections, counts)
    if nbytes != row.size:
        raise CorruptDataError(f"row: its parts take {nbytes} bytes, it has {row.size}")
    parts = {}
    for s in sections:
        begin = offsets[s.name]
        data = row[begin : begin + s.nbytes(counts.get(s.name, 0))].view(s.dtype)
        parts[s.name] = data if s.shape is None else data.reshape(s.shape)
    return Row(mode, num_valid, parts)


def read_rows(encoded: EncodedBlocks) -> list[Row]:
    """Parse every row of a host batch."""
    payload, sizes = encoded.payload.numpy(), encoded.nbytes.tolist()
    rows = []
    for data, nbytes in zip(payload, sizes, strict=True):
        if not ALIGNMENT <= nbytes <= data.size:
            raise CorruptDataError(f"row of {nbytes} bytes in a slot of {data.size}")
        sections = encoded.codec.sections(encoded.spec, int(data[0]))
        rows.append(read_row(data[:nbytes], sections, encoded.spec.block_size))
    return rows
