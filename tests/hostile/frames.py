"""A frame writer of its own, from formats/frame.md; it can write what the library refuses to."""

from __future__ import annotations

import json
import struct
from typing import Any

import xxhash

RAW = {"name": "raw", "params": {}, "version": 1}
FP8 = {"name": "fp8", "params": {"dtype": "e4m3", "given": [], "scale": "block"}, "version": 1}
SPEC = {"block_size": 2, "encoding": "bf16", "head_dim": 4, "num_kv_heads": 1}
HEADER = {
    "codecs": [RAW],
    "identity": {"dtype": "bf16", "exact": True},
    "profiles": [],
    "specs": [SPEC],
}
# mode 0, num_valid 2; then 8 elements of 2 bytes
ROW = struct.pack("<BBHIII", 0, 0, 2, 0, 0, 0) + bytes(range(16))


def xxh3(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data)


def entry(row: bytes, codec: int = 0, spec: int = 0, nbytes: int | None = None) -> bytes:
    """Index entry of a row, or of one that lies about its size."""
    return struct.pack("<HHIQ", codec, spec, len(row) if nbytes is None else nbytes, xxh3(row))


def text(header: Any) -> bytes:
    """JSON as the page wants it."""
    return json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def build(
    header: Any = HEADER,
    index: bytes | None = None,
    rows: bytes = ROW,
    *,
    magic: bytes = b"\x89KVC\r\n\x1a\n",
    version: int = 1,
    reserved: tuple[int, int, int] = (0, 0, 0),
    header_nbytes: int | None = None,
    num_rows: int | None = None,
    total: int | None = None,
    padding: bytes = b"\0",
) -> bytes:
    """A frame with a right checksum, whatever else is wrong. header: JSON value, or its bytes."""
    body = header if isinstance(header, bytes) else text(header)
    index = entry(rows) if index is None else index
    padded = body + padding * (-len(body) % 16)
    prefix = struct.pack(
        "<8sHHIIIQ",
        magic,
        version,
        reserved[0],
        len(body) if header_nbytes is None else header_nbytes,
        len(index) // 16 if num_rows is None else num_rows,
        reserved[1],
        48 + len(padded) + len(index) + len(rows) if total is None else total,
    )
    rest = struct.pack("<Q", reserved[2]) + padded + index
    return prefix + struct.pack("<Q", xxh3(prefix + rest)) + rest + rows


def seal(frame: bytes) -> bytes:
    """The frame with its checksums made right again, as far as its sizes can be followed."""
    data = bytearray(frame)
    header_nbytes, num_rows = struct.unpack_from("<II", data, 12)
    index = 48 + -(-header_nbytes // 16) * 16
    at = begin = index + 16 * num_rows
    if begin <= len(data):
        for i in range(num_rows):
            (nbytes,) = struct.unpack_from("<I", data, index + 16 * i + 4)
            struct.pack_into("<Q", data, index + 16 * i + 8, xxh3(bytes(data[at : at + nbytes])))
            at += nbytes
        struct.pack_into("<Q", data, 32, xxh3(bytes(data[:32] + data[40:begin])))
    return bytes(data)
