"""The outside of a frame: prefix, JSON header and index, and the checks they must pass.

Layout in formats/frame.md. `kvcodec.frame` and `kvcodec.inspect` share these steps, in this order:
read_envelope, read_header, check_entry of every row, check_front, check_row of every row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from kvcodec import strict_json
from kvcodec.block import BlockSpec
from kvcodec.calibrated import Calibrated
from kvcodec.codec import Codec
from kvcodec.errors import CorruptDataError, InvalidInputError, UnknownCodecError
from kvcodec.identity import Identity
from kvcodec.registry import codec_from_config
from kvcodec.row import ALIGNMENT, align

MAGIC = b"\x89KVC\r\n\x1a\n"  # a transfer that treats it as text breaks it
VERSION = 1
MAX_HEADER_NBYTES = 64 * 1024
# magic, version, 0, header_nbytes, num_rows, 0, total_nbytes, checksum, 0
PREFIX = struct.Struct("<8sHHIIIQQQ")
CHECKSUM_AT = 32
INDEX = np.dtype([("codec", "<u2"), ("spec", "<u2"), ("nbytes", "<u4"), ("checksum", "<u8")])
FIELDS = {"codecs", "specs", "identity", "profiles"}


@dataclass(frozen=True, slots=True)
class Envelope:
    """The parts of a frame whose sizes tile the buffer; nothing inside them is checked yet."""

    header: memoryview
    index: npt.NDArray[np.void]
    offsets: list[int]  # [num_rows + 1], of the rows in the frame
    checksum: int


@dataclass(frozen=True, slots=True)
class Header:
    """What the JSON header says, resolved in the registry; codecs hold no tables yet."""

    codecs: tuple[Codec, ...]
    specs: tuple[BlockSpec, ...]
    identity: Identity


def front_checksum(front: memoryview) -> int:
    """XXH3-64 of everything before the rows but the checksum itself."""
    digest = xxhash.xxh3_64(front[:CHECKSUM_AT])
    digest.update(front[CHECKSUM_AT + 8 :])
    return int(digest.intdigest())


def check_front(view: memoryview, envelope: Envelope) -> None:
    """CorruptDataError unless prefix, header and index have the checksum the prefix gives."""
    got = front_checksum(view[: envelope.offsets[0]])
    if got != envelope.checksum:
        raise CorruptDataError(f"frame: checksum is {got:016x}, wanted {envelope.checksum:016x}")


def read_envelope(view: memoryview) -> Envelope:
    """Find header, index and rows; CorruptDataError unless they tile the buffer exactly."""
    if len(view) < PREFIX.size:
        raise CorruptDataError(
            f"frame of {len(view)} bytes is shorter than its {PREFIX.size}-byte prefix"
        )
    magic, version, zero0, header_nbytes, num_rows, zero1, total, checksum, zero2 = PREFIX.unpack(
        view[: PREFIX.size]
    )
    if magic != MAGIC:
        raise CorruptDataError(f"not a frame: it begins with {magic!r}, wanted {MAGIC!r}")
    if version != VERSION:
        raise CorruptDataError(f"frame version {version}, this library reads {VERSION}")
    if zero0 or zero1 or zero2:
        raise CorruptDataError(f"frame: reserved fields are {zero0}, {zero1}, {zero2}, wanted 0")
    if total != len(view):
        raise CorruptDataError(f"frame of {len(view)} bytes says it has {total}: cut or extended")
    if header_nbytes > MAX_HEADER_NBYTES:
        raise CorruptDataError(
            f"frame header of {header_nbytes} bytes, at most {MAX_HEADER_NBYTES}"
        )
    index_at = PREFIX.size + align(header_nbytes)
    begin = index_at + num_rows * INDEX.itemsize
    if begin > total:
        raise CorruptDataError(
            f"frame: header and {num_rows} index entries end at {begin} of {total} bytes"
        )
    index = np.frombuffer(view[index_at:begin], INDEX)
    offsets = [begin, *(begin + np.cumsum(index["nbytes"], dtype=np.uint64)).tolist()]
    if offsets[-1] != total:
        raise CorruptDataError(f"frame: its rows end at {offsets[-1]} of {total} bytes")
    end = PREFIX.size + header_nbytes
    if any(view[end:index_at]):
        raise CorruptDataError("frame: the padding of the header is not zero")
    return Envelope(view[PREFIX.size : end], index, offsets, checksum)


def read_header(data: memoryview) -> Header:
    """Parse the JSON header; its identity must say what its codecs and specs say."""
    fields = strict_json.loads(bytes(data))
    if not isinstance(fields, dict) or set(fields) != FIELDS:
        raise CorruptDataError(f"frame header: wanted the fields {', '.join(sorted(FIELDS))}")
    codecs, specs, profiles = (_list(fields, name) for name in ("codecs", "specs", "profiles"))
    resolved = tuple(codec_from_config(config) for config in codecs)
    _check_profiles(profiles, named_tables(resolved))
    try:
        parsed = tuple(BlockSpec.from_json(spec) for spec in specs)
        identity = Identity.from_json(fields["identity"])
        if identity.exact is None:
            raise InvalidInputError("identity: exact is not stated")
        identity.stamped(resolved, parsed)
    except InvalidInputError as error:
        raise CorruptDataError(f"frame header: {error}") from error
    return Header(resolved, parsed, identity)


def named_tables(codecs: Iterable[Codec]) -> list[str]:
    """Hashes of the tables that codecs name, ascending; the header's `profiles`."""
    calibrated = [codec for codec in codecs if isinstance(codec, Calibrated)]
    return sorted({codec.tables for codec in calibrated if codec.needs_profile})


def _check_profiles(got: list[Any], named: list[str]) -> None:
    unknown = [entry for entry in got if entry not in named]
    if unknown:
        raise UnknownCodecError(f"frame needs the profiles {unknown}, which no codec here uses")
    if got != named or "" in named:
        raise CorruptDataError(f"frame header: profiles are {got}, its codecs name {named}")


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields[name]
    if not isinstance(value, list):
        raise CorruptDataError(f"frame header: {name} is {value!r}, wanted a list")
    return value


def check_entry(envelope: Envelope, header: Header, i: int) -> tuple[Codec, BlockSpec]:
    """Codec and spec of row i; CorruptDataError if they do not go together or with its size."""
    codec_id, spec_id, nbytes, _ = envelope.index[i].item()
    if codec_id >= len(header.codecs) or spec_id >= len(header.specs):
        raise CorruptDataError(
            f"row {i}: codec {codec_id} and spec {spec_id}, the header has "
            f"{len(header.codecs)} and {len(header.specs)}"
        )
    codec, spec = header.codecs[codec_id], header.specs[spec_id]
    if (reason := codec.supports(spec)) is not None:
        raise CorruptDataError(f"row {i}: {codec} cannot hold {spec}: {reason}")
    most = codec.max_nbytes(spec)
    if nbytes % ALIGNMENT or not ALIGNMENT <= nbytes <= most:
        raise CorruptDataError(f"row {i}: {nbytes} bytes, wanted a multiple of 16 in [16, {most}]")
    return codec, spec


def check_row(view: memoryview, envelope: Envelope, i: int) -> memoryview:
    """Bytes of row i, after its checksum."""
    data = view[envelope.offsets[i] : envelope.offsets[i + 1]]
    got, wanted = xxhash.xxh3_64_intdigest(data), envelope.index[i].item()[3]
    if got != wanted:
        raise CorruptDataError(f"row {i}: checksum is {got:016x}, wanted {wanted:016x}")
    return data
