"""turboangle's kernels at sizes, packings and damage that the contract suite does not reach."""

import numpy as np
import pytest
import torch
from boundaries import ANGLES, NORMS
from strategies import KINDS, in_suite, make_cache
from turboangle_page import packed, unpack

from kvcodec import BlockSpec, EncodedBlocks, get_codec
from kvcodec.bits import to_bits
from kvcodec.kernels import _native_call, turboangle_native, turboangle_vector
from kvcodec.kernels._dense import reference_kernel
from kvcodec.registry import IMPLEMENTATIONS, why_unavailable
from kvcodec.rotation import rotate, unrotate

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ISAS = _native_call.extension().isas() if _native_call._native else []
KERNELS = [("vector", turboangle_vector.KERNEL)] + [
    (name, turboangle_native.TurboAngleNative(index)) for index, name in ISAS
]
IMPLS = [i for i in IMPLEMENTATIONS if why_unavailable(get_codec("turboangle"), i, DEVICE) is None]
CASES = (
    ("turboangle", 128, torch.bfloat16),
    ("turboangle:n=512,norm=fp16", 64, torch.bfloat16),
    ("turboangle:n=3,norm=fp32", 2, torch.float32),
    ("turboangle:n=1024,norm_bits=5,norm=log,minmax=fp16", 6, torch.float16),
    ("turboangle:n=56,norm_bits=7", 100, torch.bfloat16),
    ("turboangle:n=2,norm_bits=6", 64, torch.float32),
    ("turboangle:n=1000,norm=log", 30, torch.bfloat16),
    ("turboangle:n=32,norm_bits=4,minmax=fp16", 66, torch.float32),
    ("turboangle:n=48", 576, torch.bfloat16),
)


def encode(kernel, codec, cache, num_valid):
    rows = EncodedBlocks.empty(codec, BlockSpec.of(cache), len(cache))
    valid = torch.tensor(num_valid, dtype=torch.int32)
    kernel.compress(cache, torch.arange(len(cache)), valid, rows)
    return rows


def decode(kernel, rows):
    cache = torch.empty(len(rows), *rows.spec.shape, dtype=rows.spec.dtype)
    kernel.decompress(rows, cache, torch.arange(len(rows)))
    return to_bits(cache)


@pytest.mark.parametrize("kernel", [kernel for _, kernel in KERNELS], ids=[k for k, _ in KERNELS])
@pytest.mark.parametrize(("text", "head_dim", "dtype"), CASES)
def test_rows_and_damaged_rows_equal_the_references(kernel, text, head_dim, dtype):
    """Bytes after the prefix are anything; every implementation decodes them alike."""
    codec = get_codec(text)
    cache = make_cache(BlockSpec(3, 2, head_dim, dtype), KINDS)
    valid = [3, 2, 1, 0, *[3] * (len(KINDS) - 4)]
    reference = reference_kernel(codec)
    rows = encode(reference, codec, cache, valid)
    assert torch.equal(encode(kernel, codec, cache, valid).payload, rows.payload)
    noise = np.random.default_rng(0).integers(0, 256, rows.payload.shape, np.uint8)
    noise[:, :16] = rows.payload[:, :16]
    damaged = EncodedBlocks(codec, rows.spec, torch.from_numpy(noise), rows.nbytes)
    for batch in (rows, damaged):
        np.testing.assert_array_equal(decode(kernel, batch), decode(reference, batch))


@pytest.mark.parametrize("kernel", [kernel for _, kernel in KERNELS], ids=[k for k, _ in KERNELS])
@pytest.mark.parametrize("n", [48, 128, 1024])
def test_estimates_never_decide_an_angle(kernel, n):
    """Directions, boundaries, and one step to either side: vectors of one pair."""
    turn = np.arange(4 * n) / (4 * n) * 2 * np.pi
    radius = np.float32(1 + 2.0**-12)
    steps = np.stack([np.cos(turn), np.sin(turn)], -1).astype(np.float32) * radius
    blocks = np.stack([np.nextafter(steps, np.float32(at)) for at in (-2, 2)] + [steps])
    # head_dim 2: H makes (a + b, a - b) / sqrt 2, an eighth of a turn and a reflection
    cache = torch.from_numpy(blocks.reshape(3, 4 * n, 1, 2))
    codec = get_codec(f"turboangle:n={n},norm=fp32")
    valid = [4 * n] * 3
    rows = encode(reference_kernel(codec), codec, cache, valid)
    assert torch.equal(encode(kernel, codec, cache, valid).payload, rows.payload)


@pytest.mark.parametrize("kernel", [kernel for _, kernel in KERNELS], ids=[k for k, _ in KERNELS])
@pytest.mark.parametrize("n", [2, 3, 100, 128, 1024])
def test_pairs_near_a_boundary_fall_on_their_side(kernel, n):
    """From a quarter of a step to a few roundings away: whatever decides there decides alike."""
    away = np.concatenate([[s * 2.0**-k, s * 1.4 * 2.0**-k] for k in range(2, 24) for s in (-1, 1)])
    turns = (np.arange(n)[:, None] + 0.5 + away) / n * 2 * np.pi
    y = np.stack([np.cos(turns), np.sin(turns)], -1).astype(np.float32)
    cache = torch.from_numpy(unrotate(y).reshape(1, -1, 4, 2))
    codec = get_codec(f"turboangle:n={n},norm=fp32")
    rows = [encode(k, codec, cache, [cache.shape[1]]) for k in (reference_kernel(codec), kernel)]
    assert torch.equal(rows[0].payload, rows[1].payload)


def rows_of(codec, pairs, impl):
    """Parts of the row of vectors [n] whose rotation is exactly pairs [n, 8, 2]."""
    y = np.array(pairs, np.float32).reshape(-1, 16)
    x = unrotate(y)
    np.testing.assert_array_equal(rotate(x), y)
    cache = torch.from_numpy(x.reshape(1, -1, 1, 16)).to(DEVICE)
    row = codec.compress(cache, [0], impl=impl).payload[0].cpu().numpy().tobytes()
    angles = packed(8, codec.n)
    norms = 16 + -(-angles * len(y) // 16) * 16
    return [
        (row[16 + i * angles :][:angles], row[norms + 4 * i :][:4]) for i in range(len(y))
    ]  # 4 bytes of 4-bit norms


@pytest.mark.parametrize("impl", in_suite(IMPLS))
def test_named_angles(impl):
    """Every row of boundaries.ANGLES, in all pairs of a vector of its own."""
    for n in sorted({row.n for row in ANGLES}):
        codec, rows = get_codec(f"turboangle:n={n}"), [row for row in ANGLES if row.n == n]
        found = rows_of(codec, [[row.pair] * 8 for row in rows], impl)
        for row, (angles, _) in zip(rows, found, strict=True):
            assert (row.name, unpack(angles, 8, n)) == (row.name, [row.code] * 8)


@pytest.mark.parametrize("impl", in_suite(IMPLS))
@pytest.mark.parametrize("norm", ["linear", "log"])
def test_named_norms(norm, impl):
    """Every row of boundaries.NORMS, with pairs on the axis."""
    codec = get_codec(f"turboangle:norm_bits=4,norm={norm}")
    pairs = [[(r, 0) for r in np.resize(row.norms, 8)] for row in NORMS]
    for row, (_, norms) in zip(NORMS, rows_of(codec, pairs, impl), strict=True):
        want = np.resize(getattr(row, norm), 8).tolist()
        assert (row.name, unpack(norms, 8, 16)) == (row.name, want)
