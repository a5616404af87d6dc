"""split with a profile in Triton, against the reference."""

import numpy as np
import pytest
import torch
from conformance.cases import DEVICE, same, used
from profiles import make_tables
from strategies import make_cache
from test_split_tables import row_of

from kvcodec import BlockSpec, EncodedBlocks, get_codec
from kvcodec.bits import int_view
from kvcodec.errors import ImplementationUnavailableError

SPEC = BlockSpec(2, 1, 42, torch.bfloat16)  # 42 channels over 32 lanes: a second round, cut short
PROFILE = 3
# with one plane of low mantissa bits, three, three of other widths, none
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)


def codec_of(spec, seed=0, dead=()):
    return get_codec("split:model=profile").hold(make_tables(spec, seed, dead))


def decoded(codec, rows, impl):
    target = torch.full((len(rows), *rows.spec.shape), 3.0).to(rows.spec.dtype).to(DEVICE)
    codec.decompress(rows, target, range(len(rows)), impl=impl)
    return target


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_and_blocks_equal_the_references(dtype):
    """A channel is left out: it is zero in one block and not in the other."""
    spec = BlockSpec(*SPEC.shape, dtype)
    codec = codec_of(spec, 1, (5, 41))
    cache = make_cache(spec, ("normal", "normal"), device=str(DEVICE))
    int_view(cache)[1].view(2, -1)[..., [5, 41]] = 0
    rows = codec.compress(cache, [0, 1], num_valid=[1, 2], impl="reference")
    assert used(codec.compress(cache, [0, 1], num_valid=[1, 2], impl="triton")) == used(rows)
    assert same(decoded(codec, rows, "triton"), decoded(codec, rows, "reference"))


def test_rows_of_the_profiles_mode_are_written():
    rows = codec_of(SPEC).compress(
        make_cache(SPEC, ("normal",), device=str(DEVICE)), [0], impl="triton"
    )
    assert rows.payload[0, 0] == PROFILE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2], ids=str)
def test_escapes_decode_as_under_the_reference(dtype):
    """Rows that no writer takes."""
    spec = BlockSpec(2, 1, 40, dtype)
    tables = make_tables(spec, 3, dead=(0, 17))
    block = make_cache(spec, ("specials",))[0]
    int_view(block).reshape(2, -1)[:, [0, 17]] = 0
    codec, row = row_of(block, spec, tables, PROFILE)
    payload, sizes = torch.from_numpy(row)[None], torch.tensor([row.size], dtype=torch.int32)
    rows = EncodedBlocks(codec, spec, payload.to(DEVICE), sizes.to(DEVICE))
    assert same(decoded(codec, rows, "triton")[0], block.to(DEVICE))


def test_damaged_rows_touch_their_block_alone():
    """Sizes that do not tile the row give zeros; other damage gives other values."""
    codec, cache = codec_of(SPEC), make_cache(SPEC, ("normal",), device=str(DEVICE))
    row = codec.compress(cache, [0], impl="reference")
    assert row.payload[0, 0] == PROFILE
    payload = row.payload.repeat(8, 1)
    for i, (at, value) in enumerate(((1, 1), (2, 0), (2, 4), (4, 77), (8, 1), (0, 4))):
        payload[i, at] = value
    payload[6, 16 : 16 + 4 * 32] = 0xFF  # states that ask for other words
    sizes = row.nbytes.repeat(8)
    target = make_cache(SPEC, ("ramp",) * 9, device=str(DEVICE))
    last = target[8].clone()
    codec.decompress(EncodedBlocks(codec, SPEC, payload, sizes), target, range(8), impl="triton")
    assert not int_view(target[:6]).any()
    assert same(target[7], cache[0])
    assert same(target[8], last)


def test_workspace_of_the_stated_size_is_enough(monkeypatch):
    codec, cache = codec_of(SPEC), make_cache(SPEC, ("normal", "zeros"), device=str(DEVICE))
    rows = codec.compress(cache, [0, 1], impl="triton")  # the tables are on the device now
    nbytes = codec.workspace_nbytes(SPEC, 2, "triton")
    workspace = torch.full((nbytes + 64,), 0x5A, dtype=torch.uint8, device=DEVICE)
    again, target = EncodedBlocks.empty(codec, SPEC, 2, DEVICE), torch.empty_like(cache)
    ids = torch.arange(2, device=DEVICE)

    def refused(*args, **kwargs):
        raise AssertionError("allocated")

    with monkeypatch.context() as patch:
        for name in ("empty", "zeros", "full", "empty_like", "zeros_like", "from_numpy"):
            patch.setattr(torch, name, refused)
        codec.compress(cache, ids, out=again, workspace=workspace[:nbytes], impl="triton")
        codec.decompress(again, target, ids, workspace=workspace[:nbytes], impl="triton")
    assert used(again) == used(rows)
    assert same(target, cache)
    assert (workspace[nbytes:] == 0x5A).all()


def test_contexts_say_that_they_have_no_kernels():
    codec = get_codec("split:model=context").hold(make_tables(SPEC))
    with pytest.raises(ImplementationUnavailableError, match="model=context has no triton"):
        codec.compress(make_cache(SPEC, ("normal",)), np.array([0]), impl="triton")
