"""One paged layer against the library's own layer, and what it keeps in memory."""

import gc
import random

import pytest
import torch
from transformers.cache_utils import DynamicLayer

from engines.paged_cases import (
    HEADS,
    KEY_DIM,
    Halve,
    Positions,
    Zeros,
    paged,
    plan_of,
    same_bits,
    states,
)
from kvcodec import Plan, get_codec
from kvcodec.errors import ImplementationUnavailableError, InvalidInputError, UnsupportedSpecError


@pytest.mark.parametrize("plan", ["raw", "split"])
def test_lossless_layer_returns_the_bits_of_the_librarys_layer(plan):
    layer, theirs = paged(plan), DynamicLayer()
    for n in (6, 1, 1, 5, 4, 1):
        keys, values = (
            torch.randint(-(2**15), 2**15, s.shape, dtype=torch.int16).view(torch.bfloat16)
            for s in states(n, batch=2)
        )
        wanted = theirs.update(keys, values)
        assert same_bits(layer.update(keys, values), wanted)
        assert same_bits(layer.fetch(), wanted)


def test_a_forward_sees_its_own_tokens_as_they_are():
    layer = paged(plan_of(Zeros()))
    first, second = states(9), states(3)
    assert same_bits(layer.update(*first), first)
    keys, values = layer.update(*second)
    assert same_bits((keys[:, :, 8:9], values[:, :, 8:9]), [s[:, :, 8:] for s in first])
    assert same_bits((keys[:, :, 9:], values[:, :, 9:]), second)
    assert not keys[:, :, :8].any()
    assert not values[:, :, :8].any()


@pytest.mark.parametrize("hot_tokens", [0, 1, 4, 7])
@pytest.mark.parametrize("chunks", [(3, 1), (4,), (5, 3), (13,), (1,) * 14])
def test_full_blocks_older_than_the_hot_tokens_are_encoded(hot_tokens, chunks):
    layer = paged(plan_of(Zeros()), hot_tokens=hot_tokens)
    for n in chunks:
        keys, values = states(n)
        layer.update(keys + 100, values + 100)
    length = sum(chunks)
    encoded = max(0, length - hot_tokens) // 4 * 4
    for fetched in layer.fetch():
        assert not fetched[:, :, :encoded].any()
        assert fetched[:, :, encoded:].all()
    assert layer.get_seq_length() == length
    assert layer.get_mask_sizes(3) == (length + 3, 0)


def test_codecs_follow_the_plan_by_kind_layer_and_block():
    zeros, raw = Zeros(), get_codec("raw")
    plan = Plan(zeros, raw, first_blocks=1, layers=((1, "value", zeros),))
    for index, value_is_kept in ((0, True), (1, False)):
        layer = paged(plan, index=index)
        given = states(9, batch=2)
        layer.update(*given)
        keys, values = layer.fetch()
        assert same_bits((keys[:, :, :4], values[:, :, :4]), [s[:, :, :4] for s in given])
        assert not keys[:, :, 4:8].any()
        assert torch.equal(values[:, :, 4:8], given[1][:, :, 4:8]) is value_is_kept


def test_positions_reach_encoder_and_decoder():
    layer = paged(plan_of(Positions()))
    layer.update(*states(17, batch=2, dtype=torch.float32))
    layer.crop(-4)
    wanted = 1001 * torch.arange(0, 16, 4).repeat_interleave(4)[:13].float()
    for fetched in layer.fetch():
        assert torch.equal(fetched, wanted[:, None].expand(fetched.shape))


@pytest.mark.parametrize("remove", [0, 1, 2, 3, 5, 6, 7, 13, 14, 15, 99])
@pytest.mark.parametrize("hot_tokens", [0, 5])
def test_crop_leaves_what_the_librarys_layer_leaves(remove, hot_tokens):
    layer, theirs = paged(hot_tokens=hot_tokens), DynamicLayer()
    for n, cropped in ((14, -remove), (3, 0), (6, -2)):
        given = states(n, batch=2)
        assert same_bits(layer.update(*given), theirs.update(*given))
        layer.crop(cropped)
        theirs.crop(cropped)
        assert layer.get_seq_length() == theirs.get_seq_length()
        assert same_bits(layer.fetch(), (theirs.keys, theirs.values))


