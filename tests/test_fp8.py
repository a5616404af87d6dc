"""fp8 against its definition: rounding by rationals, and the format page in integers.

Longer than most: it holds an encoder and a decoder of its own, written from formats/fp8.md.
"""

import itertools
import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from boundaries import CASTS, STORES
from fp8_rows import (
    ELEMENTS,
    IMPLS,
    SCALES,
    TARGETS,
    UNIT,
    as_block,
    codes_of,
    decode,
    encode,
    encoding,
    random_blocks,
)
from rationals import WIDTHS, convert, midpoints, round_to, top_finite, value_of

from kvcodec import BlockSpec, EncodedBlocks
from kvcodec.bits import DTYPES, to_bits
from kvcodec.codecs.fp8 import Fp8
from kvcodec.kernels import fp8_triton


@pytest.fixture
def large_tiles(monkeypatch):
    """The interpreter takes its time per operation, whatever the size of the tile."""
    monkeypatch.setattr(fp8_triton, "TILE", 1 << 16)


def test_the_table_runs_over_reference_vector_and_triton():
    assert {"reference", "vector", "triton"} <= set(IMPLS)


# Rounding


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", TARGETS)
@pytest.mark.parametrize("element", ["bf16", "fp16"])
def test_every_16_bit_value_rounds_like_rationals(element, dtype, impl):
    bits = np.arange(1 << 16, dtype=np.uint16)
    rows = encode(UNIT[dtype], as_block(bits, element), impl)
    want = [convert(b, element, encoding(dtype)) for b in bits.tolist()]
    assert codes_of(rows).reshape(-1).tolist() == want


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", TARGETS)
def test_fp32_rounds_like_rationals_at_every_midpoint(dtype, impl):
    ends = (1, 0x7FFFFF, 0x7F7FFFFF, 0x7F800000, 0x7F800001)
    magnitudes = [*midpoints(encoding(dtype)), *ends]
    bits = np.array([s << 31 | m for s in (0, 1) for m in magnitudes], np.uint32)
    rows = encode(UNIT[dtype], as_block(bits, "fp32"), impl)
    want = [convert(b, "fp32", encoding(dtype)) for b in bits.tolist()]
    assert codes_of(rows).reshape(-1)[: len(bits)].tolist() == want


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", TARGETS)
def test_named_casts(dtype, impl):
    """Both signs of every row of boundaries.CASTS."""
    values = np.array([row.value for row in CASTS], np.float32)
    bits = np.concatenate([values, -values]).view(np.uint32)
    codes = codes_of(encode(UNIT[dtype], as_block(bits, "fp32"), impl)).reshape(-1)
    for i, row in enumerate(CASTS):
        want = round_to(Fraction(getattr(row, dtype)), encoding(dtype))
        assert (row.name, int(codes[i])) == (row.name, want)
        assert (row.name, int(codes[len(CASTS) + i])) == (row.name, want | 0x80)


@pytest.mark.parametrize("dtype", TARGETS)
def test_codes_in_range_are_those_of_ml_dtypes_and_torch(dtype):
    """Beyond the largest code, and for NaN, libraries and their versions differ."""
    fields = np.random.default_rng(5).integers(0, 1 << 32, 1 << 17, np.uint32)
    x = fields.view(np.float32)
    x = x[np.abs(x) <= float(value_of(top_finite(encoding(dtype)), encoding(dtype)))]
    codes = codes_of(encode(UNIT[dtype], as_block(x.view(np.uint32), "fp32"), "reference"))
    theirs = ml_dtypes.float8_e4m3fn if dtype == "e4m3" else ml_dtypes.float8_e5m2
    assert np.array_equal(codes.reshape(-1)[: x.size], x.astype(theirs).view(np.uint8))
    cast = to_bits(torch.from_numpy(x).to(DTYPES[encoding(dtype)]))
    assert np.array_equal(codes.reshape(-1)[: x.size], cast)


