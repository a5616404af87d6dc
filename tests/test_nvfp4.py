"""nvfp4 against its format page, in rationals, and against ml_dtypes."""

import functools
import itertools
import math
import struct

import ml_dtypes
import numpy as np
import pytest
import torch
from boundaries import BLOCKS, CASTS_E2M1, make
from fp8_rows import ELEMENTS, decode, encode, random_blocks
from microscaling_rows import E2M1, impls, read_nvfp4, write_nvfp4
from rationals import round_to

from kvcodec import BlockSpec, EncodedBlocks, exact
from kvcodec.bits import DTYPES, FORMATS, from_bits, to_bits
from kvcodec.codecs import _microscaling
from kvcodec.codecs.nvfp4 import Nvfp4
from kvcodec.errors import CorruptDataError, InvalidInputError, UnsupportedSpecError
from kvcodec.kernels import nvfp4_triton

IMPLS = impls("nvfp4")
HOST = [impl for impl in IMPLS if impl != "triton"]
UNIT = Nvfp4(given=1.0)  # a group with a 6 has scale 1, and its codes are e2m1(x)
VARIANTS = [Nvfp4(), Nvfp4(four_over_six=True), Nvfp4(given=0.01), Nvfp4(True, 0.37)]


@pytest.fixture(autouse=True)
def large_tiles(monkeypatch):
    """The interpreter takes its time per operation, whatever the size of the tile."""
    monkeypatch.setattr(nvfp4_triton, "ROWS", 1 << 10)


