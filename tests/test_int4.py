"""int4 against its definition: an encoder and a decoder in rationals, made from formats/int4.md."""

import itertools
import struct
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from boundaries import BLOCKS, make
from fp8_rows import DEVICE, ELEMENTS, decode, encode, random_blocks
from rationals import WIDTHS, round_to, top_finite, value_of
from strategies import in_suite

from kvcodec import BlockSpec, EncodedBlocks, Plan, get_codec
from kvcodec.bits import DTYPES, to_bits
from kvcodec.codecs.int4 import AXES, GROUPS, METAS, Int4
from kvcodec.errors import InvalidInputError
from kvcodec.registry import IMPLEMENTATIONS, why_unavailable

IMPLS = [i for i in IMPLEMENTATIONS if why_unavailable(Int4(), i, DEVICE) is None]
VARIANTS = [Int4(b, a, 16, m) for b, a, m in itertools.product((4, 2), AXES, METAS)]


def signed(bits, name):
    """Value of a pattern: a rational, or None for infinity and NaN."""
    sign, magnitude = divmod(bits, 1 << sum(WIDTHS[name]))
    value = value_of(magnitude, name)
    return None if isinstance(value, str) else -value if sign else value


def nearest(value, name):
    """Pattern nearest to a rational of either sign, saturating; +0 for 0."""
    return round_to(abs(value), name) | (value < 0) << sum(WIDTHS[name])


def fp32(value):
    """A rational rounded to fp32, as a rational; overflow is refused."""
    rounded = signed(nearest(value, "fp32"), "fp32")
    assert abs(rounded) < value_of(top_finite("fp32"), "fp32")
    return rounded


def toward(value, name, up):
    """Pattern of the next value of a format upward (of value >= 0), or downward."""
    magnitude = round_to(abs(value), name)
    outward = up or value < 0
    if outward and value_of(magnitude, name) < abs(value):
        magnitude = min(magnitude + 1, top_finite(name))
    if not outward and value_of(magnitude, name) > abs(value):
        magnitude -= 1
    return magnitude | (value < 0) << sum(WIDTHS[name])


