"""The sign-mantissa planes of formats/split.md for many rows at once."""

from __future__ import annotations

import numpy as np

from kvcodec import rans
from kvcodec.bits import U8, FloatFormat, UInt, pack_plane, plane_widths, unpack_plane
from kvcodec.codecs.split import seeded


def plane_nbytes(num_elements: int, fmt: FloatFormat, lanes: int) -> list[int]:
    """Bytes of each plane of a row of so many elements."""
    num_groups = -(-num_elements // rans.GROUP)
    fields = [num_groups * rans.GROUP] * len(plane_widths(fmt.raw_bits))
    fields[0] -= min(num_groups, lanes) * seeded(fmt)[1]
    return [-(-n * w // 8) for n, w in zip(fields, plane_widths(fmt.raw_bits), strict=True)]


def pack_raw(raw: UInt, fmt: FloatFormat, lanes: int) -> tuple[rans.Ints, list[U8]]:
    """Seeds [n, lanes] and planes [n, nbytes] from fields [n, size].

    size is a multiple of `GROUP * lanes`. Where a row's fields past its elements are zeros, its
    planes are the leading `plane_nbytes` of each plane.
    """
    groups = raw.reshape(len(raw), -1, rans.GROUP)
    width, q = seeded(fmt)
    first = (groups & ((1 << width) - 1)).astype(np.uint8)
    seeds = (first[:, :lanes, :q].astype(np.int64) << (width * np.arange(q))).sum(2)
    rest = [first[:, :lanes, q:], first[:, lanes:]]
    values: list[UInt] = [np.concatenate([part.reshape(len(raw), -1) for part in rest], axis=1)]
    shift = width
    for w in plane_widths(fmt.raw_bits)[1:]:
        values.append((raw >> shift) & ((1 << w) - 1))
        shift += w
    widths = plane_widths(fmt.raw_bits)
    return seeds, [pack_plane(v, w) for v, w in zip(values, widths, strict=True)]


def unpack_raw(planes: list[U8], seeds: rans.Ints, fmt: FloatFormat) -> UInt:
    """Inverse of `pack_raw`: fields [n, size]."""
    n, lanes = seeds.shape
    width, q = seeded(fmt)
    first = unpack_plane(planes[0], width)
    groups = np.empty((n, lanes + (first.shape[1] - lanes * (rans.GROUP - q)) // 4, 4), np.uint8)
    head = lanes * (rans.GROUP - q)
    groups[:, :lanes, :q] = (seeds[:, :, None] >> (width * np.arange(q))) & ((1 << width) - 1)
    groups[:, :lanes, q:] = first[:, :head].reshape(n, lanes, -1)
    groups[:, lanes:] = first[:, head:].reshape(n, -1, rans.GROUP)
    fields: UInt = groups.reshape(n, -1).astype(f"u{fmt.itemsize}")
    shift = width
    for plane, w in zip(planes[1:], plane_widths(fmt.raw_bits)[1:], strict=True):
        fields |= unpack_plane(plane, w).astype(fields.dtype) << shift
        shift += w
    return fields
