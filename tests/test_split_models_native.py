"""split with a profile in C++ at every instruction set, against the reference."""

import numpy as np
import pytest
import torch
from conformance.views import VIEWS
from profiles import make_tables
from strategies import FLOATS, KINDS, make_cache
from test_native import ISAS, decode, encode, used
from test_split_tables import MODELS, row_of

from kvcodec import BlockSpec, EncodedBlocks, get_codec, rans
from kvcodec.bits import int_view, to_bits
from kvcodec.errors import CorruptDataError, InvalidInputError
from kvcodec.kernels._dense import reference_kernel
from kvcodec.kernels.split_native import SplitNative, contexts
from kvcodec.tables import Tables

SPEC = BlockSpec(6, 2, 42, torch.bfloat16)  # 84 channels: whole vectors and single lanes
VALID = [6, 5, 0, 1, 2, 3, 6, 6, 6, 6]


@pytest.fixture(params=[index for index, _ in ISAS] or [0], ids=[name for _, name in ISAS] or ["-"])
def isa(request):
    return request.param


@pytest.fixture(params=MODELS.values())
def model(request):
    return request.param


def codec_of(model, spec, seed=0, dead=()):
    return get_codec(f"split:model={model}").hold(make_tables(spec, seed, dead))


def check_parity(isa, codec, cache, num_valid=None):
    kernel = SplitNative(isa)
    expected = encode(reference_kernel(codec), codec, cache, num_valid=num_valid)
    assert used(encode(kernel, codec, cache, num_valid=num_valid)) == used(expected)
    np.testing.assert_array_equal(decode(kernel, expected), to_bits(codec.decode(expected)))
    return expected


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows_and_blocks_equal_the_references(isa, model, dtype):
    spec = BlockSpec(*SPEC.shape, dtype)
    codec, cache = codec_of(model, spec), make_cache(spec)
    check_parity(isa, codec, cache, (VALID * 2)[: len(cache)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows_that_no_writer_takes_decode_as_under_the_reference(isa, model, dtype):
    """Escapes in most elements, channels left out, idle lanes and second rounds."""
    spec, mode = BlockSpec(5, 2, 23, dtype), {m: n for n, m in MODELS.items()}[model]
    tables = make_tables(spec, 3, dead=(0, 17, 18, 45))
    for kind in ("normal", "random_bits", "specials", "zeros"):
        block = make_cache(spec, (kind,))[0][:4]
        int_view(block).reshape(4, -1)[:, [0, 17, 18, 45]] = 0
        codec, row = row_of(block, spec, tables, mode)
        sizes = torch.tensor([row.size], dtype=torch.int32)
        rows = EncodedBlocks(codec, spec, torch.from_numpy(row)[None], sizes)
        np.testing.assert_array_equal(decode(SplitNative(isa), rows), to_bits(codec.decode(rows)))


def test_64_lanes_and_several_rounds_equal_the_reference(isa, model):
    spec = BlockSpec(64, 2, 100, torch.bfloat16)
    rows = check_parity(
        isa, codec_of(model, spec), make_cache(spec, ("normal", "outlier")), [64, 63]
    )
    assert {*rows.payload[:, 0].tolist()} <= {2, 3, 4}


@pytest.mark.parametrize(
    "dead", [(0,), (3, 4, 5, 83), tuple(range(84))], ids=["one", "some", "all"]
)
def test_channels_left_out_equal_the_reference(isa, model, dead):
    """They are zero in some blocks, and not in others, which are then coded without tables."""
    cache = make_cache(SPEC, ("normal", "normal", "zeros"))
    int_view(cache)[::2].view(2, 6, -1)[..., list(dead)] = 0
    check_parity(isa, codec_of(model, SPEC, 1, dead), cache, [6, 6, 5])


def test_skewed_tables_equal_the_reference(isa, model):
    """Buckets that begin many symbols: frequencies of 1 about a large one."""
    spec = BlockSpec(8, 1, 96, torch.bfloat16)
    made = make_tables(spec)
    arrays = dict(made.arrays)
    for name, symbols, large in (("exponents", 25, 16), ("mantissas", 8, 3)):
        arrays[name] = np.ones_like(arrays[name])
        arrays[name][..., large] = rans.TOTAL - symbols + 1
    arrays["signs"] = np.full_like(arrays["signs"], 1)
    tables = Tables(made.geometry, arrays)
    codec = get_codec(f"split:model={model}").hold(tables)
    cache = make_cache(spec, ("normal", "constant", "two_symbols"))
    check_parity(isa, codec, cache)
    for block in cache:
        _, row = row_of(block, spec, tables, 3 + (model == "context"))
        sizes = torch.tensor([row.size], dtype=torch.int32)
        rows = EncodedBlocks(codec, spec, torch.from_numpy(row)[None], sizes)
        assert np.array_equal(decode(SplitNative(isa), rows)[0], to_bits(block))


@pytest.mark.parametrize("make", VIEWS, ids=lambda view: view.__name__)
def test_strides_do_not_show(isa, model, make):
    spec = BlockSpec(6, 3, 40, torch.bfloat16)
    for dead in ((), (7, 8)):
        codec, kernel, cache = (
            codec_of(model, spec, 0, dead),
            SplitNative(isa),
            make_cache(spec, KINDS[:4]),
        )
        int_view(cache).view(4, 6, -1)[..., list(dead)] = 0
        _, view = make(cache)
        rows = encode(kernel, codec, cache, [2, 0, 3], [6, 0, 5])
        assert used(encode(kernel, codec, view, [2, 0, 3], [6, 0, 5])) == used(rows)
        _, target = make(torch.zeros_like(cache))
        kernel.decompress(rows, target, torch.tensor([2, 0, 3]))
        np.testing.assert_array_equal(to_bits(target)[[2, 0, 3]], to_bits(codec.decode(rows)))
        assert (int_view(target)[1] == 0).all()


def test_threads_do_not_show(isa, model):
    codec, cache = codec_of(model, SPEC), make_cache(SPEC, KINDS * 2)
    one = encode(SplitNative(isa), codec, cache, num_threads=1)
    assert used(encode(SplitNative(isa), codec, cache, num_threads=5)) == used(one)
    np.testing.assert_array_equal(
        decode(SplitNative(isa), one, num_threads=1), decode(SplitNative(isa), one, num_threads=5)
    )


def test_damaged_rows_fare_as_under_the_reference(isa, model):
    codec, kernel, rng = codec_of(model, SPEC), SplitNative(isa), np.random.default_rng(5)
    sound = encode(kernel, codec, make_cache(SPEC, ("normal", "normal")), num_valid=[6, 5])
    assert set(sound.payload[:, 0].tolist()) == {3 + (model == "context")}
    refused, count = 0, 160
    for i in range(count):
        row = EncodedBlocks(
            codec, SPEC, sound.payload[i % 2][None].clone(), sound.nbytes[i % 2][None].clone()
        )
        size = int(row.nbytes)
        if rng.random() < 0.15:
            row.nbytes[0] += int(rng.choice([-16, 16, -3, -size, 1 << 30]))
        else:
            at = torch.from_numpy(
                rng.integers(0, int(rng.choice([4, 16, 80, size])), rng.integers(1, 4))
            )
            row.payload[0, at] ^= torch.from_numpy(rng.integers(1, 256, len(at), np.uint8))
        try:
            expected = to_bits(codec.decode(row))
        except CorruptDataError:
            refused += 1
            with pytest.raises(CorruptDataError, match=r"^split: row 0 of "):
                decode(kernel, row)
        else:
            np.testing.assert_array_equal(decode(kernel, row), expected)
    assert count / 4 < refused < count


def test_other_tables_are_errors_or_other_values(isa, model):
    """Rows read with tables they were not written with: what the reference does."""
    codec = codec_of(model, SPEC)
    rows = encode(SplitNative(isa), codec, make_cache(SPEC, ("normal",) * 3))
    for seed in range(1, 6):
        other = codec_of(model, SPEC, seed)
        wrong = EncodedBlocks(other, SPEC, rows.payload, rows.nbytes)
        try:
            expected = to_bits(other.decode(wrong))
        except CorruptDataError:
            with pytest.raises(CorruptDataError):
                decode(SplitNative(isa), wrong)
        else:
            np.testing.assert_array_equal(decode(SplitNative(isa), wrong), expected)


def test_a_damaged_row_leaves_the_cache_alone(isa, model):
    codec, kernel = codec_of(model, SPEC), SplitNative(isa)
    cache = make_cache(SPEC, ("normal",) * 4)
    rows = encode(kernel, codec, cache)
    rows.payload[2, 4] ^= 1
    target = torch.full_like(cache, 3.0)
    with pytest.raises(CorruptDataError, match=r"^split: row 2 "):
        kernel.decompress(rows, target, torch.arange(4), num_threads=2)
    assert (target == 3.0).all()


def test_an_exponent_out_of_range_is_refused(isa):
    spec = BlockSpec(2, 1, 40, torch.float16)
    high = make_tables(spec)
    low = Tables(high.geometry, {**high.arrays, "centre": np.zeros((1, 40), "u1")})
    block = torch.full((2, 1, 40), 9 << 10, dtype=torch.int16).view(torch.float16)
    _, row = row_of(block, spec, high, 3)
    codec = get_codec("split:model=profile").hold(low)
    sizes = torch.tensor([row.size], dtype=torch.int32)
    rows = EncodedBlocks(codec, spec, torch.from_numpy(row)[None], sizes)
    with pytest.raises(CorruptDataError, match="wider than its field"):
        decode(SplitNative(isa), rows)


def test_workspace_of_the_stated_size_is_enough_and_less_is_refused(model):
    codec, cache = codec_of(model, SPEC), make_cache(SPEC)
    needed = codec.workspace_nbytes(SPEC, len(cache), "native")
    workspace = torch.full((needed,), 0xA5, dtype=torch.uint8)
    rows = encode(SplitNative(), codec, cache, workspace=workspace, num_threads=64)
    assert used(rows) == used(encode(SplitNative(), codec, cache))
    np.testing.assert_array_equal(
        decode(SplitNative(), rows, workspace=workspace), decode(SplitNative(), rows)
    )
    with pytest.raises(InvalidInputError, match="workspace"):
        decode(SplitNative(), rows, workspace=workspace[: needed // 2][:-1])


def test_tables_are_laid_out_once_for_a_plane(model):
    codec = codec_of(model, SPEC)
    assert contexts(codec.held(), SPEC.dtype) is contexts(codec.held(), SPEC.dtype)
