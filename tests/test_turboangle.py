"""turboangle: its error bounds, its rate, degenerate vectors, and a reader made from its page."""

import hashlib
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from boundaries import BLOCKS, make
from strategies import KINDS, make_block
from turboangle_page import Page, circle

from kvcodec import BlockSpec, EncodedBlocks, Plan, angles, fixed_log, get_codec, radix
from kvcodec.bits import to_bits
from kvcodec.errors import InvalidInputError
from kvcodec.rotation import rotate

PAGE = (Path(__file__).parents[1] / "formats" / "turboangle.md").read_text()
SOURCES = (torch.bfloat16, torch.float16, torch.float32)
MODES = (
    *(f"norm_bits={b},norm={norm}" for norm in ("linear", "log") for b in (4, 5, 6, 7, 8)),
    "minmax=fp16", "norm=log,minmax=fp16", "norm=fp16", "norm=fp32",
)  # fmt: skip


def encode(codec, block, num_valid=None):
    return codec.compress(block[None], [0], num_valid=num_valid, impl="reference")


def round_trip(codec, block):
    return codec.decode(encode(codec, block))[0]


def norms(x):
    return np.linalg.norm(x, axis=-1)


@pytest.mark.parametrize("n", [32, 48, 56, 64, 128, 256])
def test_mean_squared_error_of_exact_norms_is_the_papers(n):
    x = torch.from_numpy(np.random.default_rng(n).standard_normal((128, 8, 128), np.float32))
    codec = get_codec(f"turboangle:n={n},norm=fp32")
    relative = float((round_trip(codec, x) - x).square().sum() / x.square().sum())
    assert relative == pytest.approx(2 * (1 - math.sin(math.pi / n) / (math.pi / n)), rel=0.02)


def error_bound(codec, pair_norms):
    """Largest distance [...] of a decoded vector from its own, from the page; norms [..., P]."""
    t = 2**codec.norm_bits - 1
    low, high = (f(pair_norms, axis=-1, keepdims=True) for f in (np.min, np.max))
    if codec.norm == "linear":
        lost = np.broadcast_to((high - low) / (2 * t), pair_norms.shape)
    elif codec.norm == "log":
        floor = np.maximum(low, high * 2.0**-10)
        ratio = high / np.where(high == 0, 1, floor)
        octaves = np.log2(np.maximum(ratio, 1)) / (2 * t) + 2.0**-13
        lost = np.maximum(pair_norms, floor) * (2**octaves - 1) + np.maximum(floor - pair_norms, 0)
    else:
        lost = np.zeros_like(pair_norms)
    if "fp16" in (codec.norm, codec.minmax):
        lost = lost + high * 2.0**-10
    far = lost + 2 * (pair_norms + lost) * math.sin(math.pi / (2 * codec.n))
    return np.sqrt((far**2).sum(-1)) + 1e-5 * np.sqrt((pair_norms**2).sum(-1))


def rotated_norms(x):
    """Norms of the pairs of H D x in float64: [..., D] -> [..., D / 2]."""
    matrix = rotate(np.eye(x.shape[-1], dtype=np.float32)).astype(np.float64)
    y = x @ matrix
    return np.hypot(y[..., 0::2], y[..., 1::2])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [2, 3, 48, 64, 1024])
def test_every_vector_comes_back_within_its_bound(mode, n):
    codec, spec = get_codec(f"turboangle:n={n},{mode}"), BlockSpec(5, 2, 70, torch.float32)
    for kind in ("normal", "wild_channels", "zero_channel", "outlier"):
        block = make_block(kind, spec)
        x = block.numpy().astype(np.float64)
        error = norms(round_trip(codec, block).numpy() - x)
        assert (error <= error_bound(codec, rotated_norms(x))).all()


