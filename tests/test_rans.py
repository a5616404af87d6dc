"""The reference coder: against its page, against constriction, against damage."""

import constriction
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcodec import rans
from kvcodec.errors import CorruptDataError

LANES = (32, 64)


def skewed(rng, n):
    """Like the exponents of a KV cache: about 2.8 bits."""
    return (120 - rng.geometric(0.3, n).clip(max=100)).astype(np.int64)


SYMBOLS = {
    "skewed": skewed,
    "constant": lambda rng, n: np.full(n, 9),
    "two": lambda rng, n: rng.choice([0, 255], n, p=[0.99, 0.01]),
    "ramp": lambda rng, n: np.arange(n) % 256,
    "every_symbol_once": lambda rng, n: rng.permutation(256)[:n],
    "random": lambda rng, n: rng.integers(0, 256, n),
}


def make(kind, n, seed=0):
    symbols = SYMBOLS[kind](np.random.default_rng(seed), n)
    return symbols, rans.normalize(np.bincount(symbols, minlength=256))


def encode(symbols, freqs, lanes, seeds=None):
    """States and words of one plane under one table."""
    grid = rans.to_grid(symbols, lanes, fill=-1)
    live = grid >= 0
    return rans.encode(
        np.where(live, freqs[grid], 0),
        np.where(live, rans.starts(freqs)[grid], 0),
        np.zeros(lanes, np.int64) if seeds is None else seeds,
    )


def decode(states, words, freqs, n):
    """Symbols and seeds, by the library's decoder."""
    lanes = states.size
    decoder = rans.Decoder(states.astype(np.uint32), words.astype(np.uint16))
    live = rans.to_grid(np.ones(n, np.int64), lanes, fill=0) == 1
    grid = [decoder.step(freqs, step) for step in live]
    return rans.from_grid(np.array(grid).reshape(-1, lanes), n), decoder.finish()


