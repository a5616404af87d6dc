"""split and raw rows, read by readers written from the format pages alone."""

import struct

import numpy as np
import pytest
import torch
from conformance.cases import DEVICE, same
from strategies import make_cache
from test_rans import read_by_the_page

from kvcodec import BlockSpec, get_codec
from kvcodec.bits import FORMATS, from_bits, int_view, to_bits
from kvcodec.codecs.split import encode_parts
from kvcodec.row import row_layout

FLOATS = [f for f in FORMATS.values() if f.exponent_bits]
PLANES = {  # exponent bits, mantissa bits, planes, q: the table of formats/split.md
    "bf16": (8, 7, (8,), 2),
    "fp16": (5, 10, (8, 2, 1), 2),
    "fp32": (8, 23, (8, 8, 8), 2),
    "e4m3fn": (4, 3, (4,), 4),
    "e4m3fnuz": (4, 3, (4,), 4),
    "e5m2": (5, 2, (2, 1), 4),
    "e5m2fnuz": (5, 2, (2, 1), 4),
}


def align(n):
    return (n + 15) // 16 * 16


def plane_value(data, width, k):
    return data[k * width // 8] >> (k * width % 8) & ((1 << width) - 1)


def read_split(row, spec):
    """Bit patterns of the valid elements, and the mode."""
    mode, reserved, valid = struct.unpack_from("<BBH", row)
    assert reserved == 0
    n, itemsize = valid * spec.num_kv_heads * spec.head_dim, spec.dtype.itemsize
    if mode == 0:
        (size,) = struct.unpack_from("<I", row, 4)
        assert size == n * itemsize
        assert row[8:16] == bytes(8)
        assert row[16 + size :] == bytes(align(size) - size)
        items = [row[i : i + itemsize] for i in range(16, 16 + size, itemsize)]
        return [int.from_bytes(item, "little") for item in items], mode
    table_size, num_words, raw_size = struct.unpack_from("<III", row, 4)
    lanes = 32 if spec.nbytes < 16384 else 64
    channels = spec.num_kv_heads * spec.head_dim
    low, high = -(-channels // 4), -(-channels // 8)  # bytes of the planes of the centres
    parts, at = [], 16
    for size in (
        table_size, (low + high + 1) * (mode == 2), 4 * lanes, 2 * num_words, raw_size
    ):  # fmt: skip
        parts.append(row[at : at + size])
        assert row[at + size : at + align(size)] == bytes(align(size) - size)
        at += align(size)
    assert at == len(row)
    table, centres, states, words, raw = parts

    k = table_size // 3
    freqs = [0] * 256
    for i, symbol in enumerate(table[2 * k :]):
        (freqs[symbol],) = struct.unpack_from("<H", table, 2 * i)
    states, words = struct.unpack(f"<{lanes}I", states), struct.unpack(f"<{num_words}H", words)
    exponents, seeds = read_by_the_page(states, words, freqs, n)

    e, m, planes, q = PLANES[spec.format.name]
    if mode == 2:
        origins = [
            centres[-1] + plane_value(centres, 2, c) + 4 * plane_value(centres[low:], 1, c)
            for c in range(channels)
        ]
        exponents = [(x + origins[i % channels]) % 2**e for i, x in enumerate(exponents)]
    groups = -(-n // 4)
    in_seeds = min(groups, lanes)
    fields, at, shift = [0] * (4 * groups), 0, 0
    for p, width in enumerate(planes):
        places = list(range(4 * groups))
        if p == 0:
            places = [i for i in places if i // 4 >= in_seeds or i % 4 >= q]
            for lane in range(in_seeds):
                for j in range(q):
                    fields[4 * lane + j] = seeds[lane] >> (width * j) & ((1 << width) - 1)
        size = -(-len(places) * width // 8)
        for value, i in enumerate(places):
            fields[i] |= plane_value(raw[at : at + size], width, value) << shift
        at, shift = at + size, shift + width
    assert at == raw_size
    sign_at, mantissa = m + e, (1 << m) - 1
    fields = fields[:n]
    pairs = zip(fields, exponents, strict=True)
    return [f >> m << sign_at | x << m | f & mantissa for f, x in pairs], mode


def rows_of(codec, spec, kinds, valid):
    rows = get_codec(codec).compress(
        make_cache(spec, kinds), range(len(kinds)), num_valid=valid, impl="reference"
    )
    return rows, [bytes(r[:n].tolist()) for r, n in zip(rows.payload, rows.nbytes, strict=True)]


@pytest.mark.parametrize("shape", [(5, 3, 35), (5, 2, 102)], ids=str)
@pytest.mark.parametrize("fmt", FLOATS, ids=[f.name for f in FLOATS])
def test_split_rows_are_what_the_page_says(fmt, shape):
    """Groups that straddle tokens, unfilled groups, one round and more than one."""
    spec, kinds = BlockSpec(*shape, fmt.dtype), ("normal", "constant", "random_bits")
    cache, modes = make_cache(spec, kinds), set()
    for valid in (1, 4, 5):
        _, rows = rows_of("split", spec, kinds, [valid] * len(kinds))
        for block, row in zip(cache, rows, strict=True):
            bits, mode = read_split(row, spec)
            assert bits == to_bits(block[:valid]).reshape(-1).tolist()
            modes.add(mode)
    assert modes == {0, 1}


def test_split_rows_of_long_blocks_have_64_lanes():
    spec = BlockSpec(43, 3, 64, torch.bfloat16)
    _, (row,) = rows_of("split", spec, ("normal",), [2])
    bits, mode = read_split(row, spec)
    assert mode == 1
    assert bits == to_bits(make_cache(spec, ("normal",))[0, :2]).reshape(-1).tolist()


@pytest.mark.parametrize("impl", ["reference", "vector", "triton"])
def test_a_row_as_long_as_a_raw_one_is_raw(impl):
    """Between blocks that win a little and lose a little, some are just as long."""
    spec, rng = BlockSpec(4, 2, 64, torch.bfloat16), np.random.default_rng(0)
    codec, exponents = get_codec("split"), rng.integers(0, 64, 512)
    for constant in range(0, 512, 4):
        bits = (exponents << 7).astype(np.uint16)
        bits[64 : 64 + constant] = 0
        counts = {name: part.size for name, part in encode_parts(bits, spec).items()}
        if row_layout(codec.sections(spec, 1), counts)[1] == codec.max_nbytes(spec):
            cache = from_bits(bits.reshape(1, *spec.shape), spec.dtype).to(DEVICE)
            rows = codec.compress(cache, [0], impl=impl)
            assert rows.payload[0, 0] == 0
            assert rows.nbytes.tolist() == [codec.max_nbytes(spec)]
            return
    raise AssertionError("no block came out as long as a raw row")


@pytest.mark.parametrize("dtype", FORMATS, ids=[f.name for f in FORMATS.values()])
def test_raw_rows_are_what_the_page_says(dtype):
    spec, kinds = BlockSpec(3, 2, 5, dtype), ("ramp", "random_bits")
    _, rows = rows_of("raw", spec, kinds, [3, 1])
    for block, row, valid in zip(make_cache(spec, kinds), rows, (3, 1), strict=True):
        assert row[:16] == struct.pack("<BBH12x", 0, 0, valid)
        int_view(block)[valid:] = 0
        elements = torch.frombuffer(bytearray(row[16 : 16 + spec.nbytes]), dtype=torch.uint8)
        assert same(elements.view(dtype).reshape(spec.shape), block)
        assert row[16 + spec.nbytes :] == bytes(align(spec.nbytes) - spec.nbytes)
