"""split and raw: what is particular to the vector implementation."""

import itertools

import numpy as np
import pytest
import torch
from conformance.cases import same, used
from strategies import make_block, make_cache

from kvcodec import BlockSpec, EncodedBlocks, get_codec, rans
from kvcodec.bits import FORMATS, int_view
from kvcodec.codecs import split
from kvcodec.errors import CorruptDataError
from kvcodec.kernels import _bits_vector, _rans_vector
from kvcodec.row import write_row

SPLIT, RAW = get_codec("split"), get_codec("raw")
FLOATS = [f for f in FORMATS.values() if f.exponent_bits]


def one_row(codec, spec, row, nbytes):
    nbytes = torch.tensor([nbytes], dtype=torch.int32)
    return EncodedBlocks(codec, spec, torch.from_numpy(row)[None], nbytes)


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize("fmt", FLOATS, ids=[f.name for f in FLOATS])
def test_vector_planes_of_every_length_equal_the_references(fmt, lanes):
    """Lengths around a group, a round and two rounds."""
    size = 12 * lanes
    lengths = [*range(1, 10), *(r * 4 * lanes + d for r in (1, 2) for d in range(-5, 6)), size]
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 1 << fmt.raw_bits, (len(lengths), size), np.uint32)
    raw = raw.astype(f"u{fmt.itemsize}")
    raw[np.arange(size) >= np.array(lengths)[:, None]] = 0
    seeds, planes = _bits_vector.pack_raw(raw, fmt, lanes)
    assert np.array_equal(_bits_vector.unpack_raw(planes, seeds, fmt), raw)
    for i, n in enumerate(lengths):
        cuts = _bits_vector.plane_nbytes(n, fmt, lanes)
        part = np.concatenate([p[i, :cut] for p, cut in zip(planes, cuts, strict=True)])
        expected_seeds, expected = split.pack_raw(raw[i, :n], fmt, lanes)
        assert np.array_equal(seeds[i], expected_seeds)
        assert np.array_equal(part, expected)


@pytest.mark.parametrize("lanes", [32, 64])
def test_vector_coder_equals_the_reference_for_rows_of_any_length(lanes):
    """Skewed, single-symbol and uniform rows of different lengths in one batch."""
    size, rng = 12 * lanes, np.random.default_rng(0)
    lengths = np.array([1, 2, 3, 4, 5, 4 * lanes - 1, 4 * lanes, 4 * lanes + 6, size - 1, size, 77])
    symbols = rng.choice(256, (len(lengths), size), p=rng.dirichlet(np.full(256, 0.05)))
    symbols[3], symbols[9] = 255, rng.integers(0, 256, size)
    symbols[np.arange(size) >= lengths[:, None]] = 0
    counts = [np.bincount(row[:n], minlength=256) for row, n in zip(symbols, lengths, strict=True)]
    freqs = _rans_vector.normalize(np.stack(counts))
    seeds = rng.integers(0, 1 << 16, (len(lengths), lanes))
    states, words = _rans_vector.encode(symbols.astype(np.uint8), lengths, freqs, seeds)
    for i, n in enumerate(lengths):
        assert np.array_equal(freqs[i], rans.normalize(counts[i]))
        grid = rans.to_grid(symbols[i, :n], lanes, fill=-1)
        pairs = [np.where(grid >= 0, t[grid], 0) for t in (freqs[i], rans.starts(freqs[i]))]
        expected_states, expected_words = rans.encode(*pairs, seeds[i])
        assert np.array_equal(states[i], expected_states)
        assert np.array_equal(words[i], expected_words)
    found, ends = _rans_vector.decode(freqs, states, words, lengths, size)
    assert np.array_equal(found, symbols)
    assert np.array_equal(ends, seeds)


def test_vector_frequencies_equal_the_references():
    """Uniform, skewed and one-against-many rows, and a row of zeros."""
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 1000, (40, 256)) * (rng.random((40, 256)) < rng.random((40, 1)))
    counts[:8] = rng.integers(0, 2, (8, 256))
    counts[:8, rng.integers(0, 256, 8)] = 1 << 20
    counts[8], counts[9] = 0, 7
    expected = np.stack([rans.normalize(row) for row in counts])
    assert np.array_equal(_rans_vector.normalize(counts), expected)


