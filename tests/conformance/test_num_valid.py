"""Partly filled blocks: valid tokens are coded, the other slots are not."""

import pytest
import torch

from conformance.cases import bits, cache_of, same, used
from kvcodec.bits import int_view


def fillings(block_size):
    return [0, 1, block_size - 1, block_size]


def test_unused_slots_do_not_reach_a_row(case):
    """Whatever they hold, NaN and infinity included."""
    spec = case.spec()
    valid = fillings(spec.block_size)
    cache = cache_of(spec, ("normal",) * 4)
    rows = case.compress(cache, num_valid=valid)
    for garbage in ("specials",) if case.slow else ("specials", "random_bits", "zeros"):
        other = cache_of(spec, (garbage,) * 4)
        for block, kept, filled in zip(int_view(other), int_view(cache), valid, strict=True):
            block[:filled] = kept[:filled]
        assert used(case.compress(other, num_valid=valid)) == used(rows)
    ones = cache.clone()
    for block, filled in zip(int_view(ones), valid, strict=True):
        block[filled:] = 0
        block[filled:].bitwise_not_()
    assert used(case.compress(ones, num_valid=valid)) == used(rows)


def test_unused_slots_decode_to_zeros(case):
    spec = case.spec()
    valid = fillings(spec.block_size)
    cache = cache_of(spec, ("normal",) * 4)
    decoded = case.decode(case.compress(cache, num_valid=valid))
    for block, filled in zip(bits(decoded), valid, strict=True):
        assert not block[filled:].any()


def test_without_num_valid_every_block_is_full(case):
    cache = cache_of(case.spec())
    full = [cache.shape[1]] * len(cache)
    assert used(case.compress(cache, num_valid=full)) == used(case.compress(cache))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_num_valid_and_block_ids_may_be_tensors_on_the_host_or_the_device(case, dtype):
    cache = cache_of(case.spec())
    codec = case.codec_for(case.spec())
    rows = used(case.compress(cache, [2, 0], num_valid=[1, 2]))
    ids, valid = torch.tensor([2, 0], dtype=dtype), torch.tensor([1, 2], dtype=dtype)
    for device in {"cpu", cache.device.type}:
        out = codec.compress(cache, ids.to(device), num_valid=valid.to(device), impl=case.impl)
        assert used(out) == rows


def test_valid_tokens_of_a_lossless_block_return(lossless_case):
    spec = lossless_case.spec()
    cache = cache_of(spec, ("normal", "specials", "random_bits", "zero_channel"))
    valid = fillings(spec.block_size)
    for turn in range(1 if lossless_case.slow else 4):
        turned = valid[turn:] + valid[:turn]
        decoded = lossless_case.decode(lossless_case.compress(cache, num_valid=turned))
        for block, original, filled in zip(decoded, cache, turned, strict=True):
            assert same(block[:filled], original[:filled])


def test_a_row_says_how_many_tokens_are_valid(case):
    spec = case.spec()
    valid = fillings(spec.block_size)
    rows = case.compress(cache_of(spec, ("normal",) * 4), num_valid=valid)
    stored = [row[2] | row[3] << 8 for row in used(rows)]
    assert stored == valid
