"""mxfp4 and mxfp8 against their format pages, in rationals, and against ml_dtypes."""

import functools
import math
import struct

import ml_dtypes
import numpy as np
import pytest
import torch
from boundaries import BLOCKS, SHARED_EXPONENTS, make
from fp8_rows import ELEMENTS, decode, encode, random_blocks
from microscaling_rows import E2M1, EMAX, impls, read_mx, write_mx
from rationals import top_finite, value_of

from kvcodec import BlockSpec, EncodedBlocks, exact
from kvcodec.bits import DTYPES, FORMATS, from_bits, to_bits
from kvcodec.codecs._microscaling import power_of_two
from kvcodec.codecs.mxfp4 import Mxfp4
from kvcodec.codecs.mxfp8 import Mxfp8
from kvcodec.errors import CorruptDataError, InvalidInputError, UnsupportedSpecError
from kvcodec.kernels import _mx_triton

CODECS = {"e2m1": Mxfp4(), "e4m3fn": Mxfp8(), "e5m2": Mxfp8("e5m2")}
THEIRS = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
LARGEST = {"e2m1": 6.0, "e4m3fn": 448.0, "e5m2": 57344.0}
RUNS = [(target, impl) for target, codec in CODECS.items() for impl in impls(codec.name)]
HOST = [run for run in RUNS if run[1] != "triton"]
VALID = [2, 3, 0]


@pytest.fixture(autouse=True)
def large_tiles(monkeypatch):
    """The interpreter takes its time per operation, whatever the size of the tile."""
    monkeypatch.setattr(_mx_triton, "ROWS", 1 << 10)


