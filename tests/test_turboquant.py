"""turboquant against its definition: coder and decoder in rationals, made from the format page."""

import importlib.util
import itertools
import math
import re
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from boundaries import BLOCKS, make
from fp8_rows import DEVICE, ELEMENTS, decode, encode, random_blocks
from rationals import WIDTHS, round_to, top_finite, value_of
from strategies import in_suite

from kvcodec import BlockSpec
from kvcodec.bits import DTYPES, from_bits, to_bits
from kvcodec.codecs.turboquant import LEVELS, THRESHOLDS, TurboQuant
from kvcodec.errors import InvalidInputError
from kvcodec.registry import IMPLEMENTATIONS, why_unavailable

ROOT = Path(__file__).parents[1]
IMPLS = [i for i in IMPLEMENTATIONS if why_unavailable(TurboQuant(), i, DEVICE) is None]
VARIANTS = [TurboQuant(b, n) for b, n in zip((1, 2, 3, 4, 4), ("fp32", "fp16") * 3, strict=False)]
GAUSSIAN = {1: 0.3634, 2: 0.1175, 3: 0.0345, 4: 0.0095}
PAGE = (ROOT / "formats" / "turboquant.md").read_text()
BOOK = {
    int(bits): tuple([int(word, 16) for word in cell.split()] for cell in cells)
    for bits, *cells in re.findall(r"^\| (\d) \| ([0-9A-F ]+) \| ([0-9A-F ]*)\|$", PAGE, re.M)
}


def signed(bits, name):
    """Value of a pattern: a rational, or None for infinity and NaN."""
    sign, magnitude = divmod(bits, 1 << sum(WIDTHS[name]))
    value = value_of(magnitude, name)
    return None if isinstance(value, str) else -value if sign else value


def nearest(value, name):
    """Pattern nearest to a rational of either sign, saturating; +0 for 0."""
    return round_to(abs(value), name) | (value < 0) << sum(WIDTHS[name])


def fp32(value):
    """A rational rounded to fp32, as a rational."""
    return signed(nearest(Fraction(value), "fp32"), "fp32")