@pytest.mark.parametrize("mode", ["norm_bits=8", "norm_bits=4,norm=log", "norm=fp32"])
@pytest.mark.parametrize("dtype", SOURCES, ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_degenerate_blocks_are_finite_and_within_the_bound(name, dtype, mode):
    codec, spec = get_codec(f"turboangle:{mode}"), BlockSpec(3, 2, 64, dtype)
    block = make(name, spec)
    got = round_trip(codec, block).to(torch.float64).numpy()
    assert np.isfinite(got).all()
    most = torch.finfo(dtype).max
    x = block.to(torch.float64).nan_to_num(nan=0.0, posinf=most, neginf=-most).numpy()
    element = torch.finfo(dtype).eps * np.abs(x).max() * 8 + torch.finfo(dtype).tiny
    true = rotated_norms(x)
    saturated = (true > torch.finfo(torch.float32).max).any(-1)  # the page promises nothing there
    assert saturated.any() <= (name == "infinities")
    within = norms(got - x) <= np.nan_to_num(error_bound(codec, true)) + element * 8
    assert (within | saturated).all()


@pytest.mark.parametrize("mode", MODES)
def test_zero_vectors_decode_to_positive_zero(mode):
    codec, spec = get_codec(f"turboangle:{mode}"), BlockSpec(3, 2, 64, torch.bfloat16)
    for name in ("zero_block", "negative_zero_block"):
        rows = encode(codec, make(name, spec))
        assert not to_bits(codec.decode(rows)).any()
        assert not rows.payload[0, 16 : int(rows.nbytes[0])].any()


def test_power_of_two_sizes_do_not_show():
    """A block times 2^k gives the same codes, and norms times 2^k."""
    codec, spec = get_codec("turboangle"), BlockSpec(3, 2, 64, torch.float32)
    block = make_block("normal", spec)
    row = encode(codec, block).payload[0]
    shared = 16 + 6 * 28 + 8 + 6 * 32  # prefix, angles and padding, norms
    for k in (-100, -60, 3, 100):
        assert torch.equal(encode(codec, block * 2.0**k).payload[0, :shared], row[:shared])


@pytest.mark.parametrize("dtype", SOURCES, ids=str)
def test_nan_counts_as_zero_and_infinity_as_the_largest(dtype):
    codec, spec = get_codec("turboangle"), BlockSpec(2, 2, 64, dtype)
    odd, even = make_block("normal", spec), make_block("normal", spec)
    most = torch.finfo(dtype).max
    places = ((0, 0, 3, np.nan, 0.0), (0, 1, 5, np.inf, most), (1, 0, 0, -np.inf, -most))
    for token, head, dim, special, stands_for in places:
        odd[token, head, dim] = special
        even[token, head, dim] = stands_for
    assert torch.equal(encode(codec, odd).payload, encode(codec, even).payload)


def test_axes_and_ties_go_to_the_lower_code():
    one, zero = np.float32(1), np.float32(0)
    points = np.array([(one, zero), (one, one), (zero, one), (-one, one), (-one, zero),
                       (-one, -one), (zero, -one), (one, -one), (zero, zero)])  # fmt: skip
    x, y = points.T
    assert angles.nearest(x, y, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 0]  # diagonals are ties
    assert angles.nearest(x, y, 2).tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0]  # the y axis is one
    assert angles.nearest(x, y, 8).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    assert angles.nearest(-zero * x, -zero * y, 8).tolist() == [0] * 9


@pytest.mark.parametrize("n", [2, 3, 5, 48, 56, 64, 127, 128, 1024])
def test_codes_are_the_nearest_directions(n):
    """Against float64 arc tangents, wherever they are not within 1e-5 of a boundary."""
    x, y = np.random.default_rng(n).standard_normal((2, 4000)).astype(np.float32)
    position = np.arctan2(y.astype(np.float64), x) * n / (2 * np.pi)
    clear = np.abs(position - np.floor(position) - 0.5) > 1e-5 * n
    assert clear.sum() > 3800 or n == 1024
    want = np.round(position[clear]) % n
    assert np.array_equal(angles.nearest(x[clear], y[clear], n), want)


