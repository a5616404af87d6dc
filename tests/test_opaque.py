"""Opaque bytes: what a structure is worth when it is named, and that it can be found."""

import numpy as np
import pytest
import torch
from strategies import make_cache

from kvcodec import BlockSpec, get_codec
from kvcodec.codecs.opaque import CODINGS, detect
from kvcodec.errors import InvalidInputError

SPEC = BlockSpec(64, 2, 64, torch.bfloat16)


def opaque(cache: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes."""
    return cache.view(torch.uint8)


def bits_per_byte(codec: str, cache: torch.Tensor) -> float:
    rows = get_codec(codec).compress(cache, range(len(cache)))
    return 8 * rows.total_nbytes() / cache.numel()


@pytest.mark.parametrize(("dtype", "coding"), [
    (torch.bfloat16, "bf16"), (torch.float16, "fp16"),
    (torch.float8_e4m3fn, "e4m3fn"), (torch.float8_e5m2, "e5m2"),
])  # fmt: skip
def test_floats_behind_bytes_are_found_and_cost_what_split_pays(dtype, coding):
    cache = make_cache(BlockSpec(64, 2, 64, dtype), ("wild_channels", "normal"))
    codec = detect(opaque(cache))
    assert codec.coding == coding
    split = get_codec("split").compress(cache, [0, 1]).total_nbytes()
    ours = codec.compress(opaque(cache), [0, 1]).total_nbytes()
    assert abs(ours - split) <= 2 * 64  # a table's length byte, padding, other seeds


def test_e2m1_pairs_are_coded_as_nibbles():
    rng = np.random.default_rng(1)
    weights = np.array([10, 9, 8, 7, 5, 4, 2, 1, 1, 9, 8, 7, 5, 4, 2, 1])
    p = weights / weights.sum()
    codes = rng.choice(16, (2, 64, 1, 256), p=p)
    pairs = torch.from_numpy((codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8))
    entropy = -2 * (p * np.log2(p)).sum()
    side = 8 * (16 + 64 + 64 * 4) / 8192  # prefix, table, states of 64 lanes, or fewer
    assert entropy * 0.98 < bits_per_byte("opaque:coding=nibbles", pairs) < entropy + side
    assert detect(pairs).coding == "nibbles"


def test_scales_of_few_values_are_coded_as_bytes():
    scales = torch.from_numpy(np.random.default_rng(2).integers(118, 122, (2, 64, 1, 64), np.uint8))
    assert detect(scales).coding == "bytes"
    assert bits_per_byte("opaque", scales) < 2.6  # 2 bits, and a table and lanes of 4 KiB


@pytest.mark.parametrize("coding", CODINGS)
def test_noise_costs_a_prefix(coding):
    noise = torch.from_numpy(np.random.default_rng(3).integers(0, 256, (2, 32, 1, 64), np.uint8))
    rows = get_codec(f"opaque:coding={coding}").compress(noise, [0, 1])
    assert rows.nbytes.tolist() == [32 * 64 + 16] * 2


def test_what_does_not_fit_is_refused():
    with pytest.raises(InvalidInputError, match="coding is 'int8', wanted one of bytes, nibbles"):
        get_codec("opaque:coding=int8")
    odd = BlockSpec(4, 1, 7, torch.uint8)
    assert "7 bytes does not hold bf16" in get_codec("opaque:coding=bf16").supports(odd)
    assert "choose split" in get_codec("opaque").supports(SPEC)