def codes_of(rows):
    """Codes [n, *shape] of rows."""
    begin, shape = 16, rows.spec.shape
    if rows.codec.name == "mxfp8":
        return rows.payload[:, begin : begin + rows.spec.numel].numpy().reshape(-1, *shape)
    packed = rows.payload[:, begin : begin + rows.spec.numel // 2].numpy()
    return np.stack([packed & 15, packed >> 4], -1).reshape(-1, *shape)


def scales_of(rows):
    """Scale bytes [n, T, H, D / 32] of rows."""
    shape = *rows.spec.shape[:2], rows.spec.head_dim // 32
    begin = 16 + rows.spec.numel // (1 if rows.codec.name == "mxfp8" else 2)
    return rows.payload[:, begin : begin + math.prod(shape)].numpy().reshape(-1, *shape)


def values_of(codes, target):
    """fp64 values of codes."""
    if target == "e2m1":
        return np.array([float(v) for v in E2M1])[codes & 7] * np.where(codes & 8, -1, 1)
    return codes.view(THEIRS[target]).astype(np.float64)


@pytest.mark.parametrize(("target", "impl"), RUNS)
@pytest.mark.parametrize("element", ["bf16", "fp16"])
def test_every_16_bit_value_rounds_like_ml_dtypes_under_the_scale_one(element, target, impl):
    """31 patterns to a group and a power of two that makes its scale 1; saturating ones too."""
    emax = EMAX[target]
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = exact.widen(bits, FORMATS[DTYPES[element]])
    small = np.abs(x) < 2.0 ** (emax + 1)
    bits, x = bits[small], x[small]
    groups = -(-len(bits) // 31)
    block = np.zeros((1, groups, 1, 32), np.uint16)
    block[...] = to_bits(torch.tensor([2.0**emax]).to(DTYPES[element]))[0]
    block[..., :31] = np.resize(bits, (1, groups, 1, 31))
    rows = encode(CODECS[target], from_bits(block, DTYPES[element]), impl)
    assert (scales_of(rows) == 127).all()
    clamped = np.clip(x, -LARGEST[target], LARGEST[target])
    want = clamped.astype(THEIRS[target]).view(np.uint8)
    assert np.array_equal(codes_of(rows)[0, :, 0, :31].reshape(-1)[: len(bits)], want)


@pytest.mark.parametrize(("target", "impl"), RUNS)
def test_every_exponent_and_the_named_ones_give_their_scale(target, impl):
    """The largest magnitude of a group decides, in integers; subnormals are among them."""
    rows = [(r.amax, getattr(r, target.removesuffix("fn"))) for r in SHARED_EXPONENTS]
    amax = np.array([a for a, _ in rows], np.float32)
    patterns = np.concatenate([
        amax.view(np.uint32), *(np.arange(255, dtype=np.uint32) << 23 | m for m in (0, 0x7FFFFF))
    ])  # fmt: skip
    want = [b for _, b in rows] + 2 * [max(e - EMAX[target], 0) for e in range(255)]
    block = np.zeros((1, len(patterns), 1, 32), np.uint32)
    block[0, :, 0, 5] = patterns | np.uint32(1 << 31)
    block[0, :, 0, 6] = patterns >> 1
    encoded = encode(CODECS[target], from_bits(block, torch.float32), impl)
    assert scales_of(encoded).reshape(-1).tolist() == want


def test_scales_are_those_of_e8m0():
    bytes_ = np.arange(255, dtype=np.uint8)
    theirs = bytes_.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal(power_of_two(bytes_.astype(np.int64)), theirs)


@functools.cache
def by_the_page(element, target):
    """Blocks, their rows, and the patterns these decode to."""
    spec = BlockSpec(3, 2, 32, DTYPES[element])
    blocks = random_blocks(spec, 3, seed=4)
    blocks[0, 1, 1] = 0
    rows = [
        write_mx(bits.reshape(-1).tolist(), spec.shape, element, valid, target)
        for bits, valid in zip(to_bits(blocks), VALID, strict=True)
    ]
    return blocks, rows, [read_mx(row, spec.shape, element, target) for row in rows]


@pytest.mark.parametrize(("target", "impl"), RUNS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_rows_and_blocks_are_what_the_format_page_says(element, target, impl):
    blocks, rows, decoded = by_the_page(element, target)
    got = encode(CODECS[target], blocks, impl, VALID)
    assert got.nbytes.tolist() == [CODECS[target].max_nbytes(got.spec)] * 3
    assert [row.tobytes() for row in got.payload.numpy()] == rows
    assert to_bits(decode(got, impl)).reshape(3, -1).tolist() == decoded


@functools.cache
def every_code(element, target):
    """A row with many codes under each of some scales, and the patterns it decodes to."""
    scales = [0, 1, 2, 100, 112, 120, 127, 130, 140, 245, 253, 254]
    codes = bytes(range(0x10, 0x100, 0x11)) + b"\x80" if target == "e2m1" else bytes(range(256))
    spec = BlockSpec(len(scales), 1, len(codes) * (2 if target == "e2m1" else 1), DTYPES[element])
    row = struct.pack("<BBH12x", 0, 0, len(scales)) + codes * len(scales)
    row += bytes(s for s in scales for _ in range(spec.head_dim // 32))
    row += bytes(-len(row) % 16)
    return spec, row, read_mx(row, spec.shape, element, target)


@pytest.mark.parametrize(("target", "impl"), RUNS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_every_code_under_any_scale_decodes_as_the_format_page_says(element, target, impl):
    """Scales that no writer writes too: they underflow or saturate."""
    spec, row, want = every_code(element, target)
    payload = torch.frombuffer(bytearray(row), dtype=torch.uint8)[None].clone()
    sizes = torch.tensor([len(row)], dtype=torch.int32)
    rows = EncodedBlocks(CODECS[target], spec, payload, sizes)
    assert to_bits(decode(rows, impl)).reshape(-1).tolist() == want


@pytest.mark.parametrize(("target", "impl"), RUNS)
@pytest.mark.parametrize("name", BLOCKS)
def test_degenerate_blocks(name, target, impl):
    """Scales are numbers, zeros stay zeros, and the error stays in the page's bound."""
    codec = CODECS[target]
    for element in ("bf16", "fp32") if impl != "triton" else ("bf16",):
        spec = BlockSpec(4, 3, 32, DTYPES[element])
        block = make(name, spec)[None]
        rows = encode(codec, block, impl)
        assert torch.equal(rows.payload, encode(codec, block, "reference").payload)
        assert (scales_of(rows) <= 252).all()
        x = block.to(torch.float64).numpy()
        step = 2.0 ** np.repeat(scales_of(rows).astype(np.float64) - 127, 32, -1)
        values, finite, q = values_of(codes_of(rows), target), np.isfinite(x), np.abs(x / step)
        bound = np.maximum(spacing(q, target) / 2, q - LARGEST[target]) * step
        assert (np.abs(values * step - x)[finite] <= bound[finite]).all()
        assert (values[x == 0] == 0).all()
        nan = values[np.isnan(x)]
        assert (nan == 6).all() if target == "e2m1" else np.isnan(nan).all()
        assert (np.abs(values[np.isinf(x)]) == LARGEST[target]).all()


def spacing(q, target):
    """Distance of neighbouring codes at a quotient."""
    mantissa, lowest = {"e2m1": (1, 0), "e4m3fn": (3, -6), "e5m2": (2, -14)}[target]
    with np.errstate(all="ignore"):
        exponent = np.where(q == 0, lowest, np.floor(np.log2(q)))
    return 2.0 ** (np.clip(exponent, lowest, EMAX[target]) - mantissa)


def test_the_bounds_own_constants():
    for target, largest in LARGEST.items():
        top = E2M1[7] if target == "e2m1" else value_of(top_finite(target), target)
        assert top == largest


@pytest.mark.parametrize(("target", "impl"), RUNS)
def test_unused_slots_reach_no_scale_and_no_code(target, impl):
    codec, valid = CODECS[target], [0, 1, 3, 4, 2]
    spec = BlockSpec(4, 2, 32, torch.bfloat16)
    clean, dirty = random_blocks(spec, 5), random_blocks(spec, 5)
    for i, count in enumerate(valid):
        clean[i, count:], dirty[i, count:] = 3e38, math.nan
    rows = encode(codec, clean, impl, valid)
    assert torch.equal(rows.payload, encode(codec, dirty, impl, valid).payload)
    for i, count in enumerate(valid):
        assert not codes_of(rows)[i, count:].any()
        assert not scales_of(rows)[i, count:].any()


@pytest.mark.parametrize(("target", "impl"), RUNS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_a_decoded_block_encodes_to_the_same_row(element, target, impl):
    """Random bits, mixed data and the smallest numbers of the type."""
    spec = BlockSpec(8, 2, 64, DTYPES[element])
    noise = torch.frombuffer(
        bytearray(np.random.default_rng(2).bytes(spec.nbytes)), dtype=spec.dtype
    )
    bits = to_bits(noise.reshape(1, *spec.shape))
    tiny = from_bits(bits & bits.dtype.type((1 << (8 * bits.itemsize - 1)) | 0x1FF), spec.dtype)
    blocks = torch.cat([random_blocks(spec, 2), noise.reshape(1, *spec.shape), tiny])
    rows = encode(CODECS[target], blocks, impl)
    again = encode(CODECS[target], decode(rows, impl), impl)
    assert torch.equal(rows.payload, again.payload)


@pytest.mark.parametrize(("target", "impl"), HOST)
@pytest.mark.parametrize(
    ("at", "value", "match"),
    [(0, 1, "mode"), (1, 1, "reserved"), (2, 5, "num_valid|5"), (None, 0xFF, "scale")],
)
def test_damaged_rows_are_refused(at, value, match, target, impl):
    """A scale of an unused token may be anything."""
    spec = BlockSpec(4, 2, 32, torch.bfloat16)
    rows = encode(CODECS[target], random_blocks(spec, 2), impl, [4, 3])
    sound = decode(rows, impl)
    rows.payload[1, -16 + 6] = 0xFF
    assert np.array_equal(to_bits(decode(rows, impl)), to_bits(sound))
    rows.payload[1, -16 + 5 if at is None else at] = value
    cache = torch.ones(2, *spec.shape, dtype=torch.bfloat16)
    with pytest.raises(CorruptDataError, match=match):
        CODECS[target].decompress(rows, cache, [0, 1], impl=impl)
    assert bool((cache == 1).all())


def test_what_makes_no_sense_is_refused():
    with pytest.raises(InvalidInputError, match="dtype is 'e3m4', wanted e4m3 or e5m2"):
        Mxfp8("e3m4")
    cache = torch.zeros(1, 4, 1, 80, dtype=torch.bfloat16)
    match = "head_dim 80 is not a multiple of the group of 32; pad or choose fp8"
    for codec in CODECS.values():
        with pytest.raises(UnsupportedSpecError, match=match):
            codec.compress(cache, [0])
