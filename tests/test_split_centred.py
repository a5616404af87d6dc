"""split:model=centred: rows by a reader of the page, writers by the page's own arithmetic."""

import math

import numpy as np
import pytest
import torch
from conformance.cases import DEVICE
from strategies import KINDS, in_suite, make_cache
from test_split_format import FLOATS, PLANES, align, read_split

from kvcodec import BlockSpec, get_codec
from kvcodec.bits import from_bits, to_bits
from kvcodec.errors import CorruptDataError, InvalidInputError

CENTRED, PLAIN = get_codec("split:model=centred"), get_codec("split")


def levels(spec, num_blocks, spread, seed=0):
    """Blocks whose channels lie up to `spread` octaves apart, from fields: no float is rounded."""
    rng, (e, m, _, _) = np.random.default_rng(seed), PLANES[spec.format.name]
    top = rng.integers(0, spread, (num_blocks, 1, spec.num_kv_heads, spec.head_dim))
    top = top + min(2 ** (e - 1) + 3, 2**e - 1 - spread)
    exponent = np.maximum(top - rng.geometric(0.5, (num_blocks, *spec.shape)) + 1, 0)
    noise = rng.integers(0, 2 ** (m + 1), exponent.shape)
    bits = noise >> m << (m + e) | exponent << m | noise & (2**m - 1)
    return from_bits(bits.astype(f"u{spec.dtype.itemsize}"), spec.dtype)


def page_centres(exponents, channels, e):
    """The fields and the base, a channel at a time."""
    middles = []
    for c in range(channels):
        column = exponents[c::channels]
        most, v = max(column), len(column)
        s = sum(min(most - x, 2) for x in column)
        middles.append(most - (2 if 2 * s > 3 * v else 1 if 2 * s > v else 0))
    first = (2 * sum(middles) + channels) // (2 * channels) - 3
    return [min(max(x - first, 0), 7) for x in middles], (first - 2 ** (e - 1)) % 256


