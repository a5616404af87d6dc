"""Every quantizer at every usual geometry and on every named block: it works alike everywhere, or
says why it does not.

What the contract runs at one geometry each runs here over all of them, with small blocks.
"""

import itertools

import numpy as np
import pytest
import torch
from boundaries import BLOCKS, make
from profiles import bound
from strategies import make_cache

from kvcodec import BlockSpec, codec_names, get_codec
from kvcodec.bits import int_view, to_bits
from kvcodec.errors import UnsupportedSpecError
from kvcodec.quantizer import Quantizer
from kvcodec.registry import codec_class, why_unavailable

HEAD_DIMS = (64, 80, 96, 100, 112, 128, 192, 256, 512, 576)
HEADS = (1, 2, 3, 4, 5, 6, 7, 8, 10)
NAMES = [n for n in codec_names() if issubclass(codec_class(n), Quantizer)]
TEXTS = [text for n in NAMES if not codec_class(n).lossless for text in codec_class(n).examples]
HOST = [
    i
    for i in ("vector", "native")
    if why_unavailable(get_codec("fp8"), i, torch.device("cpu")) is None
]
# Squared error over that of zeros, twice what normal values measure: by codec, or codec and bits.
ERRORS = {
    "fp8": 1.5e-3, "fp8:dtype=e5m2": 6e-3, "mxfp8": 2.5e-3, "mxfp8:dtype=e5m2": 6e-3,
    "nvfp4": 0.025, "mxfp4": 0.04, "int4": 0.025, "int4:bits=2": 0.4,
    "turboangle": 3e-3, "turboangle:n=64,norm_bits=4": 0.02,
    "turboquant": 0.025, "turboquant:bits=3": 0.08, "turboquant:bits=2": 0.25,
}  # fmt: skip


def bound_of(text):
    """The longest key that the codec begins with."""
    return ERRORS[max((key for key in ERRORS if text.startswith(key)), key=len)]


def used(rows):
    return [
        row[:size].tobytes() for row, size in zip(rows.payload.numpy(), rows.nbytes, strict=True)
    ]


def decoded(codec, rows, impl):
    cache = torch.empty(len(rows), *rows.spec.shape, dtype=rows.spec.dtype)
    int_view(cache).fill_(-1)
    codec.decompress(rows, cache, list(range(len(rows))), impl=impl)
    return cache


def check_geometry(codec, spec, impls):
    """A full block and one with its last token unused, alike under all implementations."""
    cache, valid = make_cache(spec, ("normal", "outlier")), [spec.block_size, spec.block_size - 1]
    rows = [codec.compress(cache, [0, 1], num_valid=valid, impl=impl) for impl in impls]
    blocks = [decoded(codec, rows[0], impl) for impl in impls]
    for other in rows[1:]:
        assert used(other) == used(rows[0])
    for other in blocks[1:]:
        np.testing.assert_array_equal(to_bits(other), to_bits(blocks[0]))
    assert blocks[0].shape == cache.shape
    assert not int_view(blocks[0])[1, -1].any()
    if codec.needs_profile:  # the made-up means are not those of the block
        return
    x, got = cache[0].double(), blocks[0][0].double()
    assert float((got - x).square().sum()) <= bound_of(str(codec)) * float(x.square().sum())


@pytest.mark.parametrize("text", TEXTS)
def test_every_geometry_works_or_is_refused_with_a_reason(text):
    codec = get_codec(text)
    step = 1 if text == codec.examples[0] else 5  # the other examples of a codec: every fifth
    worked, tokens = 0, 16 if "axis=channel" in text else 2
    for (i, head_dim), (j, heads) in itertools.product(enumerate(HEAD_DIMS), enumerate(HEADS)):
        if (i + j) % step:
            continue
        spec = BlockSpec(tokens, heads, head_dim, torch.bfloat16)
        reason = codec.supports(spec)
        if reason is not None:
            assert str(head_dim) in reason
            with pytest.raises(UnsupportedSpecError) as raised:
                codec.compress(torch.zeros(1, *spec.shape, dtype=spec.dtype), [0])
            assert reason in str(raised.value)
            continue
        worked += 1
        check_geometry(bound(codec, spec), spec, [*HOST, "reference"] if i == j else HOST)
    assert worked >= 5 * len(HEADS) // step


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("text", TEXTS)
def test_every_named_block_fares_alike_everywhere(text, dtype):
    """Scales of zero, tiny, huge and special blocks: the same bytes, and nothing that is not
    finite comes out of finite elements."""
    spec = BlockSpec(16, 2, 64, dtype)
    codec = bound(get_codec(text), spec)
    cache = torch.stack([make(name, spec) for name in BLOCKS])
    every = list(range(len(cache)))
    wanted = codec.compress(cache, every, impl="reference")
    blocks = decoded(codec, wanted, "reference")
    for impl in HOST:
        assert used(codec.compress(cache, every, impl=impl)) == used(wanted)
        np.testing.assert_array_equal(to_bits(decoded(codec, wanted, impl)), to_bits(blocks))
    for name, block, source in zip(BLOCKS, blocks, cache, strict=True):
        if bool(source.isfinite().all()):
            assert bool(block.isfinite().all()), name
        if not bool(source.any()) and not codec.needs_profile:
            assert not bool(block.any()), name


@pytest.mark.parametrize("text", ["turboangle", "turboquant"])
@pytest.mark.parametrize("impl", ["reference", *HOST])
def test_threads_of_libraries_do_not_show_in_rotated_rows(text, impl):
    codec, cache = get_codec(text), make_cache(BlockSpec(33, 3, 192, torch.bfloat16))
    every, before = list(range(len(cache))), torch.get_num_threads()
    rows = []
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            rows.append(used(codec.compress(cache, every, impl=impl)))
    finally:
        torch.set_num_threads(before)
    assert rows[0] == rows[1]
