"""zstd: byte planes of a block through the zstd library. Lossless, for cold tiers on the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import zstandard

from kvcodec.bits import U8, UInt, from_bits, to_bits
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.errors import CorruptDataError, InvalidInputError
from kvcodec.registry import register
from kvcodec.row import Row, Section, read_rows, row_layout, write_row

RAW, CODED = 0, 1
LEVELS = (-7, 19)
MIN_WINDOW = 1024  # the smallest window that a frame can name, however few bytes it holds


@register
@dataclass(frozen=True, slots=True)
class Zstd(Codec):
    """Compress each byte plane of a block with the zstd library, for blocks that rest on the host.

    The plane of the highest bytes holds sign and most of the exponent and shrinks to about 0.4 of
    its size; the plane of mantissas is noise and is kept. A block that would grow is kept raw.

    level: -7 to 19 without 0; 1 is the best of the fast ones (15 gains 4 % at 30 times the time).
        Negative levels do not code literals, which is all there is to gain here.
    Cost: a call makes its own zstd contexts, which no other thread sees.
    Source: zstd, RFC 8878. The library's bytes may change with its version: every version reads
    them, so a row is portable, but is not written twice alike everywhere. Format: formats/zstd.md.
    """

    level: int = 1

    name = "zstd"
    lossless = True
    idempotent = True
    portable_bytes = False
    host_tier_only = True
    source = "zstd, RFC 8878"
    examples = ("zstd", "zstd:level=-3")

    def __post_init__(self) -> None:
        if type(self.level) is not int or not LEVELS[0] <= self.level <= LEVELS[1]:
            raise InvalidInputError(f"zstd: level is {self.level!r}, wanted an int from -7 to 19")
        if self.level == 0:
            raise InvalidInputError(
                "zstd: level 0 is the library's name for its default; give 1 to 19, or -7 to -1"
            )

    def supports(self, spec: BlockSpec) -> str | None:
        """Every type, opaque bytes included."""
        return None

    def sections(self, spec: BlockSpec, mode: int) -> tuple[Section, ...]:
        """Raw: the valid tokens' bytes. Coded: a zstd frame for each byte of an element."""
        if mode == RAW:
            return (Section("elements", "u1"),)
        if mode == CODED:
            return tuple(Section(f"plane{i}", "u1") for i in range(spec.dtype.itemsize))
        raise CorruptDataError(f"zstd: mode {mode}, wanted 0 or 1")

    def max_nbytes(self, spec: BlockSpec) -> int:
        """A raw row: 16 bytes of prefix and the block, padded."""
        return row_layout(self.sections(spec, RAW), {"elements": spec.nbytes})[1]

    def encode(
        self,
        blocks: torch.Tensor,
        num_valid: torch.Tensor,
        out: EncodedBlocks,
        positions: torch.Tensor | None = None,
    ) -> None:
        """The smaller of the two modes; raw when they are equal."""
        rows = range(len(out))
        self.encode_rows(to_bits(blocks), rows, num_valid.tolist(), out, rows)

    def decode(self, encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Inverse of encode."""
        spec = encoded.spec
        bits = np.zeros((len(encoded), *spec.shape), f"u{spec.dtype.itemsize}")
        decode_rows(read_rows(encoded), bits, range(len(encoded)))
        return from_bits(bits, spec.dtype)

    def encode_rows(
        self,
        cache: UInt,
        block_ids: Sequence[int],
        num_valid: list[int],
        out: EncodedBlocks,
        rows: Iterable[int],
    ) -> None:
        """Write some rows of a batch: row i from block `block_ids[i]` of the cache, any strides."""
        compressor = zstandard.ZstdCompressor(level=self.level)
        payload = out.payload.numpy()
        sections = [self.sections(out.spec, mode) for mode in (RAW, CODED)]
        for i in rows:
            elements = np.ascontiguousarray(cache[block_ids[i], : num_valid[i]]).reshape(-1)
            mode, parts = RAW, {"elements": elements.view(np.uint8)}
            if elements.size:
                planes = [compressor.compress(plane.data) for plane in byte_planes(elements)]
                coded = {f"plane{k}": np.frombuffer(p, np.uint8) for k, p in enumerate(planes)}
                sizes = {name: part.size for name, part in (parts | coded).items()}
                if row_layout(sections[CODED], sizes)[1] < row_layout(sections[RAW], sizes)[1]:
                    mode, parts = CODED, coded
            out.nbytes[i] = write_row(payload[i], sections[mode], mode, num_valid[i], parts)


def byte_planes(elements: UInt) -> Iterator[U8]:
    """Bytes of the elements [n], the most significant first: a contiguous [n] for each."""
    for shift in range(8 * elements.dtype.itemsize - 8, -1, -8):
        yield (elements >> shift).astype(np.uint8)


def decode_rows(parsed: list[Row], bits: UInt, rows: Iterable[int]) -> None:
    """Write some rows' elements into `bits` [n, block_size, num_kv_heads, head_dim], zeros before.

    Raises:
        CorruptDataError: a plane is damaged or holds another number of bytes.
    """
    decompressor = zstandard.ZstdDecompressor()
    for i in rows:
        row, block = parsed[i], bits[i, : parsed[i].num_valid].reshape(-1)
        if row.mode == RAW:
            if row.parts["elements"].size != block.nbytes:
                raise CorruptDataError(f"zstd: raw part does not hold {block.size} elements")
            block[:] = row.parts["elements"].view(block.dtype)
            continue
        if not block.size:
            raise CorruptDataError("zstd: a coded row without valid tokens")
        for part in row.parts.values():
            block <<= 8 * (len(row.parts) > 1)
            block |= decompress_plane(decompressor, part, block.size)


def decompress_plane(decompressor: zstandard.ZstdDecompressor, part: U8, n: int) -> U8:
    """The n bytes of a zstd frame. Its header is checked first: nothing larger is allocated."""
    try:
        frame = zstandard.get_frame_parameters(part.data)
        if frame.content_size != n or frame.window_size > max(n, MIN_WINDOW):
            raise CorruptDataError(
                f"zstd: a plane of {frame.content_size} bytes with a window of "
                f"{frame.window_size}, wanted {n} and at most {max(n, MIN_WINDOW)}"
            )
        plane = decompressor.decompress(part.data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptDataError(f"zstd: a plane is damaged: {error}") from error
    if len(plane) != n:  # a skippable frame, which holds nothing
        raise CorruptDataError(f"zstd: a plane gave {len(plane)} bytes, wanted {n}")
    return np.frombuffer(plane, np.uint8)