@pytest.mark.parametrize("n", [3, 64, 128, 1024])
def test_points_one_step_from_a_boundary_fall_on_its_sides(n):
    """The boundary itself is a tie; its neighbours across the angle are decided."""
    edges = angles.boundaries(n)
    x, y = edges.T
    assert np.array_equal(angles.nearest(x, y, n), np.arange(n))
    step = np.float32(2.0**-22)
    ahead = angles.nearest(x - y * step, y + x * step, n)
    behind = angles.nearest(x + y * step, y - x * step, n)
    assert np.array_equal(ahead, (np.arange(n) + 1) % n)
    assert np.array_equal(behind, np.arange(n))


@pytest.mark.parametrize("n", [2, 3, 48, 56, 60, 64, 100, 128, 255, 512, 1000, 1024])
@pytest.mark.parametrize("count", [1, 7, 32, 50])
def test_packing_returns_every_code(n, count):
    codes = np.random.default_rng(n).integers(0, n, (3, 2, count))
    codes[0, 0] = n - 1
    packed = radix.pack(codes, n)
    assert packed.shape == (3, 2, radix.packed_nbytes(count, n))
    assert np.array_equal(radix.unpack(packed, count, n), codes)


def test_packing_loses_little():
    for n in range(2, 1025):
        if radix.is_power_of_two(n):
            assert radix.packed_nbytes(64, n) == 8 * (n.bit_length() - 1)
        else:
            m, nbytes = radix.group(n)
            assert n**m <= 256**nbytes
            assert 8 * nbytes / m < math.log2(n) + 1.2
    assert (radix.group(48), radix.group(56)) == ((10, 7), (11, 8))


@pytest.mark.parametrize(("text", "bits"), [
    ("turboangle", 3.5 + 4 + 64 / 128),
    ("turboangle:n=64", 3 + 4 + 64 / 128),
    ("turboangle:n=64,norm_bits=4,norm=log", 3 + 2 + 64 / 128),
    ("turboangle:n=256,norm_bits=5,minmax=fp16", 4 + 2.5 + 32 / 128),
    ("turboangle:n=512,norm=fp32", 4.5 + 16),
    ("turboangle:n=48", 8 * 45 / 128 + 4 + 64 / 128),
])  # fmt: skip
def test_rows_take_the_true_rate(text, bits):
    codec, spec = get_codec(text), BlockSpec(64, 2, 128, torch.bfloat16)
    assert codec.max_nbytes(spec) == 16 + spec.numel * bits / 8


@pytest.mark.parametrize(("params", "message"), [
    ("n=1", "n is 1, wanted 2 to 1024"),
    ("n=1025", "n is 1025, wanted 2 to 1024"),
    ("norm_bits=3", "norm_bits is 3, wanted 4 to 8"),
    ("norm_bits=9", "norm_bits is 9, wanted 4 to 8"),
    ("norm=exp", "norm is 'exp', wanted one of linear, log, fp32, fp16"),
    ("minmax=bf16", "minmax is 'bf16', wanted fp32 or fp16"),
    ("norm=fp16,norm_bits=4", "stores norms uncoded; leave norm_bits"),
    ("norm=fp32,minmax=fp16", "stores norms uncoded; leave norm_bits"),
])  # fmt: skip
def test_parameters_that_make_no_sense_are_refused(params, message):
    with pytest.raises(InvalidInputError, match=message):
        get_codec(f"turboangle:{params}")


def test_odd_head_dims_are_refused():
    reason = get_codec("turboangle").supports(BlockSpec(4, 2, 65, torch.bfloat16))
    assert reason == "head_dim 65 is odd and leaves an element unpaired; choose fp8"


