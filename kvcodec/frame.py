"""Frames: the bytes of encoded blocks outside the process. The only reader and writer.

Prefix, JSON header, index, rows; layout in formats/frame.md. Checksums find damage, not forgery.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import xxhash

from kvcodec import strict_json
from kvcodec.block import BlockSpec, EncodedBlocks, gather_rows
from kvcodec.calibrated import Calibrated
from kvcodec.codec import Codec
from kvcodec.envelope import (
    INDEX,
    MAGIC,
    MAX_HEADER_NBYTES,
    PREFIX,
    VERSION,
    check_entry,
    check_front,
    check_row,
    front_checksum,
    named_tables,
    read_envelope,
    read_header,
)
from kvcodec.errors import InvalidInputError, UnknownCodecError
from kvcodec.identity import Identity
from kvcodec.profile import Profile, Resolver, find_tables
from kvcodec.registry import codec_from_config
from kvcodec.row import ALIGNMENT, align


@dataclass(frozen=True, slots=True)
class FrameRow:
    """One encoded block; `data` is a view of the frame's bytes, read-only."""

    codec: Codec
    spec: BlockSpec
    data: memoryview


@dataclass(frozen=True, slots=True)
class Frame:
    """A checked frame: what it is a cache of, and its rows in order."""

    identity: Identity
    rows: tuple[FrameRow, ...]
    nbytes: int

    @property
    def num_rows(self) -> int:
        """Encoded blocks in the frame."""
        return len(self.rows)

    @property
    def rows_nbytes(self) -> int:
        """Bytes of all rows, without prefix, header and index."""
        return sum(len(row.data) for row in self.rows)

    @property
    def raw_nbytes(self) -> int:
        """Bytes of all blocks before they were encoded."""
        return sum(row.spec.nbytes for row in self.rows)

    @property
    def batches_nbytes(self) -> int:
        """Bytes that `batches` allocates over all batches.

        A small frame can name large blocks: look here before decoding a stranger's frame.
        """
        return sum(row.codec.max_nbytes(row.spec) for row in self.rows)

    def batches(self) -> Iterator[tuple[list[int], EncodedBlocks]]:
        """(row indices, rows ready for `decompress`) for every (codec, spec), one at a time.

        Rows are copied into a payload on the CPU, zero past each row's bytes.
        """
        groups: dict[tuple[Codec, BlockSpec], list[int]] = {}
        for i, row in enumerate(self.rows):
            groups.setdefault((row.codec, row.spec), []).append(i)
        for (codec, spec), indices in groups.items():
            payload = np.zeros((len(indices), codec.max_nbytes(spec)), np.uint8)
            for slot, i in zip(payload, indices, strict=True):
                data = self.rows[i].data
                slot[: len(data)] = np.frombuffer(data, np.uint8)
            sizes = [len(self.rows[i].data) for i in indices]
            nbytes = torch.tensor(sizes, dtype=torch.int32)
            yield indices, EncodedBlocks(codec, spec, torch.from_numpy(payload), nbytes)


def dumps(
    encoded: EncodedBlocks | Sequence[EncodedBlocks], identity: Identity | None = None
) -> bytes:
    """Frame of one batch, or of several with different codecs and specs, rows in order.

    `identity.exact` and, where all blocks share it, `identity.dtype` are filled in, and
    `identity.profile_hash` where it is not given and all bound codecs share a profile.

    Raises:
        InvalidInputError: the identity contradicts the rows, or a row's size is impossible.
        UnknownCodecError: a reader could not resolve a codec, because it is not registered.
    Cost: one copy from a GPU per batch, of the used bytes; waits for it.
    """
    batches = [encoded] if isinstance(encoded, EncodedBlocks) else list(encoded)
    batches = [batch for batch in batches if len(batch)]
    codecs = list(dict.fromkeys(batch.codec for batch in batches))
    specs = list(dict.fromkeys(batch.spec for batch in batches))
    for codec in codecs:
        if codec_from_config(codec.config()) != codec:
            raise UnknownCodecError(f"codec {codec}: its config does not give it back")
        if isinstance(codec, Calibrated) and codec.needs_profile and not codec.tables:
            raise InvalidInputError(f"dumps: {codec} is bound to no profile; see Codec.bind")
    header = strict_json.dumps(
        {
            "codecs": [codec.config() for codec in codecs],
            "specs": [spec.to_json() for spec in specs],
            "identity": (identity or Identity()).stamped(codecs, specs).to_json(),
            "profiles": named_tables(codecs),
        }
    )
    if len(header) > MAX_HEADER_NBYTES:
        raise InvalidInputError(
            f"frame header of {len(header)} bytes, at most {MAX_HEADER_NBYTES}; split the frame"
        )
    index = np.zeros(sum(map(len, batches)), INDEX)
    rows: list[memoryview] = []
    for batch in batches:
        where = codecs.index(batch.codec), specs.index(batch.spec)
        for data in _host_rows(batch):
            index[len(rows)] = (*where, len(data), xxhash.xxh3_64_intdigest(data))
            rows.append(data)
    header_nbytes, num_rows = len(header), len(rows)
    header += bytes(align(header_nbytes) - header_nbytes)
    begin = PREFIX.size + len(header) + index.nbytes
    total = begin + sum(map(len, rows))
    fields = (MAGIC, VERSION, 0, header_nbytes, num_rows, 0, total)
    front = PREFIX.pack(*fields, 0, 0) + header + index.tobytes()
    front = PREFIX.pack(*fields, front_checksum(memoryview(front)), 0) + front[PREFIX.size :]
    return b"".join([front, *rows])


