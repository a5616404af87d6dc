"""Every geometry works, or `supports` says why not before anything is allocated."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conformance.cases import DEVICE, FEW, cache_of, same, used
from kvcodec import BlockSpec
from kvcodec.bits import FORMATS, int_view
from kvcodec.errors import UnsupportedSpecError

HEAD_DIMS = (64, 80, 96, 100, 112, 128, 192, 256, 512, 576)


def check_works_or_is_refused(case, spec):
    """Equal to the reference; or a reason, and the same reason from compress and decompress."""
    cache = cache_of(spec, FEW[:2])
    reason = case.codec.supports(spec)
    if reason is not None:
        assert reason
        with pytest.raises(UnsupportedSpecError, match=case.codec.name) as raised:
            case.compress(cache)
        assert reason in str(raised.value)
        return
    rows = case.compress(cache)
    assert used(rows) == used(case.reference.compress(cache))
    assert same(case.decode(rows), case.reference.decode(rows))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_dims_work_or_are_refused_with_a_reason(case, head_dim):
    block_size = 1 if case.slow else 2
    spec = BlockSpec(block_size, 1, head_dim, case.spec().dtype)
    check_works_or_is_refused(case, spec)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 5, 8])
def test_head_counts_work_or_are_refused_with_a_reason(case, num_kv_heads):
    check_works_or_is_refused(case, replace(case.spec(), num_kv_heads=num_kv_heads))


@pytest.mark.parametrize("block_size", [1, 2, 3, 16, 21])
def test_block_sizes_work_or_are_refused_with_a_reason(case, block_size):
    check_works_or_is_refused(case, replace(case.spec(), block_size=block_size, num_kv_heads=1))


@pytest.mark.parametrize("dtype", FORMATS, ids=[f.name for f in FORMATS.values()])
def test_element_types_that_are_refused_name_a_reason(codec_case, dtype):
    check_works_or_is_refused(codec_case, replace(codec_case.spec(), dtype=dtype))


def test_a_refused_block_costs_no_memory(codec_case, monkeypatch):
    """`supports` answers before rows are allocated, whatever their size."""
    refused = replace(codec_case.spec(), dtype=torch.uint8, head_dim=7)
    if codec_case.codec.supports(refused) is None:
        return
    cache = cache_of(refused, ("zeros",))

    def allocate(*args, **kwargs):
        raise AssertionError("rows were allocated")

    monkeypatch.setattr(torch, "empty", allocate)
    with pytest.raises(UnsupportedSpecError):
        codec_case.compress(cache)


def test_no_blocks_at_all(case):
    spec = case.spec()
    cache = cache_of(spec)
    before = cache.clone()
    for ids in ([], torch.empty(0, dtype=torch.int64), torch.empty(0)):
        rows = case.codec_for(spec).compress(cache, ids, impl=case.impl)
        assert rows.payload.shape == (0, case.codec.max_nbytes(spec))
        assert rows.nbytes.shape == (0,)
        rows.codec.decompress(rows, cache, ids, impl=case.impl)
    case.decompress(case.compress(cache[:0]), cache[:0])
    assert same(cache, before)


def test_one_block_of_one_token(case):
    check_works_or_is_refused(case, replace(case.spec(), block_size=1, num_kv_heads=1))


def untouched_zeros(numel, dtype):
    """Zeros that take no memory until they are written, so that offsets may be large."""
    nbytes = numel * dtype.itemsize
    if DEVICE.type == "cpu":
        return torch.from_numpy(np.zeros(nbytes, np.uint8)).view(dtype)
    return torch.zeros(nbytes, dtype=torch.uint8, device=DEVICE).view(dtype)


def check_far_apart(case, spec, cache):
    """Blocks 1, 2 and 3 return their values, and block 0 stays zero."""
    dense = cache_of(spec, FEW)
    int_view(cache)[1:] = int_view(dense)
    rows = case.compress(cache, [3, 2, 1])
    assert used(rows) == used(case.reference.compress(dense, [2, 1, 0]))
    int_view(cache)[1:] = 0
    case.decompress(rows, cache, [3, 2, 1])
    assert same(cache[1:].flip(0), case.reference.decode(rows))
    assert not int_view(cache)[0].any()


def test_element_offsets_past_two_to_the_31(case):
    """Blocks below, across and past 2^31 elements."""
    spec = min(case.specs(), key=lambda s: s.dtype.itemsize)
    b, h, d = spec.shape
    step = (1 << 30) - spec.numel // 2
    storage = untouched_zeros(3 * step + spec.numel, spec.dtype)
    cache = storage.as_strided((4, b, h, d), (step, h * d, d, 1))
    check_far_apart(case, spec, cache)


@pytest.mark.parametrize("axis", ["token", "head"])
def test_strides_past_two_to_the_31_inside_a_block(case, axis):
    """The last token or head lies over 2^31 elements behind the first, as in a bundle of layers."""
    spec = min(case.specs(), key=lambda s: s.dtype.itemsize)
    if axis == "head":
        spec = replace(spec, num_kv_heads=3)
        assert case.codec.supports(spec) is None
    b, h, d = spec.shape
    far = (1 << 31) // ((h if axis == "head" else b) - 1) + 64
    strides = {"head": (b * d, d, far, 1), "token": (h * d, far, d, 1)}[axis]
    last = 3 * strides[0] + (b - 1) * strides[1] + (h - 1) * strides[2] + d
    storage = untouched_zeros(last, spec.dtype)
    check_far_apart(case, spec, storage.as_strided((4, b, h, d), strides))
