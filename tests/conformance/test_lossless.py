"""Lossless means equal integers, for every bit pattern there is."""

from dataclasses import dataclass

import pytest
import torch
from strategies import KINDS, all_patterns

from conformance.cases import DEVICE, SHAPES, Case, cache_of, same
from kvcodec import BlockSpec
from kvcodec.codecs.raw import Raw


def check_patterns(case, dtype, order):
    """Every bit pattern of a type returns; the interpreter codes only some blocks of them."""
    spec = BlockSpec(*SHAPES[0], dtype)
    if case.slow and case.codec.fixed_size and dtype.itemsize == 2:
        spec = BlockSpec(64, 8, 128, dtype)  # as few operations as possible
    if case.codec.supports(spec) is not None:
        spec = case.spec(dtype)
    cache = all_patterns(spec, order)
    if case.slow and not case.codec.fixed_size:
        cache = cache[:: max(1, len(cache) // 2)]
    cache = cache.to(DEVICE)
    rows = case.compress(cache)
    assert same(case.decode(rows), cache)
    return rows


@pytest.mark.parametrize("order", ["shuffled", "ascending"])
@pytest.mark.parametrize("itemsize", [1, 2])
def test_every_bit_pattern_returns(lossless_case, itemsize, order):
    """All 65,536 of a 16-bit type and all 256 of an 8-bit type."""
    specs = [spec for spec in lossless_case.specs() if spec.dtype.itemsize == itemsize]
    coded = lossless_case.codec.fixed_size or not specs
    for spec in specs:
        rows = check_patterns(lossless_case, spec.dtype, order)
        coded |= rows.total_nbytes() < rows.payload.numel()
    assert coded or (itemsize, order) != (2, "ascending")


def test_every_kind_of_block_returns(lossless_case):
    """NaN payloads, -0.0 and subnormals included, in every element type."""
    for spec in lossless_case.specs():
        if spec.dtype.itemsize == 4 or not lossless_case.slow:
            cache = cache_of(spec, KINDS[::2] if lossless_case.slow else KINDS)
            assert same(lossless_case.decode(lossless_case.compress(cache)), cache)


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 7, 17, 33])
def test_every_length_returns(lossless_case, block_size):
    """Blocks whose elements fill no lane, no word and no vector."""
    spec = lossless_case.spec()
    for head_dim in (1, 3) if lossless_case.slow else (1, 3, 64):
        odd = BlockSpec(block_size, 1, head_dim, spec.dtype)
        if lossless_case.codec.supports(odd) is None:
            cache = cache_of(odd, ("normal", "two_symbols"))
            assert same(lossless_case.decode(lossless_case.compress(cache)), cache)


@dataclass(frozen=True, slots=True)
class QuietsNaN(Raw):
    """Claims to be lossless, and makes every NaN the same NaN."""

    name = "quiets_nan"

    def encode(self, blocks, num_valid, out, positions=None):
        quiet = torch.where(blocks.isnan(), torch.full_like(blocks, float("nan")), blocks)
        Raw.encode(self, quiet, num_valid, out)


@dataclass(frozen=True, slots=True)
class DropsNegativeZero(Raw):
    """Claims to be lossless, and drops the sign of zero."""

    name = "drops_negative_zero"

    def decode(self, encoded, positions=None):
        blocks = Raw.decode(self, encoded)
        return torch.where(blocks == 0, torch.zeros_like(blocks), blocks)


@pytest.mark.parametrize("codec", [QuietsNaN(), DropsNegativeZero()], ids=str)
def test_a_codec_that_is_not_lossless_is_caught(codec):
    with pytest.raises(AssertionError):
        check_patterns(Case(codec, "reference"), torch.bfloat16, "shuffled")