def test_crop_takes_the_number_of_tokens_to_remove_as_a_negative():
    layer = paged()
    layer.crop(0)
    layer.crop(-3)
    layer.update(*states(6))
    with pytest.raises(ValueError, match=r"crop\(2\): pass a negative"):
        layer.crop(2)
    assert layer.get_seq_length() == 6


def test_a_cropped_block_is_what_attention_saw_and_never_lossy_again():
    layer = paged(plan_of(Halve()), block_size=4)
    layer.update(*states(12))
    seen = layer.fetch()
    for length in (6, 5):
        layer.crop(length - layer.get_seq_length())
        assert same_bits(layer.fetch(), [s[:, :, :length] for s in seen])
        fresh = states(16 - length)
        layer.update(*fresh)
        keys, values = layer.fetch()
        assert same_bits(
            (keys[:, :, :length], values[:, :, :length]), [s[:, :, :length] for s in seen]
        )
        # the rest of the cut block is stored with it, without loss; the blocks after it are new
        cut = 8 - length
        assert torch.equal(keys[:, :, length:8], fresh[0][:, :, :cut])
        assert torch.equal(keys[:, :, 8:], fresh[0][:, :, cut:] / 2)
    layer.crop(4 - layer.get_seq_length())
    fresh = states(8)
    layer.update(*fresh)
    assert torch.equal(layer.fetch()[0][:, :, 4:], fresh[0] / 2)


def test_no_token_is_ever_lossy_twice():
    rng = random.Random(0)
    layer = paged(plan_of(Halve(), first_blocks=1), block_size=4, hot_tokens=2)
    keys = torch.empty(1, HEADS, 0, KEY_DIM)
    before = keys
    for _ in range(200):
        if rng.random() < 0.6 or keys.shape[2] == 0:
            added, values = states(rng.randint(1, 9), dtype=torch.float32)
            layer.update(added, values)
            keys = torch.cat([keys, added], 2)
            before = torch.cat([before, added], 2)
        else:
            length = max(0, keys.shape[2] - rng.randint(1, 14))
            layer.crop(length - keys.shape[2])
            keys, before = keys[:, :, :length], before[:, :, :length]
        now = layer.fetch()[0]
        kept, halved = (now == keys).all((0, 1, 3)), (now == keys / 2).all((0, 1, 3))
        assert (kept | halved).all()
        was_halved = (before == keys / 2).all((0, 1, 3))
        assert halved[was_halved].all()
        assert kept[:4].all()
        before = now


TWO_HEADS = "fp8:scale=head,given=1.0/1.0"  # the layers here have three
BATCH_CHANGES = {
    "reorder": lambda c: c.reorder_cache(torch.tensor([2, 2, 0])),
    "select": lambda c: c.batch_select_indices(torch.tensor([2, 0])),
    "mask": lambda c: c.batch_select_indices(torch.tensor([True, False, True])),
    "repeat": lambda c: c.batch_repeat_interleave(2),
    "both": lambda c: (c.batch_repeat_interleave(2), c.reorder_cache(torch.tensor([5, 1, 1]))),
}


@pytest.mark.parametrize("change", BATCH_CHANGES)
def test_batch_changes_leave_what_the_librarys_layer_leaves(change):
    layer, theirs = paged("split"), DynamicLayer()
    BATCH_CHANGES[change](layer)  # nothing is held yet
    for _ in range(2):
        given = states(10, batch=3)
        assert same_bits(layer.update(*given), theirs.update(*given))
        BATCH_CHANGES[change](layer)
        BATCH_CHANGES[change](theirs)
        given = states(3, batch=theirs.keys.shape[0])
        assert same_bits(layer.update(*given), theirs.update(*given))
        layer.reset()
        theirs.reset()


