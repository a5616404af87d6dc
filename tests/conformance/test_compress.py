"""What a row may depend on: the block, and nothing else."""

import pytest
import torch
from strategies import make_block

from conformance.cases import FEW, bits, cache_of, same, used
from conformance.views import VIEWS, padded_everywhere
from kvcodec import EncodedBlocks


def test_compress_leaves_the_cache_unchanged(case):
    buffer, cache = padded_everywhere(cache_of(case.spec()))
    before = bits(buffer)
    case.compress(cache, [2, 0], num_valid=[1, cache.shape[1]])
    assert torch.equal(bits(buffer), before)


def test_a_row_does_not_depend_on_batch_order_or_id(case):
    cache = cache_of(case.spec())
    rows = used(case.compress(cache))
    assert used(case.compress(cache, [2, 1, 2, 0])) == [rows[2], rows[1], rows[2], rows[0]]
    for i, row in enumerate(rows):
        assert used(case.compress(cache, [i])) == [row]
    moved = torch.cat([cache[1:], cache[:1]])
    assert used(case.compress(moved)) == [*rows[1:], rows[0]]


def test_a_row_does_not_depend_on_its_neighbours(case):
    spec = case.spec()
    cache = cache_of(spec, ("normal", "normal", "normal"))
    other = cache_of(spec, ("random_bits", "random_bits", "random_bits"), seed=1)
    other[1] = cache[1]
    assert used(case.compress(other, [1])) == used(case.compress(cache, [1]))


def test_every_call_gives_the_same_rows(case):
    cache = cache_of(case.spec())
    first, second = case.compress(cache), case.compress(cache)
    assert used(first) == used(second)
    assert same(case.decode(first), case.decode(first))


@pytest.mark.parametrize("make", VIEWS, ids=lambda make: make.__name__)
def test_a_strided_cache_gives_the_rows_of_a_contiguous_one(case, make):
    cache = cache_of(case.spec(), FEW[:2])
    assert used(case.compress(make(cache)[1])) == used(case.compress(cache))


def test_an_expanded_cache_gives_the_rows_of_a_contiguous_one(case):
    spec = case.spec()
    block = make_block("normal", spec).to(cache_of(spec).device)
    blocks = block.expand(3, *spec.shape)
    assert used(case.compress(blocks, [2])) == used(case.compress(blocks.contiguous(), [0]))
    token = block[:1, :, :1].expand(3, *spec.shape)
    assert used(case.compress(token, [1])) == used(case.compress(token.contiguous(), [0]))


def test_host_threads_do_not_change_a_row(host_case):
    cache = cache_of(host_case.spec())
    rows = host_case.compress(cache, num_threads=1)
    assert used(host_case.compress(cache, num_threads=3)) == used(rows)
    one, three = torch.empty_like(cache), torch.empty_like(cache)
    host_case.decompress(rows, one, num_threads=1)
    host_case.decompress(rows, three, num_threads=3)
    assert same(one, three)


def test_strided_ids_counts_and_rows_give_the_rows_of_contiguous_ones(case):
    cache = cache_of(case.spec())
    full = cache.shape[1]
    ids = torch.tensor([2, 9, 0, 9, 1], device=cache.device)[::2]
    valid = torch.tensor([full, 0, 1, 0, full], dtype=torch.int32, device=cache.device)[::2]
    options = {"positions": torch.zeros(3, dtype=torch.int64)} if case.codec.needs_positions else {}
    codec = case.codec_for(case.spec())
    wide = EncodedBlocks.empty(codec, case.spec(), 5, cache.device)
    wide.nbytes.fill_(77)
    codec.compress(cache, ids, num_valid=valid, out=wide[::2], impl=case.impl, **options)
    wanted = case.compress(cache, [2, 0, 1], num_valid=[full, 1, full])
    assert used(wide[::2]) == used(wanted)
    assert (wide.nbytes[1::2] == 77).all()
    assert same(case.decode(wide[::2]), case.decode(wanted))