def test_vector_takes_more_rows_than_a_chunk():
    """Raw, empty and coded rows mixed, so that chunks and rows do not count alike."""
    spec = BlockSpec(8, 1, 32, torch.bfloat16)
    n = 2 * _rans_vector.MAX_STATES // 32 + 5
    kinds = itertools.islice(itertools.cycle(("normal", "random_bits", "zeros")), n)
    cache = torch.stack([make_block(kind, spec, seed) for seed, kind in enumerate(kinds)])
    valid = [(3 * i) % 9 for i in range(n)]
    expected = SPLIT.compress(cache, range(n), num_valid=valid, impl="reference")
    rows = SPLIT.compress(cache, range(n), num_valid=valid, impl="vector")
    assert used(rows) == used(expected)
    target, wanted = torch.empty_like(cache), torch.empty_like(cache)
    SPLIT.decompress(rows, target, range(n), impl="vector")
    SPLIT.decompress(rows, wanted, range(n), impl="reference")
    assert same(target, wanted)


def damages(row, size, rng):
    """Copies of a row with one thing changed: a byte, a count by one, its size."""
    for at in range(16):
        for value in (0, 1, 0x7F, 0xFF):
            yield changed(row, at, value), size
    for at in (4, 8, 12):
        for step in (-1, 1):
            yield changed(row, at, (int(row[at]) + step) % 256), size
    for at in rng.integers(16, size, 150):
        yield changed(row, at, rng.integers(0, 256)), size
    for at in range(size - 20, size):
        yield changed(row, at, 0xFF), size
    for delta in (-32, -16, 16):
        yield row, size + delta


def changed(row, at, value):
    copy = row.copy()
    copy[at] = value
    return copy


@pytest.mark.parametrize("codec", [SPLIT, RAW], ids=str)
@pytest.mark.parametrize("kind", ["normal", "zeros", "random_bits"])
def test_vector_refuses_a_damaged_row_exactly_when_the_reference_does(codec, kind):
    spec = BlockSpec(8, 2, 33, torch.float8_e5m2)
    cache = make_cache(spec, (kind,))
    rows = codec.compress(cache, [0], num_valid=[7], impl="reference")
    row = np.zeros(codec.max_nbytes(spec) + 16, np.uint8)
    row[: int(rows.nbytes[0])] = rows.payload[0, : int(rows.nbytes[0])].numpy()
    outcomes = set()
    for bad, size in damages(row, int(rows.nbytes[0]), np.random.default_rng(0)):
        found = []
        for impl in ("reference", "vector"):
            target = make_cache(spec, ("ramp",))
            before = target.clone()
            try:
                codec.decompress(one_row(codec, spec, bad, size), target, [0], impl=impl)
            except CorruptDataError:
                assert same(target, before)
                found.append(None)
            else:
                found.append(int_view(target).numpy().tobytes())
        assert found[0] == found[1]
        outcomes.add(found[0] is None)
    assert outcomes == {True, False}


def test_vector_refuses_symbols_wider_than_the_exponent():
    """A table may list them; an element may not have them."""
    spec = BlockSpec(8, 2, 32, torch.float8_e4m3fn)
    rows = SPLIT.compress(make_cache(spec, ("constant",)), [0], impl="reference")
    row = rows.payload[0].numpy().copy()
    assert row[0] == split.CODED
    assert row[4] == 3
    row[18] = 16
    bad = one_row(SPLIT, spec, row, int(rows.nbytes[0]))
    for impl in ("reference", "vector"):
        with pytest.raises(CorruptDataError, match="over 4 bits"):
            SPLIT.decompress(bad, make_cache(spec, ("zeros",)), [0], impl=impl)


def test_vector_refuses_a_coded_row_without_elements():
    """All its sizes fit, and there is nothing to code."""
    spec = BlockSpec(8, 2, 32, torch.bfloat16)
    parts = {
        "table": rans.pack_table(np.eye(1, 256, 7, dtype=np.int64)[0] * rans.TOTAL),
        "states": np.full(32, rans.LOWER, np.uint32),
        "words": np.zeros(0, np.uint16),
        "raw": np.zeros(0, np.uint8),
    }
    row = np.zeros(SPLIT.max_nbytes(spec), np.uint8)
    nbytes = write_row(row, SPLIT.sections(spec, split.CODED), split.CODED, 0, parts)
    for impl in ("reference", "vector"):
        with pytest.raises(CorruptDataError, match="without valid tokens"):
            SPLIT.decompress(
                one_row(SPLIT, spec, row, nbytes), make_cache(spec, ("zeros",)), [0], impl=impl
            )


def test_vector_coder_refuses_initial_states_under_the_lower_bound():
    freqs = np.eye(1, 256, 7, dtype=np.int64) * rans.TOTAL
    states = np.full((1, 32), rans.LOWER, np.uint32)
    states[0, 9] -= 1
    with pytest.raises(CorruptDataError, match="below 2\\^16"):
        _rans_vector.decode(freqs, states, [np.zeros(0, np.uint16)], np.array([128]), 128)