def align(n):
    return -(-n // 16) * 16


def geometry(codec, shape):
    """Bytes of the parts, and the index of the group of an element (token, head, channel)."""
    tokens, heads, dim = shape
    size = {"fp16": 2, "bf16": 2, "fp32": 4}[codec.meta]
    groups = -(-(dim if codec.axis == "token" else tokens) // codec.group)
    if codec.axis == "token":
        count = tokens * heads * groups
        return count, size, lambda t, h, d: (t * heads + h) * groups + d // codec.group
    count = groups * heads * dim
    return count, size, lambda t, h, d: (t // codec.group * heads + h) * dim + d


def dequantize(row, codec, shape, element):
    """Element patterns of a row, written from the page with struct and rationals only."""
    tokens, heads, dim = shape
    count, size, group_of = geometry(codec, shape)
    mode, reserved, num_valid = struct.unpack_from("<BBH", row)
    assert (mode, reserved, row[4:16]) == (0, 0, bytes(12))
    scales_at = align(16 + tokens * heads * dim * codec.bits // 8)
    zeros_at = scales_at + align(count * size)
    assert len(row) == zeros_at + align(count * size)
    letter, out = {2: "<H", 4: "<I"}[size], []
    for t, h, d in itertools.product(range(tokens), range(heads), range(dim)):
        if t >= num_valid:
            out.append(0)
            continue
        at = ((t * heads + h) * dim + d) * codec.bits
        code = row[16 + at // 8] >> at % 8 & ((1 << codec.bits) - 1)
        group = group_of(t, h, d)
        scale, zero = (
            signed(struct.unpack_from(letter, row, begin + size * group)[0], codec.meta) or 0
            for begin in (scales_at, zeros_at)
        )
        total = signed(nearest(code * scale, "fp32"), "fp32") + zero
        total = signed(nearest(total, "fp32"), "fp32")
        out.append(nearest(total, element))
    return out


def quantize(block, codec, element, num_valid):
    """The row of a block of patterns [T, H, D], by the encoder of the page."""
    count, size, group_of = geometry(codec, block.shape)
    groups = [[] for _ in range(count)]
    for (t, h, d), bits in np.ndenumerate(block):
        if t < num_valid:
            groups[group_of(t, h, d)].append(int(bits))
    top, scales, zeros = (1 << codec.bits) - 1, [], []
    for members in groups:
        values = [v for v in (signed(bits, element) for bits in members) if v is not None]
        low, high = (min(values), max(values)) if values else (Fraction(0), Fraction(0))
        zeros.append(toward(low, codec.meta, up=False))
        step = fp32(fp32(high - signed(zeros[-1], codec.meta)) / top)
        scales.append(toward(step, codec.meta, up=True))
    packed = bytearray(block.size * codec.bits // 8)
    for i, ((t, h, d), bits) in enumerate(np.ndenumerate(block)):
        if t >= num_valid:
            continue
        x, group = signed(int(bits), element), group_of(t, h, d)
        scale, zero = signed(scales[group], codec.meta), signed(zeros[group], codec.meta)
        negative, magnitude = divmod(int(bits), 1 << sum(WIDTHS[element]))
        if x is None:
            code = top if value_of(magnitude, element) == "inf" and not negative else 0
        elif scale == 0:
            code = top if fp32(x - zero) > 0 else 0
        else:
            code = round(min(max(fp32(fp32(x - zero) / scale), 0), top))
        packed[i * codec.bits // 8] |= code << i * codec.bits % 8
    row = struct.pack("<BBH12x", 0, 0, num_valid) + packed
    for meta in (scales, zeros):
        row += bytes(-len(row) % 16)
        row += b"".join(int(bits).to_bytes(size, "little") for bits in meta)
    return row + bytes(-len(row) % 16)


def shape_of(codec):
    """Two groups along the cut axis, the second cut short."""
    return (2, 2, 20) if codec.axis == "token" else (19, 2, 8)


def page_blocks(codec, spec, seed=0):
    """Random blocks without overflow of fp32, some of whose groups are constant or zero."""
    blocks = random_blocks(spec, 3, seed)
    blocks[1, :, 0] = 0.7
    blocks[1, :, 1, :6] = -0.0
    blocks[2, :, :, :5] = 3e-8
    return blocks


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("codec", VARIANTS, ids=str)
def test_the_reference_row_is_what_the_format_page_says(codec, element):
    spec = BlockSpec(*shape_of(codec), DTYPES[element])
    blocks = page_blocks(codec, spec)
    valid = [spec.block_size, spec.block_size - 1, 1]
    rows = encode(codec, blocks, "reference", valid)
    for row, bits, filled in zip(rows.payload.numpy(), to_bits(blocks), valid, strict=True):
        assert row.tobytes() == quantize(bits, codec, element, filled)
    assert rows.nbytes.tolist() == [codec.max_nbytes(spec)] * 3


@pytest.mark.parametrize("impl", in_suite(IMPLS))
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("codec", VARIANTS, ids=str)
def test_rows_decode_as_the_format_page_says(codec, element, impl):
    spec = BlockSpec(*shape_of(codec), DTYPES[element])
    valid = [spec.block_size, spec.block_size - 1, 0]
    rows = encode(codec, page_blocks(codec, spec, 1), impl, valid)
    for row, block in zip(rows.payload.numpy(), to_bits(decode(rows, impl)), strict=True):
        want = dequantize(row.tobytes(), codec, spec.shape, element)
        assert block.reshape(-1).tolist() == want


@pytest.mark.parametrize("impl", in_suite(IMPLS))
@pytest.mark.parametrize("codec", VARIANTS, ids=str)
def test_any_scale_and_zero_decodes_as_the_format_page_says(codec, impl):
    """Infinity, NaN, negative scales, subnormals: no writer makes them, every reader agrees."""
    spec = BlockSpec(*shape_of(codec), torch.float16)
    rng = np.random.default_rng(3)
    rows = encode(codec, random_blocks(spec, 1), "reference")
    metas = [0, 1, 0x8000, 0x7C00, 0xFC00, 0x7C01, 0xFFFF, 0x7BFF, 0x7F80, 0x0400, 0x3C00, 0xB555]
    size = 2 if codec.meta != "fp32" else 4
    begin = align(16 + spec.numel * codec.bits // 8)
    count = (rows.payload.shape[1] - begin) // size
    fields = rng.choice(metas, count).astype(f"<u{size}") << (0 if size == 2 else 16)
    row = rows.payload.numpy()[0]
    row[begin:] = fields.astype(f"<u{size}").view(np.uint8)
    want = dequantize(row.tobytes(), codec, spec.shape, "fp16")
    assert to_bits(decode(rows, impl)).reshape(-1).tolist() == want


def half_a_step(codec, rows):
    """What the page allows between an element and the sum before its last rounding."""
    part = rows.payload.numpy()[:, align(16 + rows.spec.numel * codec.bits // 8) :]
    shape = codec.meta_shape(rows.spec)
    size = METAS[codec.meta].itemsize
    scales = part[:, : size * int(np.prod(shape))].copy().view(f"<u{size}")
    values = torch.from_numpy(scales.astype(f"i{size}")).view(METAS[codec.meta].dtype).double()
    spread = np.arange(rows.spec.shape[AXES[codec.axis]]) // codec.group
    steps = values.view(-1, *shape).index_select(AXES[codec.axis] + 1, torch.from_numpy(spread))
    return steps * (0.5 + codec.top * 2.0**-22)


@pytest.mark.parametrize("meta", METAS)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("bits", [4, 2])
def test_the_error_is_half_a_step_and_the_stated_roundings(bits, axis, meta):
    """Gaussian, offset, outlier and tiny groups alike; the element's own rounding is apart."""
    codec, spec = Int4(bits, axis, 32, meta), BlockSpec(40, 2, 72, torch.float32)
    names = ("zero_token", "outlier_channels", "amax_1e_7", "zero_channel", "one_value_left")
    blocks = torch.stack([*(make(name, spec) for name in names), make("zero_head", spec) + 100])
    rows = encode(codec, blocks, "reference")
    error = (decode(rows, "reference").double() - blocks.double()).abs()
    assert bool((error <= half_a_step(codec, rows) + 2.0**-23 * blocks.abs().double()).all())


def relative_mse(codec, blocks):
    decoded = decode(encode(codec, blocks, "reference"), "reference").double()
    return float((decoded - blocks.double()).square().sum() / blocks.double().square().sum())


@pytest.mark.parametrize("axis", AXES)
def test_every_width_has_the_error_of_its_steps(axis):
    """A width that is accepted and ignored would show; on Gaussian data, groups of 32."""
    blocks = torch.randn(4, 64, 2, 128, generator=torch.Generator().manual_seed(1))
    four, two = (relative_mse(Int4(bits, axis), blocks) for bits in (4, 2))
    assert 0.0055 < four < 0.0070  # measured .0062
    assert 0.13 < two < 0.16  # measured .148


def test_channels_that_stand_out_cost_the_others_nothing_along_a_channel():
    """What KIVI is about: outlier channels of keys widen the groups of tokens, not of channels."""
    spec = BlockSpec(64, 2, 64, torch.bfloat16)
    block = make("outlier_channels", spec)[None]
    quiet = torch.ones(64, dtype=torch.bool)
    quiet[:: max(1, 64 // 3)] = False
    errors = {}
    for axis in AXES:
        back = decode(encode(Int4(axis=axis), block, "reference"), "reference")
        difference = (back.float() - block.float())[..., quiet]
        errors[axis] = float(difference.square().sum() / block[..., quiet].float().square().sum())
    assert errors["channel"] < 0.007
    assert errors["token"] > 0.5


@pytest.mark.parametrize("impl", in_suite(IMPLS))
@pytest.mark.parametrize("name", BLOCKS)
def test_named_blocks_decode_to_finite_values_inside_their_groups_range(name, impl):
    codecs = Int4(), Int4(2, "channel", 16), Int4(4, "token", 16, "fp32")
    for element, codec in zip(ELEMENTS, codecs, strict=True):
        spec = BlockSpec(16, 2, 32, DTYPES[element])
        block = make(name, spec)[None]
        rows = encode(codec, block, impl)
        assert torch.equal(rows.payload, encode(codec, block, "reference").payload)
        decoded = decode(rows, impl).double()
        finite = torch.where(block.isfinite(), block, 0).double()
        assert bool(decoded.isfinite().all())
        slack = 1.02 if codec.meta == "fp32" else 1.2
        assert decoded.abs().max() <= slack * finite.abs().max() + 2.0**-24


@pytest.mark.parametrize("impl", in_suite(IMPLS))
@pytest.mark.parametrize("axis", AXES)
def test_infinity_takes_its_end_of_the_range_and_nan_the_lower_one(axis, impl):
    """16 groups of values from -2 to 1; the specials stand where no group loses its ends."""
    groups = torch.linspace(-2, 1, 16).repeat(16, 1)
    for at, special in (3, "nan"), (5, "inf"), (7, "-inf"):
        groups[:, at] = float(special)
    codec = Int4(axis=axis, group=16, meta="fp32")
    block = groups if axis == "token" else groups.T
    back = decode(encode(codec, block.reshape(1, 16, 1, 16), impl), impl).view(16, 16)
    back = back if axis == "token" else back.T
    assert bool((back[:, [0, 3, 7]] == -2).all())
    assert torch.equal(back[:, 5], back[:, 15])
    assert bool((back[:, 15] - 1).abs().max() < 1e-6)


def test_values_that_fp16_cannot_hold_need_another_meta():
    """Past 65504 zeros and scales saturate, as the page says; bf16 keeps the range."""
    block = torch.linspace(-3e6, 3e6, 64).view(1, 1, 1, 64).to(torch.bfloat16)
    back = decode(encode(Int4(), block, "reference"), "reference").float()
    assert back.min() == -65536  # -65504 in bf16
    wide = decode(encode(Int4(meta="bf16"), block, "reference"), "reference").float()
    assert float((wide - block.float()).abs().max()) < 3e6 / 15


def test_refusals_say_what_to_do():
    keys, spec = Int4(axis="channel"), BlockSpec(16, 2, 64, torch.bfloat16)
    assert keys.supports(replace(spec, block_size=32)) is None
    assert keys.supports(spec).startswith("block_size 16 is smaller than the group of 32 tokens; ")
    assert Int4().supports(replace(spec, head_dim=16)).startswith("head_dim 16 is smaller")
    assert Int4(2).supports(replace(spec, head_dim=66)).startswith("head_dim 66 is not a multiple")
    assert Int4().supports(replace(spec, head_dim=33)).startswith("head_dim 33 is not a multiple")
    for field, value in ("bits", 3), ("axis", "head"), ("group", 48), ("meta", "fp8"):
        with pytest.raises(InvalidInputError, match=f"int4: {field} is {value!r}, wanted one of"):
            replace(keys, **{field: value})


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("meta", METAS)
def test_every_bit_is_counted(group, meta):
    spec = BlockSpec(128, 1, 128, torch.bfloat16)
    for bits, axis in itertools.product((4, 2), AXES):
        nbytes = Int4(bits, axis, group, meta).max_nbytes(spec) - 16
        assert 8 * nbytes / spec.numel == bits + 16 * METAS[meta].itemsize / group


@pytest.mark.parametrize("bits", [4, 2])
def test_kivi_plans_cut_keys_along_tokens_and_values_along_channels(bits):
    plan = Plan.parse(f"kivi-{bits}")
    assert (plan.key, plan.value) == (Int4(bits, "channel"), Int4(bits, "token"))
    assert get_codec(str(plan.key)) == plan.key


@pytest.mark.parametrize("impl", in_suite([i for i in IMPLS if i != "reference"]))
@pytest.mark.parametrize(
    "codec", [Int4(), Int4(2, "channel", 16, "fp32"), Int4(2), Int4(4, "channel")], ids=str
)
@pytest.mark.parametrize("shape", [(35, 3, 100), (32, 1, 64), (130, 2, 36)])
def test_rows_and_blocks_equal_the_reference(shape, codec, impl):
    for seed, element in enumerate(ELEMENTS):
        spec = BlockSpec(*shape, DTYPES[element])
        noise = np.random.default_rng(seed).bytes(spec.nbytes)
        blocks = torch.cat([
            random_blocks(spec, 2, seed),
            torch.frombuffer(bytearray(noise), dtype=spec.dtype).reshape(1, *shape),
        ])  # fmt: skip
        valid = [shape[0], shape[0] - 3, shape[0] // 2]
        rows = encode(codec, blocks, impl, valid)
        want = encode(codec, blocks, "reference", valid)
        assert torch.equal(rows.payload, want.payload)
        assert np.array_equal(to_bits(decode(want, impl)), to_bits(decode(want, "reference")))


def test_rows_at_any_alignment_are_read_and_written_by_host_kernels():
    spec = BlockSpec(2, 1, 32, torch.bfloat16)
    blocks = random_blocks(spec, 3)
    want = encode(Int4(), blocks, "reference")
    for impl in sorted({"vector", "native"} & set(IMPLS)):
        buffer = torch.empty(3, want.payload.shape[1] + 3, dtype=torch.uint8)
        rows = EncodedBlocks(Int4(), spec, buffer[:, 3:], want.nbytes)
        Int4().compress(blocks, [0, 1, 2], out=rows, impl=impl)
        assert torch.equal(rows.payload, want.payload)
        assert np.array_equal(to_bits(decode(rows, impl)), to_bits(decode(want, "reference")))