def align(n):
    return -(-n // 16) * 16


def round_shift(n, power, exponent_bits, mantissa_bits, top):
    """Magnitude code of the integer n times 2^power: nearest even, saturating."""
    if n == 0:
        return 0
    lowest = 2 - (1 << (exponent_bits - 1))
    exponent = max(n.bit_length() - 1 + power, lowest)
    drop = exponent - mantissa_bits - power
    if drop > 0:
        steps, rest, half = n >> drop, n & ((1 << drop) - 1), 1 << (drop - 1)
        steps += rest > half or (rest == half and steps & 1)
    else:
        steps = n << -drop
    return min(((exponent - lowest) << mantissa_bits) + steps, top)


def split_float(magnitude, exponent_bits, mantissa_bits):
    """Integer n and power with value n * 2^power."""
    exponent, mantissa = divmod(magnitude, 1 << mantissa_bits)
    power = max(exponent, 1) - (1 << (exponent_bits - 1)) + 1 - mantissa_bits
    return mantissa + (1 << mantissa_bits if exponent else 0), power


def dequantize(row, shape, element, dtype, scale, given):
    """Element patterns of a row, written from formats/fp8.md with struct and integers only."""
    tokens, heads, dim = shape
    mode, reserved, num_valid = struct.unpack_from("<BBH", row)
    assert (mode, reserved, row[4:16]) == (0, 0, bytes(12))
    end = 16 + tokens * heads * dim
    code_widths, inf = ((4, 3), None) if dtype == "e4m3" else ((5, 2), 0x7C)
    widths, top, nan = {
        "bf16": ((8, 7), 0x7F7F, 0x7FC0),
        "fp16": ((5, 10), 0x7BFF, 0x7E00),
        "fp32": ((8, 23), 0x7F7FFFFF, 0x7FC00000),
    }[element]
    out = []
    for t, h, d in itertools.product(range(tokens), range(heads), range(dim)):
        code = row[16 + (t * heads + h) * dim + d]
        sign, magnitude = (code >> 7) << sum(widths), code & 0x7F
        group = {"token_head": t * heads + h, "head": h, "block": 0}[scale]
        if given:
            (scale_bits,) = struct.unpack("<I", struct.pack("<f", given[group]))
        else:
            (scale_bits,) = struct.unpack_from("<I", row, align(end) + 4 * group)
        if t >= num_valid:
            out.append(0)
        elif magnitude > (0x7E if inf is None else inf):
            out.append(sign | nan)
        elif magnitude == inf:
            out.append(sign | top)
        else:
            n, power = split_float(magnitude, *code_widths)
            s, scale_power = split_float(scale_bits, 8, 23)
            product = round_shift(n * s, power + scale_power, 8, 23, 0x7F7FFFFF)
            out.append(sign | round_shift(*split_float(product, 8, 23), *widths, top))
    return out


VARIANTS = [
    (element, dtype, scale, given)
    for element, dtype in itertools.product(ELEMENTS, TARGETS)
    for scale, given in [*((s, ()) for s in SCALES), ("block", (0.37,)), ("head", (3.1, 1e-3))]
]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("element", "dtype", "scale", "given"), VARIANTS)
def test_rows_decode_as_the_format_page_says(element, dtype, scale, given, impl):
    codec = Fp8(dtype, scale, given)
    spec = BlockSpec(3, 2, 21, DTYPES[element])
    rows = encode(codec, random_blocks(spec, 3), impl, [3, 2, 0])
    decoded = to_bits(decode(rows, impl))
    for row, block in zip(rows.payload.numpy(), decoded, strict=True):
        want = dequantize(row.tobytes(), spec.shape, element, dtype, scale, given)
        assert block.reshape(-1).tolist() == want


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("element", "dtype"), [*itertools.product(ELEMENTS, TARGETS)])
def test_every_code_decodes_as_the_format_page_says(element, dtype, impl):
    """256 codes, NaN and infinity among them, under scales that saturate and that underflow."""
    scales = [1.0, 0.1, 2.0**-100, 3e-8, 1.1e-5, 150.3, 1e30, 7.6e35, 3.4e38, 2.0**-140]
    codec = Fp8(dtype=dtype)
    spec = BlockSpec(len(scales), 1, 256, DTYPES[element])
    row = struct.pack("<BBH12x", 0, 0, len(scales)) + bytes(range(256)) * len(scales)
    row += struct.pack(f"<{len(scales)}f", *scales)
    row += bytes(align(len(row)) - len(row))
    payload = torch.frombuffer(bytearray(row), dtype=torch.uint8)[None].clone()
    rows = EncodedBlocks(codec, spec, payload, torch.tensor([len(row)], dtype=torch.int32))
    want = dequantize(row, spec.shape, element, dtype, "token_head", ())
    assert to_bits(decode(rows, impl)).reshape(-1).tolist() == want


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_named_stores(element, impl):
    """Every row of boundaries.STORES as a token of its own."""
    spec = BlockSpec(len(STORES), 1, 16, DTYPES[element])
    rows = EncodedBlocks.empty(Fp8(), spec, 1)
    rows.payload.zero_()
    rows.nbytes.fill_(rows.payload.shape[1])
    rows.payload[0, 2] = len(STORES)
    values = torch.tensor([row.value for row in STORES]).to(torch.float8_e4m3fn)
    assert values.float().tolist() == [row.value for row in STORES]
    codes = values.view(torch.uint8)[:, None].expand(-1, 16)
    rows.payload[0, 16 : 16 + spec.numel] = codes.reshape(-1)
    scales = torch.tensor([row.scale for row in STORES], dtype=torch.float32).view(torch.uint8)
    rows.payload[0, 16 + spec.numel :][: len(scales)] = scales
    decoded = decode(rows, impl)[0, :, 0]
    for row, elements in zip(STORES, decoded, strict=True):
        want = torch.tensor(getattr(row, element), dtype=torch.float64).to(spec.dtype).expand(16)
        assert (row.name, to_bits(elements).tolist()) == (row.name, to_bits(want).tolist())


