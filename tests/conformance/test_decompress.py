"""What decompress writes: its blocks, and nothing else."""

from dataclasses import replace

import pytest
import torch
from strategies import make_cache

from conformance.cases import DEVICE, FEW, cache_of, same
from conformance.views import VIEWS, padded_everywhere
from kvcodec.bits import int_view


@pytest.mark.parametrize("make", VIEWS, ids=lambda make: make.__name__)
def test_decompress_writes_only_its_blocks(case, make):
    """Neighbours, padding and the gaps between strides keep their bytes."""
    spec = case.spec()
    rows = case.compress(cache_of(spec, FEW[:2]))
    decoded = case.decode(rows)
    buffer, cache = make(make_cache(spec, ("random_bits",) * 4, seed=7, device=str(DEVICE)))
    expected, places = make(cache)
    int_view(expected).copy_(int_view(buffer))
    int_view(places)[[3, 1]] = int_view(decoded)
    case.decompress(rows, cache, [3, 1])
    assert same(buffer, expected)


def test_order_of_block_ids_is_the_order_of_rows(case):
    cache = cache_of(case.spec())
    rows = case.compress(cache)
    decoded = case.decode(rows)
    target = torch.empty_like(cache)
    case.decompress(rows, target, [2, 0, 1])
    assert same(target, decoded[[1, 2, 0]])


def test_rows_decode_alone_as_in_a_batch(case):
    rows = case.compress(cache_of(case.spec()))
    decoded = case.decode(rows)
    for i in range(len(rows)):
        assert same(case.decode(rows[i : i + 1]), decoded[i : i + 1])


def test_decompress_leaves_the_rows_unchanged(case):
    rows = case.compress(cache_of(case.spec()))
    payload, nbytes = rows.payload.clone(), rows.nbytes.clone()
    case.decode(rows)
    assert torch.equal(rows.payload, payload)
    assert torch.equal(rows.nbytes, nbytes)


def test_bytes_past_nbytes_do_not_matter(case):
    rows = case.compress(cache_of(case.spec()))
    decoded = case.decode(rows)
    for i, size in enumerate(rows.nbytes.tolist()):
        rows.payload[i, size:] = 0x5C
    assert same(case.decode(rows), decoded)


def test_rows_may_lie_in_a_wider_buffer(case):
    rows = case.compress(cache_of(case.spec()))
    n, width = rows.payload.shape
    payload = torch.full((n, width + 48), 0x5C, dtype=torch.uint8, device=DEVICE)[:, 16:-32]
    payload.copy_(rows.payload)
    assert same(case.decode(replace(rows, payload=payload)), case.decode(rows))


def test_nothing_of_the_old_contents_shows_through(case):
    spec = case.spec()
    rows = case.compress(cache_of(spec), num_valid=[1, spec.block_size, 0])
    zeros = padded_everywhere(cache_of(spec, ("zeros",) * 3))[1]
    nans = padded_everywhere(cache_of(spec, ("zeros",) * 3))[1]
    int_view(nans).bitwise_not_()
    case.decompress(rows, zeros)
    case.decompress(rows, nans)
    assert same(nans, zeros)