def test_sequences_share_rows_instead_of_copying_them():
    layer = paged("split")
    layer.update(*states(8, batch=2))
    rows = [list(block) for plane in layer.planes for block in plane.table]
    layer.batch_repeat_interleave(2)
    layer.reorder_cache(torch.tensor([3, 0, 1, 2]))
    after = [list(block) for plane in layer.planes for block in plane.table]
    for (a, b), block in zip(rows, after, strict=True):
        assert [row is b for row in block] == [True, False, False, True]
        assert [row is a for row in block] == [False, True, True, False]
    stats = [plane.stats() for plane in layer.planes]
    layer.fetch()
    for plane, old in zip(layer.planes, stats, strict=True):
        assert old.live_rows == 4
        assert plane.stats().blocks_decoded == old.blocks_decoded + 4


def tensor_nbytes():
    """Bytes of the storages of all living tensors."""
    gc.collect()
    tensors = [t for t in gc.get_objects() if type(t) is torch.Tensor]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def test_nothing_is_kept_but_rows_and_the_hot_tail():
    layer = paged("split", block_size=16)
    before = tensor_nbytes()
    for n in (100, 1, 1):
        layer.update(*(torch.randn(2, 4, n, 64).to(torch.bfloat16) for _ in range(2)))
    layer.fetch()
    held = tensor_nbytes() - before
    stats = sum((plane.stats() for plane in layer.planes[1:]), layer.planes[0].stats())
    assert held == stats.live_nbytes + stats.hot_nbytes
    raw_nbytes = 2 * 2 * 4 * 102 * 64 * 2
    assert held < 0.85 * raw_nbytes


def test_dropped_sequences_and_tokens_free_their_rows():
    layer = paged("raw", block_size=16)
    before = tensor_nbytes()
    layer.update(*(torch.randn(4, 4, 64, 64).to(torch.bfloat16) for _ in range(2)))
    row = 16 + 16 * 4 * 64 * 2
    assert tensor_nbytes() - before == 2 * 4 * 4 * row
    layer.batch_select_indices(torch.tensor([1]))
    assert tensor_nbytes() - before == 2 * 4 * row
    layer.crop(-32)
    assert tensor_nbytes() - before == 2 * 2 * row
    layer.crop(-5)
    assert tensor_nbytes() - before == 2 * row + 2 * 4 * 11 * 64 * 2
    layer.crop(-1)
    assert tensor_nbytes() - before == 2 * row + 2 * 4 * 10 * 64 * 2


@pytest.mark.parametrize(
    ("plan", "impl", "dtype", "error"),
    [
        (TWO_HEADS, "auto", torch.bfloat16, UnsupportedSpecError),
        (f"key=raw,value={TWO_HEADS},first_blocks=2", "auto", torch.bfloat16, UnsupportedSpecError),
        (plan_of(Zeros()), "native", torch.bfloat16, ImplementationUnavailableError),
        ("raw", "auto", torch.float64, InvalidInputError),
    ],
)
def test_what_cannot_be_served_is_refused_before_a_token_is_stored(plan, impl, dtype, error):
    layer = paged(plan, impl=impl)
    with pytest.raises(error):
        layer.update(*states(1, dtype=dtype))
    assert not layer.is_initialized
    assert layer.get_seq_length() == 0


def test_another_batch_needs_a_reset():
    layer = paged()
    layer.update(*states(5, batch=2))
    with pytest.raises(InvalidInputError, match="layer 0 key: states of shape"):
        layer.update(*states(1, batch=3))
    assert layer.get_seq_length() == 5


def test_offloading_is_refused():
    for method in (paged().offload, paged().prefetch):
        with pytest.raises(NotImplementedError, match="does not offload"):
            method()