@pytest.mark.parametrize(("element", "dtype", "scale", "given"), VARIANTS)
def test_the_reference_row_is_what_the_format_page_says(element, dtype, scale, given):
    """The encoder of the page in rationals: scales, codes, sizes and padding."""
    codec, widths = Fp8(dtype, scale, given), WIDTHS[element]
    spec = BlockSpec(3, 2, 7, DTYPES[element])
    block = random_blocks(spec, 1, seed=4)
    block[0, 1, 1] = 0
    (valid,) = num_valid = [2]
    bits = to_bits(block)[0].tolist()
    groups: dict[tuple[int, ...], list[Fraction]] = {}
    keys = {"token_head": lambda t, h: (t, h), "head": lambda t, h: (0, h), "block": lambda *_: ()}
    values = {}
    for t, h, d in itertools.product(*map(range, spec.shape)):
        value = values[t, h, d] = value_of(bits[t][h][d] & ((1 << sum(widths)) - 1), element)
        group = groups.setdefault(keys[scale](t, h), [])
        if t < valid and isinstance(value, Fraction):
            group.append(value)
    name = encoding(dtype)
    scales, ordered = {}, sorted(groups)
    for key in ordered:
        amax = max(groups[key], default=Fraction(0))
        rounded = value_of(round_to(amax / value_of(top_finite(name), name), "fp32"), "fp32")
        scales[key] = max(rounded, Fraction(2) ** -100) if amax else Fraction(1)
        if scale == "token_head" and key[0] >= valid:
            scales[key] = Fraction(0)
        if given:
            scales[key] = Fraction(float(np.float32(given[ordered.index(key)])))
    codes = bytearray()
    for (t, h, d), value in values.items():
        sign = bits[t][h][d] >> sum(widths) << 7
        if t >= valid:
            codes.append(0)
        elif isinstance(value, str):
            codes.append(sign | (0x7F if value == "nan" else top_finite(name)))
        else:
            quotient = round_to(value / scales[keys[scale](t, h)], "fp32")
            codes.append(sign | round_to(value_of(quotient, "fp32"), name))
    row = struct.pack("<BBH12x", 0, 0, valid) + codes + bytes(-len(codes) % 16)
    if not given:
        row += struct.pack(f"<{len(ordered)}f", *(float(scales[key]) for key in ordered))
    row += bytes(-len(row) % 16)
    rows = encode(codec, block, "reference", num_valid)
    assert rows.payload.numpy().tobytes() == row
    assert rows.nbytes.tolist() == [len(row)] == [codec.max_nbytes(spec)]
