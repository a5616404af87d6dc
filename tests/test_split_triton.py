"""split and raw: what is particular to the triton implementation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance.cases import DEVICE, same, used
from strategies import KINDS, make_cache

from kvcodec import BlockSpec, EncodedBlocks, get_codec, rans
from kvcodec.bits import FORMATS, int_view, split_fields, to_bits
from kvcodec.codecs import split
from kvcodec.errors import InvalidInputError
from kvcodec.kernels import _bits_vector, _split_encode_triton, split_triton
from kvcodec.kernels._rows_triton import neighbours
from kvcodec.row import write_row

SPLIT, RAW = get_codec("split"), get_codec("raw")
FLOATS = [f for f in FORMATS.values() if f.exponent_bits]
BF16 = BlockSpec(8, 2, 32, torch.bfloat16)  # 512 elements: 4 rounds of 32 lanes


def cache_of(spec, kinds):
    return make_cache(spec, kinds, device=str(DEVICE))


@pytest.mark.parametrize("fmt", [f for f in FLOATS if "fnuz" not in f.name], ids=lambda f: f.name)
def test_triton_equals_the_reference_for_odd_blocks(fmt):
    """Groups that straddle tokens, a last group that is not full, raw and coded rows together."""
    spec = BlockSpec(7, 3, 7 if fmt.itemsize > 1 else 11, fmt.dtype)
    cache = cache_of(spec, ("normal", "zeros", "random_bits", "two_symbols"))
    valid, ids = [7, 6, 7, 1], [1, 0, 2, 3]
    for codec in (SPLIT, RAW):
        rows = codec.compress(cache, ids, num_valid=valid, impl="reference")
        assert used(codec.compress(cache, ids, num_valid=valid, impl="triton")) == used(rows)
        target, expected = torch.empty_like(cache), torch.empty_like(cache)
        codec.decompress(rows, target, ids, impl="triton")
        codec.decompress(rows, expected, ids, impl="reference")
        assert same(target, expected)
        if codec is SPLIT:
            assert {int(mode) for mode in rows.payload[:, 0]} == {split.RAW, split.CODED}


@pytest.mark.parametrize(
    ("text", "shape", "valid"),
    [
        ("split", (16, 8, 64), 3),
        ("split", (45, 3, 64), 7),
        ("split:model=centred", (15, 5, 116), 3),
        ("split", (7, 2, 32), 6),
    ],
    ids=["whole rounds", "a last round in part", "rounds across heads", "32 lanes"],
)
def test_triton_decodes_groups_of_bf16_as_the_reference(text, shape, valid):
    """Elements side by side are words of four. Lanes follow from the block, not from valid."""
    codec, spec = get_codec(text), BlockSpec(*shape, torch.bfloat16)
    cache = cache_of(spec, ("wild_channels",))
    rows = codec.compress(cache, [0], num_valid=[valid], impl="reference")
    assert rows.payload[0, 0] != split.RAW
    target, wanted = torch.empty_like(cache), torch.empty_like(cache)
    assert neighbours(int_view(target), 4) is not None
    codec.decompress(rows, target, [0], impl="triton")
    codec.decompress(rows, wanted, [0], impl="reference")
    assert same(target, wanted)
    if shape == (16, 8, 64):
        apart = torch.empty(1, 16, 8, 65, dtype=spec.dtype, device=DEVICE)[..., 1:]
        assert neighbours(int_view(apart), 4) is None
        codec.decompress(rows, apart, [0], impl="triton")
        assert same(apart, wanted)


def test_triton_frequencies_equal_the_references():
    """Tables with much to give back: one exponent against 200 that occur once."""
    spec = BlockSpec(64, 4, 64, torch.bfloat16)
    rng = np.random.default_rng(0)
    bits = np.full((3, spec.numel), 130 << 7)
    bits[0, rng.choice(spec.numel, 200, replace=False)] = rng.permutation(200) << 7
    bits[1] = rng.integers(0, 3, spec.numel) << 7
    bits[2] = rng.integers(0, 1 << 15, spec.numel)
    cache = torch.from_numpy(bits.astype(np.int16).reshape(3, *spec.shape)).to(DEVICE)
    block, _ = split_triton.constants(spec)
    tables = torch.empty(3, 256, dtype=torch.int32, device=DEVICE)
    sizes = torch.zeros(3, 2, dtype=torch.int32, device=DEVICE)
    ids = torch.arange(3, device=DEVICE)
    _split_encode_triton.count_kernel[(3,)](
        cache, ids, ids, tables, sizes, *cache.stride(), **block, HAS_VALID=False, TILE=2048
    )
    for i, elements in enumerate(bits.astype(np.uint16)):
        exponent, _ = split_fields(elements, spec.format)
        freqs = rans.normalize(np.bincount(exponent, minlength=256))
        assert np.array_equal(tables[i].cpu().numpy(), freqs | rans.starts(freqs) << 16)
        assert sizes[i].tolist() == [np.count_nonzero(freqs), 0]


@pytest.mark.parametrize("codec", [SPLIT, RAW], ids=str)
def test_triton_uses_the_workspace_and_allocates_nothing_else(codec, monkeypatch):
    cache = cache_of(BF16, ("normal", "random_bits"))
    nbytes = codec.workspace_nbytes(BF16, 2, "triton")
    workspace = torch.full((nbytes + 64,), 0x5A, dtype=torch.uint8, device=DEVICE)
    rows = EncodedBlocks.empty(codec, BF16, 2, DEVICE)
    target, ids = torch.empty_like(cache), torch.arange(2, device=DEVICE)

    def refused(*args, **kwargs):
        raise AssertionError("allocated")

    with monkeypatch.context() as patch:
        for name in ("empty", "zeros", "full", "empty_like", "zeros_like"):
            patch.setattr(torch, name, refused)
        codec.compress(cache, ids, out=rows, workspace=workspace[:nbytes], impl="triton")
        codec.decompress(rows, target, ids, workspace=workspace[:nbytes], impl="triton")
    assert same(target, cache)
    assert (workspace[nbytes:] == 0x5A).all()


def test_triton_takes_caches_rows_ids_and_sizes_with_strides():
    dense = cache_of(BF16, ("normal", "random_bits", "zeros"))
    gaps = torch.empty(3, 2, 32, 9, 2, dtype=BF16.dtype, device=DEVICE)
    cache = gaps.permute(0, 3, 1, 2, 4)[:, 1:, :, :, 1]
    int_view(cache).copy_(int_view(dense))
    wide = EncodedBlocks.empty(SPLIT, BF16, 5, DEVICE)
    wide.payload.fill_(0x77)
    wide.nbytes.fill_(77)
    apart = wide[::2]
    assert apart.nbytes.stride() == (2,)
    ids, valid = torch.tensor([2, 9, 0, 9, 1])[::2], torch.tensor([8, 9, 5, 9, 8])[::2]
    SPLIT.compress(cache, ids, num_valid=valid.to(torch.int32), out=apart, impl="triton")
    expected = SPLIT.compress(cache, [2, 0, 1], num_valid=[8, 5, 8], impl="reference")
    assert used(apart) == used(expected)
    assert (wide.payload[1::2] == 0x77).all()
    assert (wide.nbytes[1::2] == 77).all()
    target, wanted = torch.empty_like(cache), torch.empty_like(cache)
    SPLIT.decompress(apart, target, ids, impl="triton")
    SPLIT.decompress(expected, wanted, [2, 0, 1], impl="reference")
    assert same(target, wanted)


@pytest.mark.parametrize("codec", [SPLIT, RAW], ids=str)
def test_triton_refuses_rows_off_16_byte_boundaries(codec):
    """Parts are read and written in words; a copy into fresh rows helps."""
    cache = cache_of(BF16, ("normal",))
    rows = codec.compress(cache, [0], impl="reference")
    buffer = torch.empty(rows.payload.numel() + 16, dtype=torch.uint8, device=DEVICE)
    moved = replace(rows, payload=buffer[8:-8][None])
    with pytest.raises(InvalidInputError, match="multiples of 16"):
        codec.compress(cache, [0], out=moved, impl="triton")
    with pytest.raises(InvalidInputError, match="multiples of 16"):
        codec.decompress(moved, cache, [0], impl="triton")


@pytest.mark.parametrize(
    ("message", "workspace"),
    [
        ("wanted uint8", lambda n: torch.empty(n, dtype=torch.int8, device=DEVICE)),
        ("wanted uint8", lambda n: torch.empty(1, n, dtype=torch.uint8, device=DEVICE)),
        ("contiguous", lambda n: torch.empty(2 * n, dtype=torch.uint8, device=DEVICE)[::2]),
        ("contiguous", lambda n: torch.empty(n + 8, dtype=torch.uint8, device=DEVICE)[8:]),
    ],
    ids=["dtype", "axes", "strided", "misaligned"],
)
def test_triton_refuses_a_workspace_it_cannot_use(message, workspace):
    cache = cache_of(BF16, ("normal",))
    wrong = workspace(SPLIT.workspace_nbytes(BF16, 1, "triton"))
    with pytest.raises(InvalidInputError, match=message):
        SPLIT.compress(cache, [0], workspace=wrong, impl="triton")


@pytest.mark.parametrize("codec", [SPLIT, RAW], ids=str)
def test_triton_decodes_rows_whose_sizes_do_not_tile_to_zeros(codec):
    """Every field of the prefix, and the size, wrong in a few ways; the sound row stays sound."""
    spec = BlockSpec(4, 2, 64, torch.float16)
    cache = cache_of(spec, ("constant",))
    rows = codec.compress(cache, [0], impl="reference")
    row, size = rows.payload[0].cpu().numpy(), int(rows.nbytes[0])
    changes = {0: (2, 255), 1: (1,), 2: (5,), 3: (1, 255)}
    if codec is SPLIT:
        assert row[0] == split.CODED
        changes |= {4: (0, 1, 4, 255), 7: (128,), 8: (1, 77), 11: (255,), 12: (0, 1), 15: (128,)}
        changes[2] = (0, 1, 3, 5)
    damaged = []
    for at, values in changes.items():
        for value in values:
            damaged.append(row.copy())
            damaged[-1][at] = value
    sizes = [size] * len(damaged) + [0, -16, size - 16, 1 << 30, size]
    damaged += [row] * 5
    batch = EncodedBlocks(
        codec,
        spec,
        torch.from_numpy(np.stack(damaged)).to(DEVICE),
        torch.tensor(sizes, dtype=torch.int32, device=DEVICE),
    )
    target = cache_of(spec, ("ramp",) * (len(batch) + 1))
    untouched = target[-1].clone()
    codec.decompress(batch, target, range(len(batch)), impl="triton")
    assert not int_view(target[: len(batch) - 1]).any()
    wanted = torch.empty_like(cache)
    codec.decompress(rows, wanted, [0], impl="reference")
    assert same(target[-2], wanted[0])
    assert same(target[-1], untouched)


def test_triton_reads_zeros_past_the_words_of_a_damaged_row():
    """Each element takes 12 bits from a stream of none; neither raw part nor slack may serve."""
    spec = BlockSpec(4, 2, 64, torch.float8_e5m2)
    freqs = np.zeros(256, np.int64)
    freqs[[3, 4, 5, 6]] = 1, 1, 1, rans.TOTAL - 3
    size = _bits_vector.plane_nbytes(spec.numel, spec.format, 32)
    found = []
    for filler in (0x00, 0xFF):
        parts = {
            "table": rans.pack_table(freqs),
            "states": np.full(32, rans.LOWER, np.uint32),
            "words": np.zeros(0, np.uint16),
            "raw": np.full(sum(size), filler, np.uint8),
        }
        row = np.full(SPLIT.max_nbytes(spec), filler, np.uint8)
        nbytes = write_row(row, SPLIT.sections(spec, split.CODED), split.CODED, 4, parts)
        batch = EncodedBlocks(
            SPLIT,
            spec,
            torch.from_numpy(row)[None].to(DEVICE),
            torch.tensor([nbytes], dtype=torch.int32, device=DEVICE),
        )
        target = cache_of(spec, ("ramp",))
        SPLIT.decompress(batch, target, [0], impl="triton")
        found.append(split_fields(to_bits(target.cpu()), spec.format)[0])
    assert (found[0] == 3).all()
    assert np.array_equal(*found)


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_a_row_worth_keeping_fit_the_workspace(kind):
    """Checked on the sizes that the reference's rows have."""
    for fmt in FLOATS:
        spec = BlockSpec(16, 2, 64, fmt.dtype)
        rows = SPLIT.compress(make_cache(spec, (kind,)), [0], impl="reference")
        if rows.payload[0, 0] == split.CODED:
            num_words = int(rows.payload[0, 8:12].contiguous().view(torch.int32))
            assert num_words <= split_triton.max_words(spec)