def root(value):
    """fp32 nearest to a square root: 2^-90 is far below half an ulp of what occurs here."""
    scaled = value * 4**90
    return fp32(Fraction(math.isqrt(scaled.numerator // scaled.denominator), 2**90))


def diagonal(size):
    """formats/rotation.md: the first elements of D, from the bytes that it lists."""
    listed = bytes.fromhex("89fa7a730431cc9ee86ec11ab6055e36")
    return [-1 if listed[i // 8] >> i % 8 & 1 else 1 for i in range(size)]


def hadamard(x):
    """formats/rotation.md: H, in rationals rounded to fp32 after every operation."""
    x, begin = list(x), 0
    for k in range(len(x).bit_length() - 1, 0, -1):
        if not len(x) >> k & 1:
            continue
        for stage in range(k):
            for p in range(1 << k):
                if not p >> stage & 1:
                    i, j = begin + p, begin + p + (1 << stage)
                    x[i], x[j] = fp32(x[i] + x[j]), fp32(x[i] - x[j])
        factor = (signed(0x3F3504F3, "fp32") if k % 2 else 1) / Fraction(2 ** (k // 2))
        for i in range(begin, begin + (1 << k)):
            x[i] = fp32(x[i] * factor)
        begin += 1 << k
    return x


def align(n):
    return -(-n // 16) * 16


def fields(row, at, count, width):
    """Fields of a plane."""
    return [row[at + i * width // 8] >> i * width % 8 & ((1 << width) - 1) for i in range(count)]


def dequantize(row, codec, shape, element):
    """Element patterns of a row; only the values of zeros are compared, not their signs."""
    tokens, heads, dim = shape
    count = tokens * heads * dim
    mode, reserved, num_valid = struct.unpack_from("<BBH", row)
    assert (mode, reserved, row[4:16]) == (0, 0, bytes(12))
    width = 2 if codec.bits == 3 else codec.bits
    codes, at = fields(row, 16, count, width), 16 + align(count * width // 8)
    if codec.bits == 3:
        high = fields(row, at, count, 1)
        codes, at = [a | b << 2 for a, b in zip(codes, high, strict=True)], at + align(count // 8)
    letter, size = ("H", 2) if codec.norm == "fp16" else ("I", 4)
    norms = struct.unpack_from(f"<{tokens * heads}{letter}", row, at)
    assert len(row) == at + align(size * tokens * heads)
    out = []
    for vector, norm in enumerate(norms):
        if vector // heads >= num_valid:
            out += [0] * dim
            continue
        mine = codes[vector * dim : (vector + 1) * dim]
        half = 1 << (codec.bits - 1)
        levels = [signed(pattern, "fp32") for pattern in BOOK[codec.bits][0]]
        v = [-levels[c - half] if c >= half else levels[c] for c in mine]
        w = [fp32(a * b) for a, b in zip(hadamard(v), diagonal(dim), strict=True)]
        f = fp32((signed(norm, codec.norm) or 0) / root(Fraction(dim)))
        out += [nearest(fp32(a * f), element) for a in w]
    return out


def quantize(block, codec, element, num_valid):
    """The row of a block of patterns [T, H, D], by the encoder of the page."""
    tokens, heads, dim = block.shape
    codes, norms, half = [], [], 1 << (codec.bits - 1)
    thresholds = [signed(pattern, "fp32") for pattern in BOOK[codec.bits][1]]
    for t, h in itertools.product(range(tokens), range(heads)):
        x = [signed(int(bits), element) or Fraction(0) for bits in block[t, h]]
        if t >= num_valid or not any(x):
            codes += [0] * dim
            norms.append(0)
            continue
        e = round_to(max(map(abs, x)), "fp32") >> 23
        power = 127 - min(max(e, 1), 253)
        u = [fp32(a * Fraction(2) ** power) for a in x]
        s = [fp32(a * a) for a in u] + [Fraction(0)] * ((1 << (dim - 1).bit_length()) - dim)
        while len(s) > 1:
            s = [fp32(a + b) for a, b in zip(s[::2], s[1::2], strict=True)]
        r = root(s[0])
        m = fp32(root(Fraction(dim)) / r)
        y = hadamard([a * b for a, b in zip(u, diagonal(dim), strict=True)])
        for z in (fp32(a * m) for a in y):
            codes.append(half * (z < 0) + sum(abs(z) >= edge for edge in thresholds))
        norms.append(nearest(fp32(r * Fraction(2) ** -power), codec.norm))
    row = struct.pack("<BBH12x", 0, 0, num_valid)
    for shift, width in ((0, 2), (2, 1)) if codec.bits == 3 else ((0, codec.bits),):
        plane = bytearray(len(codes) * width // 8)
        for i, code in enumerate(codes):
            plane[i * width // 8] |= (code >> shift & ((1 << width) - 1)) << i * width % 8
        row += plane + bytes(-len(plane) % 16)
    row += b"".join(norm.to_bytes(2 if codec.norm == "fp16" else 4, "little") for norm in norms)
    return row + bytes(-len(row) % 16)


def page_blocks(spec, seed):
    """Random blocks with NaN and infinities, a vector of zeros, a constant and a tiny one."""
    blocks = random_blocks(spec, 3, seed)
    blocks[1, 0, 0] = 0
    blocks[1, 1, 1] = 0.7
    blocks[2, 0, 1] *= 2.0**-14
    return blocks


def test_the_tables_of_the_page_are_the_lloyd_max_quantizers_and_those_of_the_code():
    module = importlib.util.spec_from_file_location("lloyd_max", ROOT / "benchmarks/lloyd_max.py")
    lloyd_max = importlib.util.module_from_spec(module)
    module.loader.exec_module(lloyd_max)
    assert sorted(BOOK) == sorted(LEVELS) == [1, 2, 3, 4]
    for bits, (levels, thresholds) in BOOK.items():
        assert lloyd_max.tables(bits) == (levels, thresholds)
        assert (LEVELS[bits], THRESHOLDS[bits]) == (tuple(levels), tuple(thresholds))
        mse = lloyd_max.mean_squared_error(lloyd_max.codebook(bits))
        assert abs(mse - GAUSSIAN[bits]) < 5e-5


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("codec", VARIANTS, ids=str)
def test_the_reference_row_is_what_the_format_page_says(codec, element):
    spec = BlockSpec(2, 2, 24 if codec.bits != 4 else 22, DTYPES[element])
    blocks = page_blocks(spec, 0)
    rows = encode(codec, blocks, "reference", [2, 2, 1])
    for row, bits, filled in zip(rows.payload.numpy(), to_bits(blocks), (2, 2, 1), strict=True):
        assert row.tobytes() == quantize(bits, codec, element, filled)
    assert rows.nbytes.tolist() == [codec.max_nbytes(spec)] * 3


def values(patterns, element):
    return [0 if signed(int(bits), element) == 0 else int(bits) for bits in patterns]


@pytest.mark.parametrize("impl", in_suite(IMPLS))
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("codec", VARIANTS, ids=str)
def test_rows_decode_as_the_format_page_says(codec, element, impl):
    spec = BlockSpec(2, 2, 24, DTYPES[element])
    rows = encode(codec, page_blocks(spec, 1), impl, [2, 1, 0])
    for row, block in zip(rows.payload.numpy(), to_bits(decode(rows, impl)), strict=True):
        want = dequantize(row.tobytes(), codec, spec.shape, element)
        assert values(block.reshape(-1), element) == values(want, element)


@pytest.mark.parametrize("impl", in_suite(IMPLS))
@pytest.mark.parametrize("norm", ["fp16", "fp32"])
def test_any_norm_decodes_as_the_format_page_says(norm, impl):
    """Infinity, NaN, negative norms: no writer makes them, every reader agrees."""
    patterns = [
        0,
        1,
        0x8000,
        0x7C00,
        0xFC00,
        0x7C01,
        0xFFFF,
        0x7BFF,
        0x7F80,
        0x0400,
        0x3C00,
        0xB555,
    ]
    codec, spec = TurboQuant(norm=norm), BlockSpec(len(patterns), 1, 16, torch.float16)
    rows = encode(codec, random_blocks(spec, 1), "reference")
    size = 2 if norm == "fp16" else 4
    words = np.array(patterns, f"<u{size}") << (0 if size == 2 else 16)
    row = rows.payload.numpy()[0]
    row[-align(words.nbytes) :][: words.nbytes] = words.astype(f"<u{size}").view(np.uint8)
    want = dequantize(row.tobytes(), codec, spec.shape, "fp16")
    assert values(to_bits(decode(rows, impl)).reshape(-1), "fp16") == values(want, "fp16")


def relative_mse(codec, blocks):
    decoded = decode(encode(codec, blocks, "reference"), "reference").double()
    return float((decoded - blocks.double()).square().sum() / blocks.double().square().sum())


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_error_on_gaussian_data_is_that_of_the_codebook(bits):
    blocks = torch.randn(2, 128, 2, 512, generator=torch.Generator().manual_seed(2))
    assert abs(relative_mse(TurboQuant(bits), blocks) / GAUSSIAN[bits] - 1) < 0.02


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_error_is_the_same_whatever_the_channels_look_like(bits):
    """The rotation spreads outlier channels; measured within 5 % of Gaussian data."""
    spec = BlockSpec(64, 2, 128, torch.bfloat16)
    error = relative_mse(TurboQuant(bits), make("outlier_channels", spec)[None])
    assert error < 1.1 * GAUSSIAN[bits]


@pytest.mark.parametrize("impl", in_suite(IMPLS))
def test_ties_go_to_the_level_farther_from_zero(impl):
    """D = 2: r = |x|, and z lands on a threshold for one of the two codes around it."""
    codec, spec = TurboQuant(2, "fp32"), BlockSpec(1, 1, 4, torch.float32)
    threshold = np.array([THRESHOLDS[2][0]], np.uint32)
    patterns = (threshold + np.arange(-60, 61, dtype=np.int64)).astype(np.uint32)
    for bits in patterns.tolist():
        block = from_bits(np.array([bits, 0x3F800000, 0x3F800000, 0], np.uint32), torch.float32)
        rows = encode(codec, block.view(1, *spec.shape), impl)
        want = quantize(to_bits(block.view(spec.shape)), codec, "fp32", 1)
        assert rows.payload.numpy()[0].tobytes() == want


@pytest.mark.parametrize("impl", in_suite(IMPLS))
@pytest.mark.parametrize("name", BLOCKS)
def test_named_blocks_keep_their_vectors_norms(name, impl):
    for element, codec in zip(
        ELEMENTS, (TurboQuant(), TurboQuant(3), TurboQuant(4, "fp32")), strict=True
    ):
        spec = BlockSpec(4, 2, 32, DTYPES[element])
        block = make(name, spec)[None]
        rows = encode(codec, block, impl)
        assert torch.equal(rows.payload, encode(codec, block, "reference").payload)
        decoded = decode(rows, impl).double()
        assert bool(decoded.isfinite().all())
        norm = torch.where(block.isfinite(), block, 0).double().norm(dim=-1)
        most = 65504.0 if codec.norm == "fp16" else math.inf
        limit = norm.clamp(max=most) * 1.2 + 2.0**-24
        assert bool((decoded.norm(dim=-1) <= limit).all())
        inside = (norm < most) & (norm > (1e-3 if codec.norm == "fp16" else 0))
        top = float(torch.finfo(spec.dtype).max)
        inside &= norm < top / 4
        assert bool((decoded.norm(dim=-1) >= 0.7 * norm)[inside].all())


@pytest.mark.parametrize("impl", in_suite(IMPLS))
def test_extremes_of_fp32_neither_overflow_nor_vanish(impl):
    """Each token 2^64 times smaller than the one before; what comes back has the same direction."""
    scales = torch.tensor([2.0**k for k in (120, 56, -8, -72, -110)])
    blocks = torch.randn(1, 5, 1, 64) * scales[:, None, None]
    back = decode(encode(TurboQuant(norm="fp32"), blocks, impl), impl)
    error = (back.double() - blocks.double()).norm(dim=-1) / blocks.double().norm(dim=-1)
    assert bool((error < 0.13).all())
    assert not decode(encode(TurboQuant(), blocks * 0, impl), impl).any()


def test_refusals_say_what_to_do():
    def why(bits, head_dim):
        return TurboQuant(bits).supports(BlockSpec(16, 1, head_dim, torch.bfloat16))

    assert why(4, 100) is why(2, 100) is why(3, 80) is why(1, 96) is None
    assert why(3, 100).startswith("head_dim 100 is not a multiple of 8, which bits=3 needs; choose")
    assert why(2, 66).startswith("head_dim 66 is not a multiple of 4")
    assert why(4, 2048) == "head_dim 2048 is over 1024; choose int4 or fp8"
    with pytest.raises(InvalidInputError, match="turboquant: bits is 5, wanted one of 1, 2, 3, 4"):
        TurboQuant(5)
    with pytest.raises(InvalidInputError, match="norm is 'bf16', wanted one of fp16, fp32"):
        TurboQuant(norm="bf16")


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_every_bit_is_counted(bits):
    spec = BlockSpec(128, 2, 128, torch.bfloat16)
    for norm, size in ("fp16", 16), ("fp32", 32):
        nbytes = TurboQuant(bits, norm).max_nbytes(spec) - 16
        assert 8 * nbytes / spec.numel == bits + size / 128


def test_norms_saturate_at_the_largest_fp16():
    back = decode(encode(TurboQuant(), torch.full((1, 1, 1, 64), 3e5), "reference"), "reference")
    assert abs(float(back.norm()) - 65504) < 0.2 * 65504
    assert top_finite("fp16") == 0x7BFF


@pytest.mark.parametrize("impl", in_suite([i for i in IMPLS if i != "reference"]))
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(5, 3, 80), (16, 1, 128), (3, 2, 576), (7, 1, 8)])
def test_rows_and_blocks_equal_the_reference(shape, bits, impl):
    for seed, element in enumerate(ELEMENTS):
        spec = BlockSpec(*shape, DTYPES[element])
        noise = np.random.default_rng(seed).bytes(spec.nbytes)
        blocks = torch.cat([
            random_blocks(spec, 2, seed),
            torch.frombuffer(bytearray(noise), dtype=spec.dtype).reshape(1, *shape),
        ])  # fmt: skip
        codec = TurboQuant(bits, ("fp16", "fp32")[seed % 2])
        valid = [shape[0], shape[0] - 1, shape[0] // 2]
        rows = encode(codec, blocks, impl, valid)
        want = encode(codec, blocks, "reference", valid)
        assert torch.equal(rows.payload, want.payload)
        assert np.array_equal(to_bits(decode(want, impl)), to_bits(decode(want, "reference")))
