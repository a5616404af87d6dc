"""bitplane rows, read by a reader written from the format page alone."""

import struct

import numpy as np
import pytest
import torch
from boundaries import BLOCKS, make
from strategies import make_cache

from kvcodec import BlockSpec, EncodedBlocks, get_codec
from kvcodec.bits import FORMATS, from_bits, to_bits
from kvcodec.codecs.bitplane import CODED, RAW, Bitplane
from kvcodec.errors import CorruptDataError, InvalidInputError
from kvcodec.metrics import bits_per_element
from kvcodec.registry import why_unavailable

FLOATS = [f for f in FORMATS.values() if f.exponent_bits]
CODECS = ["bitplane", "bitplane:bits=2+3"]
FIELDS = {  # exponent bits, mantissa bits, field planes: the table of formats/bitplane.md
    "bf16": (8, 7, (8,)),
    "fp16": (5, 10, (8, 2, 1)),
    "fp32": (8, 23, (8, 8, 8)),
    "e4m3fn": (4, 3, (4,)),
    "e4m3fnuz": (4, 3, (4,)),
    "e5m2": (5, 2, (2, 1)),
    "e5m2fnuz": (5, 2, (2, 1)),
}


def align(n):
    return (n + 15) // 16 * 16


def read_bitplane(row, spec, two_level):
    """Bit patterns of the valid elements, the mode, and the number of escapes."""
    mode, reserved, valid = struct.unpack_from("<BBH", row)
    channels = spec.num_kv_heads * spec.head_dim
    n, itemsize = valid * channels, spec.dtype.itemsize
    assert reserved == 0
    if mode == 0:
        (size,) = struct.unpack_from("<I", row, 4)
        assert size == n * itemsize
        assert row[8:16] + row[16 + size :] == bytes(8 + align(size) - size)
        items = [row[i : i + itemsize] for i in range(16, 16 + size, itemsize)]
        return [int.from_bytes(item, "little") for item in items], mode, 0
    exponent_bits, mantissa_bits, field_planes = FIELDS[spec.format.name]
    columns = 4 * -(-spec.block_size * channels // 128)
    slots, tiles = -(-n // (2 * columns)), -(-columns // 256)
    counts = struct.unpack_from("<IIII" if two_level else "<III", row, 4)
    sizes = [channels, (8 if two_level else 4) * tiles, 4 * counts[0]]
    sizes += [4 * counts[1], counts[2]] if two_level else [counts[1]]
    if not two_level:
        assert counts[2] == 0
    parts, at = [], 16
    for size in sizes:
        parts.append(row[at : at + size])
        assert row[at + size : at + align(size)] == bytes(align(size) - size)
        at += align(size)
    assert at == len(row)
    bases, ends, planes, escapes = parts[0], parts[1], parts[2], parts[-1]

    def take(width):
        nonlocal planes
        rows = -(-slots * width // 16)
        words = struct.unpack(f"<{rows * columns}I", planes[: 4 * rows * columns])
        planes = planes[4 * rows * columns :]

        def value(slot, column, half):
            word = words[slot * width // 16 * columns + column]
            return word >> (slot * width % 16 + 16 * half) & ((1 << width) - 1)

        return value

    low = take(2)
    high = (lambda slot, column, half: 0) if two_level else take(1)
    fields = [take(width) for width in field_planes]
    assert planes == b""

    codes, field = {}, {}
    for slot in range(slots):
        for column in range(columns):
            for half in (0, 1):
                place = slot, column, half
                codes[place] = low(*place) | high(*place) << 2
                shift, field[place] = 0, 0
                for plane, width in zip(fields, field_planes, strict=True):
                    field[place] |= plane(*place) << shift
                    shift += width

    count = len(escapes) // 3
    escaped, word_end, escape_end = {}, 0, 0
    for tile in range(tiles):
        inside = range(256 * tile, min(columns, 256 * tile + 256))
        if two_level:
            begin = 32 * word_end
            word_end, next_end = struct.unpack_from("<II", ends, 8 * tile)
            stream, rank = int.from_bytes(parts[3], "little"), 0
            for column in inside:
                for slot in range(slots):
                    for half in (0, 1):
                        if codes[slot, column, half] == 3:
                            second = stream >> (begin + 3 * rank) & 7
                            codes[slot, column, half] = 3 if second == 0 else second - 8
                            rank += 1
            assert 32 * word_end - begin == -(-3 * rank // 32) * 32
        else:
            (next_end,) = struct.unpack_from("<I", ends, 4 * tile)
        previous = -1
        for i in range(escape_end, next_end):
            (position,) = struct.unpack_from("<H", escapes, 2 * i)
            assert position > previous
            previous = position
            place = position % 32 // 2, 256 * tile + position // 32, position % 2
            assert codes[place] == 0
            escaped[place] = escapes[2 * count + i]
        escape_end = next_end
    assert escape_end == count

    elements = []
    for i in range(n):
        place = i // (2 * columns), i % (2 * columns) // 2, i % 2
        exponent = (bases[i % channels] + codes[place]) % (1 << exponent_bits)
        exponent = escaped.get(place, exponent)
        sign, mantissa = field[place] >> mantissa_bits, field[place] % (1 << mantissa_bits)
        elements.append((sign << exponent_bits | exponent) << mantissa_bits | mantissa)
    return elements, mode, count


def rows_of(codec, cache, valid):
    rows = codec.compress(cache, range(len(cache)), num_valid=valid, impl="reference")
    return [bytes(r[:n].tolist()) for r, n in zip(rows.payload, rows.nbytes, strict=True)]


@pytest.mark.parametrize("text", CODECS)
@pytest.mark.parametrize("fmt", FLOATS, ids=[f.name for f in FLOATS])
def test_rows_are_what_the_page_says(fmt, text):
    """Channels that do not divide a slot, an odd number of them, two tiles, unused slots."""
    codec, modes, escapes = get_codec(text), set(), 0
    for shape, valid in [
        ((20, 1, 35), (20, 17, 1)),
        ((33, 2, 64), (33, 9, 30)),
        ((9, 1, 1000), (9,)),
    ]:
        spec = BlockSpec(*shape, fmt.dtype)
        cache = make_cache(spec, ("outlier", "constant", "random_bits")[: len(valid)])
        for row, block, v in zip(rows_of(codec, cache, valid), cache, valid, strict=True):
            elements, mode, count = read_bitplane(row, spec, codec.two_level)
            assert elements == to_bits(block)[:v].reshape(-1).tolist()
            modes.add(mode)
            escapes += count
    assert modes == {RAW, CODED}
    assert escapes


@pytest.mark.parametrize("text", CODECS)
@pytest.mark.parametrize("name", BLOCKS)
def test_boundary_blocks_return(name, text):
    """Zeros, subnormals, outliers, NaN and infinities, by a reader that knows the page only."""
    codec = get_codec(text)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        spec = BlockSpec(16, 2, 32, dtype)
        block = make(name, spec)
        (row,) = rows_of(codec, block[None], None)
        elements, _, _ = read_bitplane(row, spec, codec.two_level)
        assert elements == to_bits(block).reshape(-1).tolist()


def with_exponents(exponents):
    """bf16 block [tokens, 1, channels] of these exponents."""
    bits = (np.asarray(exponents, np.uint16) << 7)[:, None, :]
    return from_bits(bits, torch.bfloat16)


def bases_of(text, exponents):
    block = with_exponents(exponents)
    (row,) = rows_of(get_codec(text), block[None], None)
    assert row[0] == CODED
    return list(row[16 : 16 + block.shape[2]])


@pytest.mark.parametrize(("text", "depth", "part"), [(CODECS[0], 7, 64), (CODECS[1], 2, 8)])
def test_a_base_lies_below_the_exponent_that_a_fixed_part_of_a_channel_reaches(text, depth, part):
    """One outlier fewer than the part moves nothing; bases wrap below zero."""
    exponents = np.full((128, 64), 120)
    exponents[:, 1] = 0
    exponents[: 128 // part - 1, 2] = 250
    exponents[: 128 // part, 3] = 250
    assert bases_of(text, exponents)[:4] == [
        120 - depth,
        256 - depth,
        120 - depth,
        250 - depth,
    ]


@pytest.mark.parametrize(("text", "free"), [(CODECS[0], range(-7, 1)), (CODECS[1], range(-9, 2))])
def test_exponents_near_the_level_are_no_escapes(text, free):
    spec = BlockSpec(128, 1, 64, torch.bfloat16)
    for distance in range(-12, 4):
        exponents = np.full((128, 64), 100)
        exponents[0] = 100 + distance  # fewer than a part of any channel
        (row,) = rows_of(get_codec(text), with_exponents(exponents)[None], None)
        _, _, count = read_bitplane(row, spec, text == CODECS[1])
        assert count == (0 if distance in free else 64), distance


@pytest.mark.parametrize(("text", "bits"), [(CODECS[0], 11.5), (CODECS[1], 11.0)])
def test_gaussian_channels_of_any_scale_take_few_bits(text, bits):
    """Measured: 11.39 and 10.88."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.exp(3 * torch.randn(3, 64, generator=generator))
    cache = (torch.randn(4, 128, 3, 64, generator=generator) * scales).to(torch.bfloat16)
    rows = get_codec(text).compress(cache, range(4), impl="reference")
    assert bits_per_element(rows) < bits


def test_a_row_is_never_longer_than_a_raw_one():
    spec = BlockSpec(32, 1, 128, torch.bfloat16)
    for text in CODECS:
        for kind in ("random_bits", "two_symbols", "specials"):
            rows = get_codec(text).compress(make_cache(spec, (kind,)), [0], impl="reference")
            assert rows.nbytes.max() <= 16 + spec.nbytes


def test_other_rates_are_refused():
    for bits in ("2", "4", 3, ""):
        with pytest.raises(InvalidInputError, match=r"3, 2\+3"):
            Bitplane(bits=bits)


def coded_row(text, spec):
    """A codec, a coded row with escapes, and the offsets of its parts."""
    codec = get_codec(text)
    rows = codec.compress(make_cache(spec, ("normal",)), [0], impl="reference")
    row = rows.payload[0, : rows.nbytes[0]].numpy().copy()
    assert row[0] == CODED
    channels, tiles = spec.num_kv_heads * spec.head_dim, -(-spec.numel // (32 * 256))
    offsets = {"bases": 16, "ends": 16 + align(channels)}
    offsets["planes"] = offsets["ends"] + align(tiles * (8 if codec.two_level else 4))
    count = int(row[4:8].view("<u4")[0])
    at = offsets["planes"] + align(4 * count)
    if codec.two_level:
        offsets["stream"] = at
        at += align(4 * int(row[8:12].view("<u4")[0]))
    offsets["escapes"] = at
    return codec, row, offsets


def as_rows(codec, spec, row):
    rows = EncodedBlocks.empty(codec, spec, 1)
    rows.payload[0, : row.size] = torch.from_numpy(row)
    rows.nbytes[0] = row.size
    return rows


def u16(row, at):
    return row[at : at + 2].view("<u2")


def u32(row, at):
    return row[at : at + 4].view("<u4")


DAMAGE = {  # what is wrong -> change of a row, given the offsets of its parts
    "no valid tokens": lambda row, at: row[2:4].fill(0),
    "fewer valid tokens": lambda row, at: u16(row, 2).__isub__(4),
    "a base too wide": lambda row, at: row[at["bases"] :][:1].fill(32),
    "ends descend": lambda row, at: u32(row, at["ends"]).fill(0xFFFFFFFF),
    "an end too late": lambda row, at: u32(row, at["ends"]).__iadd__(1),
    "positions equal": lambda row, at: u16(row, at["escapes"] + 2).__setitem__(
        0, u16(row, at["escapes"])[0]
    ),
    "position outside a tile": lambda row, at: u16(row, at["escapes"] + 2).fill(8192),
    "an escape too wide": lambda row, at: row[-16:].fill(255),
    "not three bytes each": lambda row, at: u32(row, 12 if "stream" in at else 8).__isub__(1),
    "another number of planes": lambda row, at: u32(row, 4).__isub__(1),
}


@pytest.mark.parametrize("impl", ["reference", "vector", "native"])
@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("text", CODECS)
def test_what_the_page_rejects_is_rejected(text, what, impl):
    spec = BlockSpec(64, 2, 128, torch.float16)  # two tiles, so that ends stand side by side
    codec, row, offsets = coded_row(text, spec)
    if why_unavailable(codec, impl, torch.device("cpu")) is not None:
        pytest.skip("not built")
    DAMAGE[what](row, offsets)
    rows = as_rows(codec, spec, row)
    target = torch.zeros(1, *spec.shape, dtype=spec.dtype)
    with pytest.raises(CorruptDataError):
        codec.decompress(rows, target, [0], impl=impl)
    assert not target.any()


def test_a_tile_with_more_second_codes_than_words_is_rejected():
    spec = BlockSpec(16, 1, 64, torch.bfloat16)
    codec, row, offsets = coded_row(CODECS[1], spec)
    row[offsets["planes"] : offsets["planes"] + 256] = 0xFF  # codes of 3 everywhere
    rows = as_rows(codec, spec, row)
    with pytest.raises(CorruptDataError):
        codec.decompress(rows, torch.zeros(1, *spec.shape, dtype=spec.dtype), [0])