def test_presets_are_those_of_the_paper():
    fast, log, early = (Plan.parse(f"turboangle-{p}") for p in ("k128v64", "k8v4log", "e4"))
    sides = ("key", "value")
    assert [fast.codec(0, side, 0).n for side in sides] == [128, 64]
    assert [(c.norm_bits, c.norm) for c in (log.key, log.value)] == [(8, "linear"), (4, "log")]
    assert [[early.codec(i, s, 0).n for s in sides] for i in (0, 3, 4)] == [
        [256, 128], [256, 128], [128, 64]
    ]  # fmt: skip


def test_tables_are_those_of_the_page():
    rows = re.findall(r"\| (\d+) \| `(\w{16})` \| `(\w{16})` \|", PAGE)
    assert len(rows) == 11
    for n, direction, boundary in rows:
        for table, digits in ((angles.directions, direction), (angles.boundaries, boundary)):
            data = table(int(n)).astype("<f4").tobytes()
            assert hashlib.sha256(data).hexdigest()[:16] == digits
        want = [circle(k / int(n)) for k in range(int(n))]
        assert np.array_equal(angles.directions(int(n)), np.array(want))
    logs = re.search(r"log_table `(\w{16})`, power_table `(\w{16})`", PAGE).groups()
    tables = (fixed_log.log_table(), fixed_log.power_table())
    assert tuple(hashlib.sha256(t.astype("<i4").tobytes()).hexdigest()[:16] for t in tables) == logs


def test_integer_logarithms_are_close_and_never_decrease():
    x = np.exp(np.random.default_rng(0).uniform(-80, 80, 100_000)).astype(np.float32)
    x.sort()
    log = fixed_log.log_of(x)
    assert (np.diff(log) >= 0).all()
    assert np.abs(log / 2**16 - 127 - np.log2(x.astype(np.float64))).max() < 2.0**-15
    assert np.abs(np.log2(fixed_log.power_of(log).astype(np.float64) / x)).max() < 2.0**-15
    assert fixed_log.log_of(np.zeros(1, np.float32)).tolist() == [0]


@pytest.mark.parametrize("dtype", SOURCES, ids=str)
@pytest.mark.parametrize("params", [
    {}, {"n": 64, "norm_bits": 4, "norm": "log"}, {"n": 48, "norm_bits": 6, "minmax": "fp16"},
    {"n": 56, "norm": "fp16"}, {"n": 3, "norm": "fp32"},
    {"n": 512, "norm_bits": 7, "norm": "log", "minmax": "fp16"},
])  # fmt: skip
def test_a_reader_made_from_the_page_agrees(params, dtype):
    """Rows of every kind of block, partly filled ones, and rows of random bytes."""
    spec = BlockSpec(2, 2, 22, dtype)
    codec = get_codec("turboangle:" + ",".join(f"{k}={v}" for k, v in params.items()))
    blocks = torch.stack([make_block(kind, spec) for kind in KINDS])
    valid = [2, 1, 2, 0, *[2] * (len(KINDS) - 4)]
    rows = codec.compress(blocks, range(len(KINDS)), num_valid=valid, impl="reference")
    noise = np.random.default_rng(1).integers(0, 256, rows.payload.shape, np.uint8)
    noise[:, :16] = rows.payload[:, :16]
    damaged = EncodedBlocks(codec, spec, torch.from_numpy(noise), rows.nbytes)
    for batch in (rows, damaged):
        got = to_bits(codec.decode(batch))
        for row, block in zip(batch.payload.numpy(), got, strict=True):
            with np.errstate(all="ignore"):
                want = Page(**params).decode(row.tobytes(), spec.shape, spec.format.name)
            assert np.array_equal(block, want)


def test_bounds_grow_with_fewer_bits():
    """A sanity check of the bound itself: finer codes promise less error."""
    pair_norms = rotated_norms(np.random.default_rng(0).standard_normal((4, 64)))
    for norm in ("linear", "log"):
        bounds = [
            error_bound(get_codec(f"turboangle:norm_bits={b},norm={norm}"), pair_norms)
            for b in (4, 5, 6, 7, 8)
        ]
        assert all((a > b).all() for a, b in itertools.pairwise(bounds))