def page_estimate(symbols):
    """Bytes of table and words, by floating-point free arithmetic on counts in a dict."""
    counts = {s: symbols.count(s) for s in sorted(set(symbols))}
    n, freqs = len(symbols), {}
    for s, c in counts.items():
        freqs[s] = max(1, (4096 * c + n // 2) // n)
    while (left := 4096 - sum(freqs.values())) != 0:
        largest = min(s for s in freqs if freqs[s] == max(freqs.values()))
        freqs[largest] += left if left > 0 else -1
    total = 0
    for s, c in counts.items():
        p = freqs[s].bit_length() - 1
        x = freqs[s] * 2 ** (12 - p) - 4096
        cost = 4096 * (12 - p) - x - 11 * x * (4096 - x) // 2**17
        assert abs(cost / 4096 - (12 - math.log2(freqs[s]))) < 0.0085
        total += c * cost
    return align(3 * len(counts)) + total // 2**15


@pytest.mark.parametrize("fmt", FLOATS, ids=[f.name for f in FLOATS])
def test_centred_rows_are_what_the_page_says(fmt):
    """Channels that fill no byte of a plane, tokens that are not valid, all modes."""
    spec, modes = BlockSpec(25, 3, 11, fmt.dtype), set()
    cache = torch.cat([levels(spec, 2, 7), make_cache(spec, ("normal", "random_bits"))])
    for valid in (25, 21, 1):
        rows = CENTRED.compress(cache, range(4), num_valid=[valid] * 4, impl="reference")
        for block, row, size in zip(cache, rows.payload, rows.nbytes, strict=True):
            bits, mode = read_split(bytes(row[:size].tolist()), spec)
            assert bits == to_bits(block[:valid]).reshape(-1).tolist()
            modes.add(mode)
    assert modes == {0, 1, 2} if fmt.itemsize > 1 else modes >= {0, 2}


@pytest.mark.parametrize("fmt", FLOATS, ids=[f.name for f in FLOATS])
def test_centres_and_the_choice_of_mode_are_what_the_page_says(fmt):
    spec, (e, m, _, _) = BlockSpec(24, 2, 21, fmt.dtype), PLANES[fmt.name]
    cache = torch.cat([*(levels(spec, 2, spread) for spread in (1, 2, 3, 5, 8)), make_cache(spec)])
    valid, channels, modes = [24, 13] * 5 + [24] * len(KINDS), 42, set()
    rows = CENTRED.compress(cache, range(len(cache)), num_valid=valid, impl="reference")
    for block, v, row in zip(cache, valid, rows.payload.numpy(), strict=True):
        bits = to_bits(block[:v]).reshape(-1).tolist()
        exponents = [x >> m & (2**e - 1) for x in bits]
        fields, base = page_centres(exponents, channels, e)
        symbols = [(x - base - fields[i % channels]) % 2**e for i, x in enumerate(exponents)]
        wanted = 2 if page_estimate(symbols) + align(11 + 6 + 1) < page_estimate(exponents) else 1
        mode = int(row[0])
        modes.add(mode)
        assert mode in (0, wanted)
        if mode == 2:
            at = 16 + align(int.from_bytes(row[4:8].tobytes(), "little"))
            low = sum((x & 3) << (2 * c) for c, x in enumerate(fields))
            high = sum((x >> 2) << c for c, x in enumerate(fields))
            part = [*low.to_bytes(11, "little"), *high.to_bytes(6, "little"), base]
            assert row[at : at + 18].tolist() == part
    assert modes >= {0, 1, 2} if fmt.itemsize > 1 else 2 in modes


def test_a_centred_row_is_at_most_a_little_longer_than_a_plain_one():
    """What the estimate may miss: its error, two paddings and a byte a lane."""
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        spec = BlockSpec(32, 2, 64, dtype)
        cache = torch.cat([make_cache(spec), *(levels(spec, 2, s) for s in (1, 2, 3, 4, 6))])
        plain, centred = (
            c.compress(cache, range(len(cache)), impl="reference").nbytes for c in (PLAIN, CENTRED)
        )
        slack = 0.0085 * spec.numel / 8 + 2 * 16 + 32
        assert (centred <= plain + slack).all()
        assert int(centred.sum()) < 0.99 * int(plain.sum())


def test_the_default_model_leaves_no_trace():
    assert str(PLAIN) == str(get_codec("split:model=plain")) == "split"
    assert PLAIN.config()["params"] == {}
    with pytest.raises(InvalidInputError, match="wanted plain or centred"):
        get_codec("split:model=mean")


@pytest.mark.parametrize("impl", ["reference", "vector", "native"])
def test_a_plain_reader_refuses_a_centred_row(impl):
    spec = BlockSpec(25, 3, 11, torch.bfloat16)
    rows = CENTRED.compress(levels(spec, 1, 7), [0], impl="reference")
    assert rows.payload[0, 0] == 2
    plain = PLAIN.compress(make_cache(spec, ("normal",)), [0], impl="reference")
    plain.payload.copy_(rows.payload)
    plain.nbytes.copy_(rows.nbytes)
    with pytest.raises(CorruptDataError, match="mode"):
        PLAIN.decompress(plain, torch.zeros(1, *spec.shape, dtype=spec.dtype), [0], impl=impl)


@pytest.mark.parametrize("impl", in_suite(["vector", "native", "triton"]))
@pytest.mark.parametrize("fmt", FLOATS, ids=[f.name for f in FLOATS])
def test_implementations_equal_the_reference_around_the_choice_of_mode(impl, fmt):
    spec = BlockSpec(9, 3, 35, fmt.dtype)
    cache = torch.cat([*(levels(spec, 1, s) for s in (1, 4, 8)), make_cache(spec, ("outlier",))])
    valid = [9, 9, 7, 9]
    wanted = CENTRED.compress(cache, range(4), num_valid=valid, impl="reference")
    cache = cache.to(DEVICE)
    rows = CENTRED.compress(cache, range(4), num_valid=valid, impl=impl)
    back = torch.empty_like(cache)
    CENTRED.decompress(rows, back, range(4), impl=impl)
    for i, v in enumerate(valid):
        size = int(wanted.nbytes[i])
        assert rows.nbytes[i] == size
        assert rows.payload[i, :size].tolist() == wanted.payload[i, :size].tolist()
        bits = to_bits(back[i].cpu())
        assert np.array_equal(bits[:v], to_bits(cache[i].cpu())[:v])
        assert not bits[v:].any()
