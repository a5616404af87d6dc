"""bitplane: exponents as fixed-rate codes around a level of their channel, in bit planes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvcodec.bits import (
    U8,
    FloatFormat,
    UInt,
    from_bits,
    join_fields,
    plane_widths,
    split_fields,
    to_bits,
)
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.errors import CorruptDataError, InvalidInputError
from kvcodec.registry import register
from kvcodec.row import Row, Section, align, read_rows, row_layout, write_row

Ints = npt.NDArray[np.int64]

RAW, CODED = 0, 1
SLOTS = 16  # elements of a block that share a column and a half
TILE = 256  # columns whose escapes and second codes stand together
ESCAPE_NBYTES = 3  # position u16, exponent u8


@dataclass(frozen=True, slots=True)
class Rate:
    """How exponents become codes.

    planes: widths of the code planes. quantile: a channel's level is the exponent that one in so
    many of its elements reaches. depth: how far the base lies below the level.
    """

    planes: tuple[int, ...]
    quantile: int
    depth: int


RATES = {"3": Rate((2, 1), 64, 7), "2+3": Rate((2,), 8, 2)}


@register
@dataclass(frozen=True, slots=True)
class Bitplane(Codec):
    """Replace exponents by fixed-rate codes, keep sign and mantissa: the fastest lossless codec.

    A channel keeps its scale, so a base per channel leaves few exponents to tell apart. `3`: 3 bits
    for the 8 exponents up to the channel's level. `2+3`: 2 bits for the 3 most frequent, 3 more
    for 8 around them. The rest are escapes, in a list. Codes lie in planes that a decoder takes
    apart with shifts, the same for every column: no table, no search, no dependent step.

    Args:
        bits: "3", or "2+3" for rows about 5 % shorter at half the speed.

    Cost: about 11.4 bits per bf16 element, 10.9 with 2+3. Format: formats/bitplane.md.
    """

    name = "bitplane"
    lossless = True
    stream_ordered = True
    idempotent = True
    examples = ("bitplane", "bitplane:bits=2+3")

    bits: str = "3"

    def __post_init__(self) -> None:
        if self.bits not in RATES:
            raise InvalidInputError(
                f"bitplane: bits is {self.bits!r}, wanted one of the texts {', '.join(RATES)}"
            )

    @property
    def rate(self) -> Rate:
        """Numbers behind `bits`."""
        return RATES[self.bits]

    @property
    def two_level(self) -> bool:
        """Whether some codes go on in a second stream."""
        return self.bits == "2+3"

    def supports(self, spec: BlockSpec) -> str | None:
        """Every type with an exponent field."""
        if spec.format.exponent_bits == 0:
            return f"{spec.format.name} elements have no exponent field; choose raw"
        return None

    def sections(self, spec: BlockSpec, mode: int) -> tuple[Section, ...]:
        """Raw: the valid tokens' bytes. Coded: bases, ends of the tiles, planes, escapes."""
        if mode == RAW:
            return (Section("elements", "u1"),)
        if mode == CODED:
            bases, escapes = Section("bases", "u1", (spec.token_numel,)), Section("escapes", "u1")
            planes, tiles = Section("planes", "<u4"), num_tiles(spec)
            if not self.two_level:
                return bases, Section("ends", "<u4", (tiles, 1)), planes, escapes
            stream = Section("stream", "<u4")
            return bases, Section("ends", "<u4", (tiles, 2)), planes, stream, escapes
        raise CorruptDataError(f"bitplane: mode {mode}, wanted 0 or 1")

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
        payload, spec = out.payload.numpy(), out.spec
        for i, valid in enumerate(num_valid.tolist()):
            bits = to_bits(blocks[i])[:valid].reshape(-1)
            mode, parts = RAW, {"elements": bits.view(np.uint8)}
            if valid:
                coded = self.encode_parts(bits, spec)
                counts = {name: part.size for name, part in coded.items()}
                nbytes = row_layout(self.sections(spec, CODED), counts)[1]
                if nbytes < align(4 + 4) + align(bits.nbytes):
                    mode, parts = CODED, coded
            out.nbytes[i] = write_row(payload[i], self.sections(spec, mode), mode, valid, parts)

    def encode_parts(self, bits: UInt, spec: BlockSpec) -> dict[str, UInt]:
        """Parts of a coded row from the bit patterns [n] of its elements, n > 0."""
        fmt, tiles = spec.format, num_tiles(spec)
        exponent, raw = split_fields(bits, fmt)
        levels = exponent.reshape(-1, spec.token_numel)
        reach = max(1, len(levels) // self.rate.quantile)
        level = np.sort(levels, axis=0)[-reach].astype(np.int64)
        bases = (level - self.rate.depth) % (1 << fmt.exponent_bits)
        code = self.codes_of((levels - bases).reshape(-1), fmt)
        escaped = code < 0
        code[escaped] = 0

        first = np.minimum(code, 3) if self.two_level else code
        planes = [pack(to_columns(first, spec), self.rate.planes)]
        planes.append(pack(to_columns(raw.astype(np.int64), spec), plane_widths(fmt.raw_bits)))
        tile, position = places(escaped, spec)
        values = to_columns(exponent.astype(np.int64), spec).transpose(1, 0, 2)
        found = values[to_columns(escaped.astype(np.int64), spec).transpose(1, 0, 2) == 1]
        ends = running(np.bincount(tile, minlength=tiles))[:, None]
        escapes = [position.astype("<u2").view(np.uint8), found.astype(np.uint8)]
        parts = {
            "bases": bases.astype(np.uint8),
            "planes": np.concatenate(planes),
            "escapes": np.concatenate(escapes),
        }
        if self.two_level:
            second = to_columns(np.where(code > 2, code - 2, 0), spec).transpose(1, 0, 2)
            tile, _ = places(code > 2, spec)
            parts["stream"], words = pack_stream(second[second > 0] - 1, tile, tiles)
            ends = np.concatenate([running(words)[:, None], ends], axis=1)
        return {**parts, "ends": ends}

    def codes_of(self, distance: Ints, fmt: FloatFormat) -> Ints:
        """Codes of exponents by their distance from the base, modulo 2^E; -1 for an escape."""
        wrap = 1 << fmt.exponent_bits
        distance = distance % wrap
        if not self.two_level:
            return np.where(distance < 8, distance, -1)
        below = distance + 11 - wrap  # 4 to 10 for the 7 exponents under the base
        return np.where(distance < 4, distance, np.where(below >= 4, below, -1))

    def decode(self, encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Inverse of encode."""
        spec = encoded.spec
        blocks = np.zeros((len(encoded), spec.numel), f"u{spec.dtype.itemsize}")
        for block, row in zip(blocks, read_rows(encoded), strict=True):
            n = row.num_valid * spec.token_numel
            if row.mode == CODED:
                block[:n] = self.decode_parts(row, n, spec)
            elif row.parts["elements"].size == n * spec.dtype.itemsize:
                block[:n] = row.parts["elements"].view(blocks.dtype)
            else:
                raise CorruptDataError(f"bitplane: raw part does not hold {n} elements")
        return from_bits(blocks.reshape(-1, *spec.shape), spec.dtype)

    def decode_parts(self, row: Row, n: int, spec: BlockSpec) -> UInt:
        """Bit patterns [n] of a coded row."""
        fmt, parts = spec.format, row.parts
        check_parts(self, row, n, spec)
        cut = plane_words(n, self.rate.planes, spec)
        code = unpack(parts["planes"][:cut], self.rate.planes, n, spec)
        raw = from_columns(
            unpack(parts["planes"][cut:], plane_widths(fmt.raw_bits), n, spec), n
        ).astype(f"u{fmt.itemsize}")
        if self.two_level:
            by_column = code.transpose(1, 0, 2)  # a view
            more = by_column == 3
            per_tile = [np.count_nonzero(more[i : i + TILE]) for i in range(0, len(more), TILE)]
            by_column[more] += unpack_stream(
                parts["stream"], parts["ends"][:, 0], np.array(per_tile)
            )
            code = np.where(code > 3, code - 11, code)
        bases = np.resize(parts["bases"].astype(np.int64), n)
        exponent = (from_columns(code, n) + bases) % (1 << fmt.exponent_bits)
        element, value = escapes_of(row, n, spec)
        exponent[element] = value
        return join_fields(exponent.astype(np.uint8), raw, fmt)


def num_columns(spec: BlockSpec) -> int:
    """Columns W of a block: pairs of elements in a slot, whole 16 bytes of words."""
    return 4 * -(-spec.numel // (8 * SLOTS))


def num_tiles(spec: BlockSpec) -> int:
    """Tiles of a block; the last may be narrower."""
    return -(-num_columns(spec) // TILE)


def num_slots(n: int, spec: BlockSpec) -> int:
    """Slots that hold one of n elements."""
    return -(-n // (2 * num_columns(spec)))


def plane_words(n: int, widths: tuple[int, ...], spec: BlockSpec) -> int:
    """Words of the planes of n elements."""
    rows = sum(-(-num_slots(n, spec) * w // 16) for w in widths)  # exact: integers
    return num_columns(spec) * rows


def to_columns(values: Ints, spec: BlockSpec) -> Ints:
    """[n] -> [slots, columns, 2], zeros behind; element 2 (slot * W + column) + half."""
    slot = 2 * num_columns(spec)
    return np.pad(values, (0, -values.size % slot)).reshape(-1, slot // 2, 2)


def from_columns(values: Ints, n: int) -> Ints:
    """Inverse of `to_columns`."""
    return values.reshape(-1)[:n]


def pack(values: Ints, widths: tuple[int, ...]) -> UInt:
    """[slots, columns, 2] -> words of the planes, low bits in the first plane.

    A word holds the values of 16 / width slots of one column, evens in its low half, odds in its
    high half.
    """
    planes, shift = [], 0
    for width in widths:
        per_word = 16 // width
        field = (values >> shift) & ((1 << width) - 1)
        field = np.pad(field, ((0, -len(field) % per_word), (0, 0), (0, 0)))
        field = field.reshape(-1, per_word, *field.shape[1:])
        slot, half = np.arange(per_word)[:, None, None], np.arange(2)
        planes.append((field << (width * slot + 16 * half)).sum((1, 3), dtype=np.int64).reshape(-1))
        shift += width
    return np.concatenate(planes).astype("<u4")


def unpack(words: UInt, widths: tuple[int, ...], n: int, spec: BlockSpec) -> Ints:
    """Inverse of `pack`, [slots, columns, 2]."""
    slots, columns = num_slots(n, spec), num_columns(spec)
    values, begin, low = np.zeros((slots, columns, 2), np.int64), 0, 0
    for width in widths:
        per_word = 16 // width
        count = plane_words(n, (width,), spec)
        plane = words[begin : begin + count].astype(np.int64).reshape(-1, 1, columns, 1)
        slot, half = np.arange(per_word)[:, None, None], np.arange(2)
        field = (plane >> (width * slot + 16 * half)) & ((1 << width) - 1)
        values |= field.reshape(-1, columns, 2)[:slots] << low
        begin, low = begin + count, low + width
    return values


def places(chosen: npt.NDArray[np.bool_], spec: BlockSpec) -> tuple[Ints, Ints]:
    """Tiles, and positions in them, of the chosen elements of [n], in the order of a row.

    Columns ascend, then slots, then halves: position 32 * column + 2 * slot + half.
    """
    by_column = to_columns(chosen.astype(np.int64), spec).transpose(1, 0, 2)
    column, slot, half = np.nonzero(by_column)
    return column // TILE, 2 * SLOTS * (column % TILE) + 2 * slot + half


def running(counts: Ints) -> Ints:
    """Sums of the counts up to and with each."""
    return np.cumsum(counts, dtype=np.int64)


def code_places(counts: Ints, words: Ints) -> Ints:
    """First bit of every second code, from the codes and the words of each tile."""
    begin = 32 * (running(words) - words) - 3 * (running(counts) - counts)
    return np.repeat(begin, counts) + 3 * np.arange(counts.sum(dtype=np.int64))


def pack_stream(codes: Ints, tile: Ints, tiles: int) -> tuple[UInt, Ints]:
    """Words of 3-bit codes, each tile's padded to a word; and words per tile."""
    counts = np.bincount(tile, minlength=tiles)
    words = -(-3 * counts // 32)
    at = code_places(counts, words)
    bits = np.zeros(32 * words.sum(dtype=np.int64), np.uint8)
    for i in range(3):
        bits[at + i] = (codes >> i) & 1
    return np.packbits(bits, bitorder="little").view("<u4"), words


def unpack_stream(stream: UInt, ends: UInt, counts: Ints) -> Ints:
    """Inverse of `pack_stream`: all codes, tile after tile; checks each tile's words."""
    words = -(-3 * counts // 32)
    if not np.array_equal(running(words), ends):
        raise CorruptDataError("bitplane: the second codes of a tile do not fill its words")
    bits = np.unpackbits(np.ascontiguousarray(stream).view(np.uint8), bitorder="little")
    at = code_places(counts, words)
    codes: Ints = bits[at].astype(np.int64) | bits[at + 1] << 1 | bits[at + 2] << 2
    return codes


def check_parts(codec: Bitplane, row: Row, n: int, spec: BlockSpec) -> None:
    """Raise CorruptDataError unless the parts have the sizes that n elements give them."""
    parts: dict[str, npt.NDArray[Any]] = row.parts
    if n == 0:
        raise CorruptDataError("bitplane: a coded row without valid tokens")
    wanted = plane_words(n, codec.rate.planes + plane_widths(spec.format.raw_bits), spec)
    if parts["planes"].size != wanted:
        raise CorruptDataError(f"bitplane: {parts['planes'].size} plane words, wanted {wanted}")
    if parts["escapes"].size % ESCAPE_NBYTES:
        raise CorruptDataError(f"bitplane: {parts['escapes'].size} bytes of escapes")
    totals = [parts["escapes"].size // ESCAPE_NBYTES]
    if codec.two_level:
        totals.insert(0, parts["stream"].size)
    ends = parts["ends"].astype(np.int64)
    if (np.diff(ends, axis=0, prepend=0) < 0).any() or ends[-1].tolist() != totals:
        raise CorruptDataError("bitplane: the ends of tiles do not ascend to the parts' sizes")
    if parts["bases"].max() >> spec.format.exponent_bits:
        raise CorruptDataError("bitplane: a base is wider than the exponent field")


def escapes_of(row: Row, n: int, spec: BlockSpec) -> tuple[Ints, U8]:
    """Elements and exponents of the escapes."""
    data, ends = row.parts["escapes"], row.parts["ends"][:, -1].astype(np.int64)
    count = data.size // ESCAPE_NBYTES
    position = data[: 2 * count].view("<u2").astype(np.int64)
    tile = np.repeat(np.arange(ends.size), np.diff(ends, prepend=0))
    column, place = TILE * tile + position // (2 * SLOTS), position % (2 * SLOTS)
    element = 2 * (place // 2 * num_columns(spec) + column) + place % 2
    order = 2 * SLOTS * column + place
    outside = (position >= 2 * SLOTS * TILE) | (column >= num_columns(spec)) | (element >= n)
    if outside.any() or (np.diff(order) <= 0).any():
        raise CorruptDataError("bitplane: escapes do not ascend, or lie outside the valid elements")
    value = data[2 * count :]
    if (value >> spec.format.exponent_bits).any():
        raise CorruptDataError("bitplane: an escape is wider than the exponent field")
    return element, value