def _host_rows(batch: EncodedBlocks) -> list[memoryview]:
    """Used bytes of every row, on the CPU."""
    sizes = batch.nbytes.tolist()
    most = min(batch.codec.max_nbytes(batch.spec), batch.payload.shape[1])
    for i, nbytes in enumerate(sizes):
        if nbytes % ALIGNMENT or not ALIGNMENT <= nbytes <= most:
            raise InvalidInputError(
                f"row {i} has {nbytes} bytes, wanted a multiple of 16 in [16, {most}]"
            )
    if not batch.payload.is_cuda:
        rows = zip(batch.payload.numpy(), sizes, strict=True)
        return [np.ascontiguousarray(row[:nbytes]).data for row, nbytes in rows]
    return _gathered_rows(batch)


def _gathered_rows(batch: EncodedBlocks) -> list[memoryview]:
    """The same by one copy of the used bytes, whatever the device."""
    buffer, offsets = gather_rows(batch)
    ends = offsets.tolist()
    data = buffer[: ends[-1]].cpu().numpy().data
    return [data[begin:end] for begin, end in itertools.pairwise(ends)]


def loads(
    data: bytes | memoryview,
    *,
    expected: Identity | None = None,
    allow_lossy: bool = False,
    profiles: Sequence[Profile] | Resolver = (),
) -> Frame:
    """Check a frame and give its rows as views of `data`; nothing is decoded.

    Sizes, header and index are checked before anything is allocated that they could blow up, then
    the checksums, then the identity.

    Args:
        expected: the cache wanted; each field it gives must be the frame's.
        allow_lossy: take a lossy frame although `expected.exact` is True.
        profiles: where codecs find the tables they name: profiles, or a function that answers a
            hash with the tables of a plane, or with None. Only frames that name tables need it.

    Raises:
        CorruptDataError: damaged, cut, or not a frame; a row's error names the row.
        UnknownCodecError: written with a codec, version, parameter or profile unknown here; a
            missing profile's error names the hash of the tables.
        InvalidInputError: the function answered with other tables than it was asked for.
        IdentityError: whole, but of another cache; names every field that differs.
    """
    view = byte_view(data)
    envelope = read_envelope(view)
    header = read_header(envelope.header)
    header = replace(header, codecs=tuple(_hold(codec, profiles) for codec in header.codecs))
    numbers = range(len(envelope.index))
    kinds = [check_entry(envelope, header, i) for i in numbers]
    check_front(view, envelope)
    rows = tuple(FrameRow(*kinds[i], check_row(view, envelope, i)) for i in numbers)
    if expected is not None:
        header.identity.require(expected, allow_lossy=allow_lossy)
    return Frame(header.identity, rows, len(view))


def _hold(codec: Codec, profiles: Sequence[Profile] | Resolver) -> Codec:
    """The codec with the tables it names."""
    if not isinstance(codec, Calibrated) or not codec.needs_profile:
        return codec
    return codec.hold(find_tables(codec.tables, codec.table_names(), profiles))


def byte_view(data: bytes | memoryview) -> memoryview:
    """`data` as read-only bytes; InvalidInputError for anything else."""
    try:
        return memoryview(data).cast("B").toreadonly()
    except TypeError as error:
        raise InvalidInputError(f"frame: wanted contiguous bytes: {error}") from error
