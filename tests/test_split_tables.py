"""Rows of split's modes 3 and 4, read by a reader written from the format pages alone."""

import struct

import numpy as np
import pytest
import torch
from profiles import make_tables
from strategies import make_cache
from test_split_format import align, plane_value

from kvcodec import BlockSpec, EncodedBlocks, Profile, get_codec
from kvcodec.bits import FORMATS, from_bits, int_view, to_bits
from kvcodec.codecs import split
from kvcodec.contexts import NAMES
from kvcodec.errors import CorruptDataError
from kvcodec.row import write_row

FIELDS = {  # exponent bits, mantissa bits, planes of the low bits
    "bf16": (8, 7, (4,)),
    "fp16": (5, 10, (4, 2, 1)),
    "fp32": (8, 23, (8, 8, 4)),
    "e4m3fn": (4, 3, ()),
    "e4m3fnuz": (4, 3, ()),
    "e5m2": (5, 2, ()),
    "e5m2fnuz": (5, 2, ()),
}
MODELS = {3: "profile", 4: "context"}
PER_CHANNEL = ("centre", "class", "flip", "sign_class")
FLOATS = [f for f in FORMATS.values() if f.exponent_bits]


class Lanes:
    """The coder of formats/rans.md, one lane and one step at a time."""

    def __init__(self, states, words):
        self.x, self.words = list(states), list(words)

    def step(self, tables):
        """Symbols of the lanes that have a table in this step, by lane."""
        found = {}
        for lane, freqs in tables.items():
            slot, begin, symbol = self.x[lane] % 4096, 0, 0
            while slot >= begin + freqs[symbol]:
                begin += freqs[symbol]
                symbol += 1
            f = freqs[symbol]
            self.x[lane] = f * (self.x[lane] // 4096) + slot - begin
            found[lane] = symbol
        for lane in sorted(tables):
            if self.x[lane] < 1 << 16:
                self.x[lane] = self.x[lane] << 16 | self.words.pop(0)
        return found


def read(row, spec, tables):
    """Bit patterns [tokens][channels]."""
    mode, reserved, valid = struct.unpack_from("<BBH", row)
    assert (reserved, mode in MODELS) == (0, True)
    num_words, raw_size = struct.unpack_from("<II", row, 4)
    assert row[12:16] == bytes(4)
    lanes = 32 if spec.nbytes < 16384 else 64
    parts, at = [], 16
    for size in (4 * lanes, 2 * num_words, raw_size):
        parts.append(row[at : at + size])
        assert row[at + size : at + align(size)] == bytes(align(size) - size)
        at += align(size)
    assert at == len(row)
    coder = Lanes(struct.unpack(f"<{lanes}I", parts[0]), struct.unpack(f"<{num_words}H", parts[1]))
    table = {name: array.tolist() for name, array in tables.arrays.items()}
    flat = {n: tables.arrays[n].reshape(-1).tolist() for n in PER_CHANNEL}
    e_bits, m_bits, planes = FIELDS[spec.format.name]
    live = [c for c in range(spec.token_numel) if flat["class"][c] != 255]
    low_bits = m_bits - min(m_bits, 3)
    bits = [[0] * spec.token_numel for _ in range(valid)]
    for first in range(0, len(live), lanes):
        here = dict(enumerate(live[first : first + lanes]))
        before = {lane: [] for lane in here}  # (y, s) of the tokens before
        for t in range(valid):
            p, h = dict.fromkeys(here, 14), dict.fromkeys(here, 0)
            if mode == 4:
                for lane, past in before.items():
                    if past:
                        y, s = past[-1]
                        p[lane] = 13 if y == 24 else min(max(y - 9, 0), 12)
                        h[lane] = 1 + s if len(past) == 1 else 3 + 2 * past[-2][1] + s
            y = coder.step({n: table["exponents"][flat["class"][c]][p[n]] for n, c in here.items()})
            literal = coder.step({n: [16] * 256 for n in here if y[n] == 24})
            signs = {}
            for n, c in here.items():
                a = min(max(y[n] - 9, 0), 12) // 3
                f = table["signs"][flat["sign_class"][c]][h[n]][a]
                signs[n] = [4096 - f, f]
            s = coder.step(signs)
            m = coder.step({n: table["mantissas"][flat["class"][c]][y[n]] for n, c in here.items()})
            for n, c in here.items():
                e = literal[n] if n in literal else y[n] + flat["centre"][c] - 16
                assert 0 <= e < 1 << e_bits
                sign = s[n] ^ flat["flip"][c]
                bits[t][c] = sign << (e_bits + m_bits) | e << m_bits | m[n] << low_bits
                before[n].append((y[n], s[n]))
    assert not coder.words
    assert all(x >> 16 == 1 for x in coder.x)
    low = read_low([x & 0xFFFF for x in coder.x], parts[2], valid * len(live), planes)
    for i, value in enumerate(low):
        bits[i // len(live)][live[i % len(live)]] |= value
    return bits


def read_low(seeds, raw, n, planes):
    """The low mantissa bits of n elements."""
    groups = -(-n // 4)
    in_seeds = min(groups, len(seeds))
    values, at, shift = [0] * (4 * groups), 0, 0
    for index, width in enumerate(planes):
        places, q = list(range(4 * groups)), min(4, 16 // width)
        if index == 0:
            places = [i for i in places if i // 4 >= in_seeds or i % 4 >= q]
            for lane in range(in_seeds):
                for j in range(q):
                    values[4 * lane + j] = seeds[lane] >> (width * j) & ((1 << width) - 1)
        size = -(-len(places) * width // 8)
        for k, i in enumerate(places):
            values[i] |= plane_value(raw[at : at + size], width, k) << shift
        at, shift = at + size, shift + width
    assert at == len(raw)
    assert planes or not any(seeds)
    return values[:n]


def row_of(block, spec, tables, mode):
    """A row of that mode, whether a writer would take it or not; or None."""
    codec = get_codec(f"split:model={MODELS[mode]}").hold(tables)
    parts = split.encode_with_tables(to_bits(block).reshape(-1), spec, codec.held(), mode)
    if parts is None:
        return codec, None
    out = np.full(4 * spec.nbytes + 4096, 0xA5, np.uint8)
    nbytes = write_row(out, codec.sections(spec, mode), mode, len(block), parts)
    return codec, out[:nbytes]


def decoded(codec, spec, row, impl):
    rows = EncodedBlocks(codec, spec, torch.from_numpy(row.copy())[None], torch.tensor([row.size]))
    kernel = codec.decode
    if impl == "vector":
        from kvcodec.kernels.split_vector import decode as kernel
    return kernel(rows)[0]


@pytest.mark.parametrize("mode", MODELS)
@pytest.mark.parametrize("fmt", FLOATS, ids=lambda f: f.name)
def test_rows_are_what_the_page_says(fmt, mode):
    """Escapes, dead channels, idle lanes and second rounds, whatever the sizes."""
    spec = BlockSpec(6, 2, 21, fmt.dtype)
    tables = make_tables(spec, 3, dead=(0, 17, 41))
    for kind in ("normal", "random_bits", "specials", "zeros"):
        block = make_cache(spec, (kind,))[0][:5]
        int_view(block).reshape(5, -1)[:, [0, 17, 41]] = 0
        codec, row = row_of(block, spec, tables, mode)
        wanted = to_bits(block).reshape(5, -1).tolist()
        assert read(row.tobytes(), spec, tables) == wanted
        for impl in ("reference", "vector"):
            back = decoded(codec, spec, row, impl)
            assert to_bits(back).reshape(6, -1)[:5].tolist() == wanted
            assert not int_view(back)[5:].any()


@pytest.mark.parametrize("mode", MODELS)
def test_long_blocks_have_64_lanes(mode):
    spec = BlockSpec(128, 1, 70, torch.bfloat16)
    tables = make_tables(spec, 4)
    block = make_cache(spec, ("normal",))[0][:3]
    _, row = row_of(block, spec, tables, mode)
    assert read(row.tobytes(), spec, tables) == to_bits(block).reshape(3, -1).tolist()


@pytest.mark.parametrize("impl", ["reference", "vector"])
@pytest.mark.parametrize("mode", MODELS)
def test_a_dead_channel_that_lives_is_coded_without_tables(mode, impl):
    spec = BlockSpec(4, 2, 64, torch.bfloat16)
    tables = make_tables(spec, 0, dead=(5,))
    codec = get_codec(f"split:model={MODELS[mode]}").hold(tables)
    cache = make_cache(spec, ("normal", "normal", "normal"))
    int_view(cache)[:2].view(2, 4, -1)[..., 5] = 0
    int_view(cache)[1].view(4, -1)[2, 5] = 1
    rows = codec.compress(cache, [0, 1, 2], impl=impl)
    assert rows.payload[0, 0] == mode
    assert rows.payload[1, 0] != mode
    back = torch.empty_like(cache)
    codec.decompress(rows, back, [0, 1, 2], impl=impl)
    assert torch.equal(int_view(back), int_view(cache))


def test_zero_channels_cost_nothing():
    """A block of which half the channels are known to be zero is as long as one without them."""
    spec, half = BlockSpec(32, 2, 64, torch.bfloat16), BlockSpec(32, 1, 64, torch.bfloat16)
    block = make_cache(half, ("normal",))[0]
    both = torch.cat([block, torch.zeros_like(block)], 1)
    tables = make_tables(spec, 0, dead=tuple(range(64, 128)))
    cut = (*PER_CHANNEL, "mean")
    alone = {name: a[:1] if name in cut else a for name, a in tables.arrays.items()}
    one = type(tables)(("bf16", 1, 64), alone)
    for mode in MODELS:
        assert row_of(both, spec, tables, mode)[1].size == row_of(block, half, one, mode)[1].size
    whole = make_tables(spec, 0, dead=tuple(range(128)))
    codec, row = row_of(torch.zeros_like(both), spec, whole, 4)
    assert row.size == 16 + 4 * 32
    assert not int_view(decoded(codec, spec, row, "vector")).any()


def rewritten(codec, spec, row, tables):
    """Copies of a row with one thing wrong each."""
    words_at = 16 + 4 * 32
    for at, value in ((2, 0), (4, 9), (8, 9), (16, 255), (words_at, 77), (row.size - 1, 0)):
        bad = row.copy()
        bad[at] ^= value or 0xFF
        yield bad


@pytest.mark.parametrize("impl", ["reference", "vector"])
def test_damage_is_an_error_or_other_values(impl):
    spec = BlockSpec(4, 2, 64, torch.bfloat16)
    tables = make_tables(spec)
    codec, row = row_of(make_cache(spec, ("normal",))[0], spec, tables, 4)
    empty = row.copy()
    empty[2:4] = 0
    with pytest.raises(CorruptDataError, match="without valid tokens"):
        decoded(codec, spec, empty, impl)
    for bad in rewritten(codec, spec, row, tables):
        try:
            decoded(codec, spec, bad, impl)
        except CorruptDataError:
            continue


def test_an_exponent_out_of_range_is_refused():
    """A centre of 0 leaves no room below it."""
    spec = BlockSpec(2, 1, 40, torch.float16)
    high, low = make_tables(spec), make_tables(spec)
    low = type(low)(low.geometry, {**low.arrays, "centre": np.zeros((1, 40), "u1")})
    block = from_bits(np.full((2, 1, 40), 9 << 10, np.uint16), torch.float16)
    _, row = row_of(block, spec, high, 3)
    codec = get_codec("split:model=profile").hold(low)
    for impl in ("reference", "vector"):
        with pytest.raises(CorruptDataError, match="leaves the range"):
            decoded(codec, spec, row, impl)


def test_the_tables_of_the_page_are_those_that_are_used():
    assert set(NAMES) == {*PER_CHANNEL, "exponents", "signs", "mantissas"}
    spec = BlockSpec(4, 1, 8, torch.bfloat16)
    assert Profile({(0, "key"): make_tables(spec)}).plane(0, "key").select(NAMES).nbytes < 1 << 16