def read_by_the_page(states, words, freqs, n):
    """Symbols by a reader written from formats/rans.md alone, an element at a time."""
    states, words, symbols = [int(x) for x in states], list(words), [None] * n
    lanes = len(states)
    first, total = {}, 0
    for symbol, freq in enumerate(freqs):
        first[symbol] = total
        total += freq
    for step in range(4 * -(-n // (4 * lanes))):
        for lane in range(lanes):
            element = 4 * (step // 4 * lanes + lane) + step % 4
            if element >= n:
                continue
            x = states[lane]
            slot = x % 4096
            symbol = max(s for s in first if freqs[s] and first[s] <= slot)
            states[lane] = int(freqs[symbol]) * (x // 4096) + slot - int(first[symbol])
            symbols[element] = symbol
        for lane in range(lanes):
            if states[lane] < 1 << 16:
                states[lane] = states[lane] << 16 | int(words.pop(0))
    assert not words
    return symbols, [x - (1 << 16) for x in states]


@pytest.mark.parametrize("kind", SYMBOLS)
@pytest.mark.parametrize("lanes", LANES)
def test_symbols_and_seeds_come_back_at_every_length(kind, lanes):
    rng = np.random.default_rng(1)
    for n in range(201):
        symbols, freqs = make(kind, n, seed=n)
        seeds = rng.integers(0, 1 << 16, lanes)
        states, words = encode(symbols, freqs, lanes, seeds)
        assert ((states >= 1 << 16) & (states < 1 << 32)).all()
        found, ends = decode(states, words, freqs, n)
        assert np.array_equal(found, symbols)
        assert np.array_equal(ends, seeds)


@pytest.mark.parametrize("kind", SYMBOLS)
def test_a_reader_written_from_the_page_reads_the_stream(kind):
    seeds = np.arange(32) * 1999
    n = min(300, SYMBOLS[kind](np.random.default_rng(2), 300).size)
    symbols, freqs = make(kind, n, seed=2)
    states, words = encode(symbols, freqs, 32, seeds)
    assert read_by_the_page(states, words, freqs, n) == (symbols.tolist(), seeds.tolist())


@pytest.mark.parametrize("kind", ["skewed", "random", "ramp"])
def test_size_is_within_1_percent_of_constriction(kind):
    """Same symbols, same frequencies; of a lane's 32-bit state, 16 bits pay for its seed.

    The lanes' other 16 bits are 512 in all, 0.6 % of the smallest stream here, and rounding takes
    under 8 bits a lane, of which a part is what the last words hold unused.
    """
    symbols, freqs = make(kind, 30_000)
    _, words = encode(symbols, freqs, 32)
    peer = constriction.stream.stack.AnsCoder()
    model = constriction.stream.model.Categorical(freqs / rans.TOTAL, perfect=True)
    peer.encode_reverse(symbols.astype(np.int32), model)
    bits = 16 * words.size + 16 * 32
    assert abs(bits - peer.num_bits()) <= 0.01 * peer.num_bits()


def by_the_page(counts):
    """Frequencies as formats/rans.md words them."""
    n = sum(counts)
    freqs = [(4096 * c + n // 2) // n for c in counts]
    freqs = [1 if c and not f else f for c, f in zip(counts, freqs, strict=True)]
    while sum(freqs) != 4096:
        at = freqs.index(max(freqs))
        freqs[at] += 4096 - sum(freqs) if sum(freqs) < 4096 else -1
    return freqs


COUNTS = st.lists(
    st.one_of(st.just(0), st.just(1), st.integers(1, 50), st.integers(1, 1 << 24)),
    min_size=1,
    max_size=256,
).filter(any)


@given(COUNTS)
def test_frequencies_are_those_of_the_page(counts):
    freqs = rans.normalize(np.array(counts))
    assert freqs.tolist() == by_the_page(counts)
    assert freqs.sum() == rans.TOTAL
    assert np.array_equal(freqs > 0, np.array(counts) > 0)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([5], [4096]),
        ([1, 1], [2048, 2048]),
        ([1, 1, 1], [1366, 1365, 1365]),  # 1 missing: to the first of the largest
        ([1] * 7, [586, 585, 585, 585, 585, 585, 585]),
        ([1] * 256, [16] * 256),
        ([1, 8191], [1, 4095]),  # half a slot rounds up, and the largest pays
        ([1, 10**6, 0, 10**6], [1, 2047, 0, 2048]),  # raised to 1; of two equals the first pays
        ([1, 1, 10**6, 10**6, 1], [1, 1, 2046, 2047, 1]),
    ],
)
def test_ties_and_raised_frequencies(counts, expected):
    assert rans.normalize(np.array(counts)).tolist() == expected


def test_frequencies_of_nothing_are_zeros():
    assert not rans.normalize(np.zeros(256, np.int64)).any()


def test_a_table_of_one_symbol_emits_nothing():
    symbols, freqs = make("constant", 1000)
    seeds = np.arange(32) * 2047
    states, words = encode(symbols, freqs, 32, seeds)
    assert words.size == 0
    assert np.array_equal(states, seeds + (1 << 16))


@pytest.mark.parametrize("kind", SYMBOLS)
def test_tables_come_back(kind):
    _, freqs = make(kind, 256)
    packed = rans.pack_table(freqs)
    assert packed.size == 3 * np.count_nonzero(freqs)
    assert np.array_equal(rans.unpack_table(packed), freqs)


def table(freqs, symbols):
    head = np.array(freqs, "<u2").view(np.uint8)
    return np.concatenate([head, np.array(symbols, np.uint8)])


@pytest.mark.parametrize(
    "data",
    [
        table([], []),
        table([4096], [7])[:2],
        np.append(table([4096], [7]), np.uint8(0)),
        table([2048, 2048], [7, 7]),
        table([2048, 2048], [8, 7]),
        table([4096, 0], [7, 8]),
        table([4095], [7]),
        table([4096, 1], [7, 8]),
        table([16] * 257, [*range(256), 0]),
    ],
    ids=["empty", "cut", "long", "twice", "descends", "zero", "under", "over", "257"],
)
def test_bad_tables_are_refused(data):
    with pytest.raises(CorruptDataError, match="symbol table"):
        rans.unpack_table(data)


def test_every_cut_of_a_stream_and_every_excess_is_refused():
    symbols, freqs = make("skewed", 600)
    states, words = encode(symbols, freqs, 32)
    assert words.size > 50
    for size in range(words.size):
        with pytest.raises(CorruptDataError, match="is cut"):
            decode(states, words[:size], freqs, 600)
    with pytest.raises(CorruptDataError, match="does not end"):
        decode(states, np.append(words, 0), freqs, 600)


def test_states_that_do_not_come_home_are_refused():
    symbols, freqs = make("skewed", 600)
    states, words = encode(symbols, freqs, 32)
    for lane in range(32):
        bad = states.copy()
        bad[lane] ^= 1 << 20
        with pytest.raises(CorruptDataError, match="rANS"):
            decode(bad, words, freqs, 600)


def test_initial_states_under_the_lower_bound_are_refused():
    states = np.full(32, 1 << 16, np.uint32)
    states[5] = (1 << 16) - 1
    with pytest.raises(CorruptDataError, match="below 2\\^16"):
        rans.Decoder(states, np.zeros(0, np.uint16))


@given(st.integers(0, 600), st.sampled_from(LANES))
def test_the_grid_gives_lanes_groups_of_four(n, lanes):
    grid = rans.to_grid(np.arange(n), lanes, fill=-1)
    for element in range(n):
        group = element // 4
        assert grid[4 * (group // lanes) + element % 4, group % lanes] == element
    assert (grid >= 0).sum() == n
    assert np.array_equal(rans.from_grid(grid, n), np.arange(n))


@pytest.mark.parametrize(("nbytes", "lanes"), [(1, 32), (16383, 32), (16384, 64), (1 << 20, 64)])
def test_rows_of_16_kib_have_64_lanes(nbytes, lanes):
    assert rans.num_lanes(nbytes) == lanes
