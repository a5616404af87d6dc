"""Every implementation equals the reference: byte for byte in rows, bit for bit in blocks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import KINDS, make_block, specs, strided_like

from conformance.cases import DEVICE, FEW, bits, cache_of, same, used
from kvcodec import BlockSpec
from kvcodec.bits import FORMATS, int_view


@pytest.mark.parametrize("dtype", FORMATS, ids=[f.name for f in FORMATS.values()])
def test_rows_and_blocks_equal_the_references(kernel_case, dtype):
    """Every kind of values in every element type; a type that is not supported says why."""
    reference = kernel_case.reference
    reason = kernel_case.codec.supports(BlockSpec(32, 1, 128, dtype))
    if reason is not None:
        assert FORMATS[dtype].name in reason
        return
    kinds = KINDS[list(FORMATS).index(dtype) % 2 :: 2] if kernel_case.slow else KINDS
    cache = cache_of(kernel_case.spec(dtype), kinds)
    rows = reference.compress(cache)
    assert used(kernel_case.compress(cache)) == used(rows)
    assert same(kernel_case.decode(rows), reference.decode(rows))


@pytest.mark.parametrize("kinds", [("normal", "outlier"), ("random_bits", "specials")])
def test_partly_filled_blocks_equal_the_references(kernel_case, kinds):
    reference, spec = kernel_case.reference, kernel_case.spec()
    cache, b = cache_of(spec, kinds * 2), spec.block_size
    valid = [1, b - 1, 0, b]
    rows = reference.compress(cache, num_valid=valid)
    assert used(kernel_case.compress(cache, num_valid=valid)) == used(rows)
    assert same(kernel_case.decode(rows), reference.decode(rows))


def test_long_rows_equal_the_references(kernel_case):
    """16 KiB of raw bytes: twice the lanes of an entropy coder, and many more steps."""
    spec = max(kernel_case.specs(), key=lambda s: s.dtype.itemsize)
    tokens = -(-16384 // (spec.token_numel * spec.dtype.itemsize))
    long = BlockSpec(max(tokens, spec.block_size), spec.num_kv_heads, spec.head_dim, spec.dtype)
    cache, reference = cache_of(long, ("normal",)), kernel_case.reference
    valid = [long.block_size - 1]
    rows = reference.compress(cache, num_valid=valid)
    assert used(kernel_case.compress(cache, num_valid=valid)) == used(rows)
    assert same(kernel_case.decode(rows), reference.decode(rows))


def test_any_shape_strides_and_filling_equal_the_references(kernel_case):
    reference, codec = kernel_case.reference, kernel_case.codec
    dtypes = [spec.dtype for spec in kernel_case.specs()]
    small = [BlockSpec(16, 1, d, dtype) for d in (2, 16, 64, 80, 100) for dtype in dtypes]
    head_dims = [spec.head_dim for spec in small if codec.supports(spec) is None]
    head_dims = head_dims or [spec.head_dim for spec in kernel_case.specs()]

    @settings(max_examples=3 if kernel_case.slow else 20)
    @given(st.data())
    def check(data):
        spec = data.draw(specs(dtypes, head_dims).filter(lambda s: codec.supports(s) is None))
        kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
        cache = data.draw(strided_like(spec, len(kinds))).to(DEVICE)
        for block, kind in zip(cache, kinds, strict=True):
            int_view(block).copy_(int_view(make_block(kind, spec)))
        ids = data.draw(st.permutations(range(len(kinds))))
        valid = [data.draw(st.integers(0, spec.block_size)) for _ in ids]
        rows = reference.compress(cache, ids, num_valid=valid)
        assert used(kernel_case.compress(cache, ids, num_valid=valid)) == used(rows)
        target, expected = (data.draw(strided_like(spec, len(kinds))).to(DEVICE) for _ in "ab")
        kernel_case.decompress(rows, target, ids)
        reference.decompress(rows, expected, ids)
        assert torch.equal(bits(target), bits(expected))

    check()


def test_a_batch_of_many_blocks_equals_the_references(kernel_case):
    """More blocks than a tile or a chunk of any kernel's batch loop is likely to hold."""
    spec, reference = kernel_case.spec(), kernel_case.reference
    cache = torch.cat([cache_of(spec, FEW, seed) for seed in range(2 if kernel_case.slow else 50)])
    rows = reference.compress(cache)
    assert used(kernel_case.compress(cache)) == used(rows)
    assert same(kernel_case.decode(rows), reference.decode(rows))
