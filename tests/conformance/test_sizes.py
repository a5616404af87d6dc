"""How long a row may be, and that its bytes are all written and all its own."""

import pytest
import torch
from strategies import KINDS

from conformance.cases import DEVICE, FEW, cache_of, same, used
from kvcodec import BlockSpec, EncodedBlocks
from kvcodec.row import ALIGNMENT, align


def test_rows_stay_under_max_nbytes_and_fill_whole_units(case):
    kinds = FEW if case.slow else KINDS
    for spec in case.specs()[:: 3 if case.slow else 1]:
        rows = case.compress(cache_of(spec, kinds))
        bound = case.codec.max_nbytes(spec)
        assert bound % ALIGNMENT == 0
        for kind, nbytes in zip(kinds, rows.nbytes.tolist(), strict=True):
            assert ALIGNMENT <= nbytes <= bound, (kind, spec)
            assert nbytes % ALIGNMENT == 0, (kind, spec)


def test_what_cannot_be_compressed_costs_a_prefix(lossless_case):
    """Random bits never cost more than the raw block and 16 bytes."""
    for spec in lossless_case.specs()[:: 3 if lossless_case.slow else 1]:
        bound = align(spec.nbytes) + ALIGNMENT
        assert lossless_case.codec.max_nbytes(spec) <= bound
        rows = lossless_case.compress(cache_of(spec, ("random_bits", "specials")))
        assert max(rows.nbytes.tolist()) <= bound


def test_fixed_size_rows_all_have_max_nbytes(fixed_size_case):
    spec = fixed_size_case.spec()
    cache = cache_of(spec, KINDS)
    valid = [i % (spec.block_size + 1) for i in range(len(KINDS))]
    rows = fixed_size_case.compress(cache, num_valid=valid)
    assert set(rows.nbytes.tolist()) == {fixed_size_case.codec.max_nbytes(spec)}


@pytest.mark.parametrize("valid", [None, [1, 0, 2]])
def test_every_used_byte_is_written(case, valid):
    """The rows are the same whatever the memory held before."""
    spec = case.spec()
    cache, rows = cache_of(spec), []
    for fill in (0x00, 0xFF):
        out = EncodedBlocks.empty(case.codec_for(spec), spec, len(cache), DEVICE)
        out.payload.fill_(fill)
        out.nbytes.fill_(-1)
        assert case.compress(cache, num_valid=valid, out=out) is out
        rows.append(used(out))
    assert rows[0] == rows[1]


def test_rows_that_are_used_again_give_the_same_bytes(case):
    spec = case.spec()
    out = case.compress(cache_of(spec, ("random_bits",) * 3))
    cache = cache_of(spec, ("normal", "zeros", "constant"))
    assert used(case.compress(cache, out=out)) == used(case.compress(cache))


def test_compress_writes_only_into_its_rows(case):
    """Bytes before and behind each row of a wider buffer keep what they held."""
    spec = case.spec()
    cache, bound = cache_of(spec), case.codec.max_nbytes(spec)
    buffer = torch.full((len(cache), bound + 48), 0x5C, dtype=torch.uint8, device=DEVICE)
    sizes = torch.full((len(cache) + 2,), -7, dtype=torch.int32, device=DEVICE)
    out = EncodedBlocks(case.codec_for(spec), spec, buffer[:, 16:-32], sizes[1:-1])
    assert used(case.compress(cache, out=out)) == used(case.compress(cache))
    assert set(buffer[:, :16].flatten().tolist() + buffer[:, -32:].flatten().tolist()) == {0x5C}
    assert sizes[[0, -1]].tolist() == [-7, -7]


def test_workspace_of_the_stated_size_is_enough_and_may_hold_anything(case):
    spec = case.spec()
    cache = cache_of(spec)
    rows, decoded = used(case.compress(cache)), case.decode(case.compress(cache))
    nbytes = case.codec_for(spec).workspace_nbytes(spec, len(cache), case.impl)
    buffer = torch.full((nbytes + 32,), 0x5C, dtype=torch.uint8, device=DEVICE)
    for _ in range(2):
        workspace = buffer[:nbytes]
        out = case.compress(cache, workspace=workspace)
        assert used(out) == rows
        target = torch.empty_like(cache)
        case.decompress(out, target, workspace=workspace)
        assert same(target, decoded)
    assert set(buffer[nbytes:].tolist()) == {0x5C}


def test_workspace_is_known_before_anything_runs(case):
    for spec in case.specs():
        for num_blocks in (0, 1, 1000):
            assert case.codec_for(spec).workspace_nbytes(spec, num_blocks, case.impl) >= 0


def test_bounds_hold_for_large_specs(codec_case):
    """Nothing is allocated to know a bound."""
    for dtype in (spec.dtype for spec in codec_case.specs()):
        spec = BlockSpec(256, 64, 512, dtype)
        if codec_case.codec.supports(spec) is None:
            assert codec_case.codec.max_nbytes(spec) % ALIGNMENT == 0