def codes_of(rows):
    """E2M1 codes [n, *shape] of rows."""
    packed = rows.payload[:, 16 : 16 + rows.spec.numel // 2].numpy()
    return np.stack([packed & 15, packed >> 4], -1).reshape(-1, *rows.spec.shape)


def scales_of(rows):
    """Scale bytes [n, T, H, D / 16] of rows."""
    begin = 16 + -(-rows.spec.numel // 32) * 16
    data = rows.payload[:, begin : begin + rows.spec.numel // 16].numpy()
    return data.reshape(-1, *rows.spec.shape[:2], rows.spec.head_dim // 16)


def globals_of(rows):
    return rows.payload[:, -16:-12].contiguous().view(torch.float32)[:, 0].numpy()


def under_unit_scale(bits, element):
    """A block with 15 patterns in each group and a 6 behind them, and where the patterns are."""
    groups = -(-len(bits) // 15)
    six = int(to_bits(torch.tensor([6.0]).to(DTYPES[element]))[0])
    block = np.full((1, groups, 1, 16), six, bits.dtype)
    block[..., :15] = np.resize(bits, (1, groups, 1, 15))
    return from_bits(block, DTYPES[element])


def unit_codes(bits, element, impl):
    """Codes of patterns of magnitude up to 6 under scale 1."""
    rows = encode(UNIT, under_unit_scale(bits, element), impl)
    assert (scales_of(rows) == 0x38).all()
    return codes_of(rows)[0, :, 0, :15].reshape(-1)[: len(bits)]


def e2m1_of_ml_dtypes(x):
    return x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("element", ["bf16", "fp16"])
def test_every_16_bit_value_up_to_6_rounds_like_ml_dtypes(element, impl):
    six = round_to(E2M1[7], element)
    bits = np.array([s << 15 | m for s in (0, 1) for m in range(six + 1)], np.uint16)
    x = exact.widen(bits, FORMATS[DTYPES[element]])
    assert np.array_equal(unit_codes(bits, element, impl), e2m1_of_ml_dtypes(x))


@pytest.mark.parametrize("impl", IMPLS)
def test_fp32_rounds_like_ml_dtypes_at_every_midpoint(impl):
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32).view(np.uint32)
    points = np.concatenate([[0, 1, 0x7FFFFF], ties - 1, ties, ties + 1]).astype(np.uint32)
    random = np.random.default_rng(3).integers(0, 0x40C00001, 1 << 13, np.uint32)
    magnitudes = np.concatenate([points, random])
    bits = np.concatenate([magnitudes, magnitudes | np.uint32(1 << 31)])
    want = e2m1_of_ml_dtypes(bits.view(np.float32))
    assert np.array_equal(unit_codes(bits, "fp32", impl), want)


def test_every_pattern_narrows_like_ml_dtypes_and_nan_becomes_plus_6():
    """What ml_dtypes does with NaN is its own: e2m1 has none."""
    for element in ("bf16", "fp16"):
        x = exact.widen(np.arange(1 << 16, dtype=np.uint16), FORMATS[DTYPES[element]])
        codes, nan = _microscaling.narrow(x, _microscaling.E2M1), np.isnan(x)
        assert (codes[nan] == 7).all()
        assert np.array_equal(codes[~nan], e2m1_of_ml_dtypes(x[~nan]))
    assert [float(v) for v in E2M1] == exact.widen(
        np.arange(8, dtype=np.uint8), _microscaling.E2M1
    ).tolist()


@pytest.mark.parametrize("impl", IMPLS)
def test_named_casts(impl):
    """Both signs of every row of boundaries.CASTS_E2M1 that fits under a 6; all of them alone."""
    for row in CASTS_E2M1:
        want = E2M1.index(row.e2m1)
        codes = _microscaling.narrow(
            np.array([row.value, -row.value], np.float32), _microscaling.E2M1
        )
        assert (row.name, codes.tolist()) == (row.name, [want, want | 8])
    rows = [row for row in CASTS_E2M1 if row.value <= 6]
    values = np.array([row.value for row in rows], np.float32)
    codes = unit_codes(np.concatenate([values, -values]).view(np.uint32), "fp32", impl)
    want = [E2M1.index(row.e2m1) for row in rows]
    assert codes.tolist() == want + [w | 8 for w in want]


VALID = [2, 3, 0]


@functools.cache
def by_the_page(element, codec):
    """Blocks, their rows, and the patterns these decode to."""
    spec = BlockSpec(3, 2, 32, DTYPES[element])
    blocks = random_blocks(spec, 3, seed=4)
    blocks[0, 1, 1] = 0
    rows = [
        write_nvfp4(
            bits.reshape(-1).tolist(), spec.shape, element, valid, codec.four_over_six, codec.given
        )
        for bits, valid in zip(to_bits(blocks), VALID, strict=True)
    ]
    return blocks, rows, [read_nvfp4(row, spec.shape, element, codec.given) for row in rows]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("codec", VARIANTS, ids=str)
@pytest.mark.parametrize("element", ELEMENTS)
def test_rows_and_blocks_are_what_the_format_page_says(element, codec, impl):
    blocks, rows, decoded = by_the_page(element, codec)
    got = encode(codec, blocks, impl, VALID)
    assert got.nbytes.tolist() == [codec.max_nbytes(got.spec)] * 3
    assert [row.tobytes() for row in got.payload.numpy()] == rows
    assert to_bits(decode(got, impl)).reshape(3, -1).tolist() == decoded


def every_code(global_scale, dtype):
    """A row with each code under each scale that is a number."""
    spec = BlockSpec(127, 1, 16, dtype)
    codec = Nvfp4()
    row = struct.pack("<BBH12x", 0, 0, 127) + bytes(range(0x10, 0x100, 0x22)) * 127
    row += bytes(-len(row) % 16) + bytes(range(127)) + bytes(1)
    row += struct.pack("<f12x", global_scale)
    payload = torch.frombuffer(bytearray(row), dtype=torch.uint8)[None].clone()
    return EncodedBlocks(codec, spec, payload, torch.tensor([len(row)], dtype=torch.int32))


@functools.cache
def decoded_by_the_page(row, element):
    return read_nvfp4(row, (127, 1, 16), element)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_every_code_under_every_scale_decodes_as_the_format_page_says(element, impl):
    """Global scales that underflow in fp16, saturate every type, make ties, and a plain one."""
    for global_scale in (2.0**-100, 3e-8, 1.25 * 2.0**-20, 0.37, 1.015625, 150.3, 2.0**117):
        rows = every_code(global_scale, DTYPES[element])
        want = decoded_by_the_page(rows.payload[0].numpy().tobytes(), element)
        assert to_bits(decode(rows, impl)).reshape(-1).tolist() == want


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", BLOCKS)
def test_degenerate_blocks(name, impl):
    """Scales are numbers, zeros stay zeros, and the error stays in the page's bound."""
    for codec, element in zip(VARIANTS[:2], ("bf16", "fp32"), strict=True):
        spec = BlockSpec(4, 3, 32, DTYPES[element])
        block = make(name, spec)[None]
        rows = encode(codec, block, impl)
        assert torch.equal(rows.payload, encode(codec, block, "reference").payload)
        scales = scales_of(rows)
        assert ((scales >= 1) & (scales <= 0x7E)).all()
        (global_scale,) = globals_of(rows)
        assert 2.0**-100 <= global_scale <= 2.0**117
        check_error(block.to(torch.float64).numpy(), codes_of(rows), scales, float(global_scale))


def check_error(x, codes, scales, global_scale):
    """Bound of formats/nvfp4.md: half a code's spacing, or what saturation cuts off."""
    step = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * global_scale
    step = np.repeat(step, 16, -1)
    values = np.array([float(v) for v in E2M1])[codes & 7] * np.where(codes & 8, -1, 1)
    finite, q = np.isfinite(x), np.abs(x / step)
    spacing = np.where(q < 2, 0.5, np.where(q < 4, 1, 2))
    bound = (np.maximum(spacing / 2, q - 6) + 2.0**-22 * q) * step
    assert (np.abs(values * step - x)[finite] <= bound[finite]).all()
    assert (values[x == 0] == 0).all()
    assert (codes[np.isnan(x)] == 7).all()
    assert (values[np.isinf(x)] == 6 * np.sign(x[np.isinf(x)])).all()


@pytest.mark.parametrize("impl", IMPLS)
def test_signs_of_zeros_nan_and_infinity(impl):
    """A group of zeros has scale 1; what rounds to zero from below is -0, and -0 stays."""
    block = torch.zeros(1, 1, 1, 32)
    block[..., 1], block[..., 16] = -0.0, 6.0
    block[..., 17:22] = torch.tensor([-0.2, -0.0, math.nan, -math.nan, -math.inf])
    rows = encode(UNIT, block, impl)
    assert scales_of(rows).reshape(-1).tolist() == [0x38, 0x38]
    assert codes_of(rows).reshape(-1).tolist()[:22] == [0, 8] + [0] * 14 + [7, 8, 8, 7, 7, 15]
    decoded = decode(rows, impl).reshape(-1)[[0, 1, 17, 18, 19, 20, 21]]
    want = torch.tensor([0.0, -0.0, -0.0, -0.0, 6.0, 6.0, -6.0])
    assert torch.equal(decoded.view(torch.int32), want.view(torch.int32))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("codec", VARIANTS[:3], ids=str)
def test_unused_slots_reach_no_scale_and_no_code(codec, impl):
    spec, valid = BlockSpec(4, 2, 16, torch.bfloat16), [0, 1, 3, 4, 2]
    clean, dirty = random_blocks(spec, 5), random_blocks(spec, 5)
    for i, count in enumerate(valid):
        clean[i, count:], dirty[i, count:] = 3e38, math.nan
    rows = encode(codec, clean, impl, valid)
    assert torch.equal(rows.payload, encode(codec, dirty, impl, valid).payload)
    for i, count in enumerate(valid):
        assert not codes_of(rows)[i, count:].any()
        assert not scales_of(rows)[i, count:].any()


@pytest.mark.parametrize("impl", IMPLS)
def test_four_over_six_lowers_the_error_of_groups_and_never_raises_it(impl):
    """In exact sums, up to the roundings of the two that are compared."""
    spec = BlockSpec(8, 2, 64, torch.float32)
    blocks = random_blocks(spec, 1, specials=False)
    errors = []
    for codec in VARIANTS[:2]:
        decoded = decode(encode(codec, blocks, impl), impl)
        square = (decoded.double() - blocks.double()) ** 2
        errors.append(square.reshape(-1, 16).sum(1))
    six, four = errors
    assert (four <= six * (1 + 1e-5)).all()
    assert (four < six * 0.9).sum() > 10


@pytest.mark.parametrize("impl", HOST)
@pytest.mark.parametrize(
    ("at", "value", "match"),
    [
        (0, 1, "mode"),
        (1, 1, "reserved"),
        (2, 5, "num_valid|5"),
        (80, 0x7F, "scale"),
        (80, 0x80, "scale"),
    ],
)
def test_damaged_rows_are_refused(at, value, match, impl):
    check_refused(at, value, match, impl)


@pytest.mark.parametrize("impl", HOST)
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 2.0**-101, 2.0**118])
def test_global_scales_that_are_no_scales_are_refused(bad, impl):
    check_refused(slice(96, 100), list(struct.pack("<f", bad)), "scale", impl)


def check_refused(at, value, match, impl):
    """Codes at 16, scales at 80 and the global scale at 96; what is unused may hold anything."""
    spec = BlockSpec(4, 2, 16, torch.bfloat16)
    rows = encode(Nvfp4(), random_blocks(spec, 2), impl, [4, 3])
    sound = decode(rows, impl)
    rows.payload[1, 80 + 6] = 0xFF
    assert np.array_equal(to_bits(decode(rows, impl)), to_bits(sound))
    rows.payload[1, at] = torch.tensor(value, dtype=torch.uint8)
    cache = torch.ones(2, *spec.shape, dtype=torch.bfloat16)
    with pytest.raises(CorruptDataError, match=match):
        Nvfp4().decompress(rows, cache, [0, 1], impl=impl)
    assert bool((cache == 1).all())


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 2.0**-101, 2.0**101])
def test_supplied_scales_that_are_no_scales_are_refused(bad):
    with pytest.raises(InvalidInputError, match="given scale"):
        Nvfp4(given=bad)


def test_a_head_dim_of_part_groups_is_refused_with_advice():
    cache = torch.zeros(1, 4, 1, 100, dtype=torch.bfloat16)
    match = "head_dim 100 is not a multiple of the group of 16; pad or choose fp8"
    with pytest.raises(UnsupportedSpecError, match=match):
        Nvfp4().compress(cache, [0])


def test_variants_cover_both_options():
    pairs = {(codec.four_over_six, codec.given is None) for codec in VARIANTS}
    assert pairs == set(itertools.product((False, True), repeat=2))
