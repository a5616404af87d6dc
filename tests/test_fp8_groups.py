"""fp8: what shares a scale, powers of two, and what damaged scales decode to."""

import math
import struct

import numpy as np
import pytest
import torch
from boundaries import BLOCKS, make
from fp8_rows import IMPLS, decode, encode, random_blocks

from kvcodec import BlockSpec, get_codec
from kvcodec.bits import DTYPES, to_bits
from kvcodec.errors import InvalidInputError

SPEC = BlockSpec(4, 2, 128, DTYPES["bf16"])
GROUPS = {  # elements of the group of (token, head, dim): slices of a block
    "token": lambda t, h, d: (slice(t, t + 1), slice(None), slice(None)),
    "channel": lambda t, h, d: (slice(None), slice(h, h + 1), slice(d, d + 1)),
    "group": lambda t, h, d: (
        slice(t, t + 1),
        slice(h, h + 1),
        slice(d // 64 * 64, d // 64 * 64 + 64),
    ),
    "head": lambda t, h, d: (slice(None), slice(h, h + 1), slice(None)),
}
SHAPES = {"token": (4, 1, 1), "channel": (1, 2, 128), "group": (4, 2, 2), "head": (1, 2, 1)}


def codec_of(scale, scale_dtype="fp32", dtype="e4m3"):
    group = ",group=64" if scale == "group" else ""
    return get_codec(f"fp8:dtype={dtype},scale={scale}{group},scale_dtype={scale_dtype}")


def stored(rows, scale, scale_dtype):
    """The scales part of the first row, by the page."""
    count, begin = math.prod(SHAPES[scale]), 16 + SPEC.numel
    data = rows.payload[0, begin:].numpy().tobytes()
    kind = "B" if scale_dtype == "ue8m0" else "f"
    return np.array(struct.unpack_from(f"<{count}{kind}", data)).reshape(SHAPES[scale])


@pytest.mark.parametrize("scale", GROUPS)
def test_a_scale_is_the_largest_magnitude_of_its_group(scale):
    block = random_blocks(SPEC, 1, specials=False)
    x = block[0].to(torch.float64).numpy()
    scales = stored(encode(codec_of(scale), block, "reference"), scale, "fp32")
    powers = stored(encode(codec_of(scale, "ue8m0"), block, "reference"), scale, "ue8m0")
    rng = np.random.default_rng(0)
    for _ in range(40):
        t, h, d = (int(rng.integers(n)) for n in SPEC.shape)
        amax = np.abs(x[GROUPS[scale](t, h, d)]).max()
        shape = SHAPES[scale]
        at = tuple(i * n // size for i, n, size in zip((t, h, d), shape, SPEC.shape, strict=True))
        assert scales[at] == np.float32(amax) / np.float32(448)
        wanted = math.ceil(math.log2(max(np.float32(amax) / np.float32(448), 1e-4)))
        assert powers[at] - 127 == wanted


@pytest.mark.parametrize("impl", [i for i in IMPLS if i != "reference"])
@pytest.mark.parametrize("scale", GROUPS)
@pytest.mark.parametrize("scale_dtype", ["fp32", "ue8m0"])
def test_every_implementation_equals_the_reference(impl, scale, scale_dtype):
    n = 1 if impl == "triton" else 4  # interpreted
    blocks = random_blocks(SPEC, n, seed=3)
    valid = [3, 0, 4, 1][:n]
    for dtype in ("e4m3", "e5m2")[: 1 if impl == "triton" else 2]:
        codec = codec_of(scale, scale_dtype, dtype)
        rows = encode(codec, blocks, impl, valid)
        want = encode(codec, blocks, "reference", valid)
        assert torch.equal(rows.payload, want.payload)
        assert np.array_equal(to_bits(decode(want, impl)), to_bits(decode(want, "reference")))


@pytest.mark.parametrize("impl", [i for i in IMPLS if i != "reference"])
def test_degenerate_blocks_under_powers_of_two(impl):
    for element in ("bf16", "fp16", "fp32")[: 1 if impl == "triton" else 3]:
        spec = BlockSpec(4, 2, 64, DTYPES[element])
        names = list(BLOCKS)[:: 3 if impl == "triton" else 1]
        blocks = torch.stack([make(name, spec) for name in names])
        for scale in ("group", "channel"):
            codec = codec_of(scale, "ue8m0")
            rows = encode(codec, blocks, impl)
            assert torch.equal(rows.payload, encode(codec, blocks, "reference").payload)


ODD_SCALES = (0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800000, 0x7F800000, 0xBF800000, 0, 1 << 31)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("element", ["bf16", "fp16", "fp32"])
def test_damaged_scales_decode_alike_and_nan_has_the_sign_of_its_code(impl, dtype, element):
    """NaN, infinite, negative and zero scales under every code."""
    codec = get_codec(f"fp8:dtype={dtype}")
    spec = BlockSpec(len(ODD_SCALES), 1, 256, DTYPES[element])
    rows = encode(codec, torch.zeros(1, *spec.shape, dtype=spec.dtype), "reference")
    codes = np.tile(np.arange(256, dtype=np.uint8), len(ODD_SCALES))
    scales = np.array(ODD_SCALES, "<u4").view(np.uint8)
    rows.payload[0, 16 : 16 + codes.size] = torch.from_numpy(codes)
    rows.payload[0, 16 + codes.size :][: scales.size] = torch.from_numpy(scales)
    found = decode(rows, impl)
    bits = to_bits(found).reshape(-1)
    assert np.array_equal(bits, to_bits(decode(rows, "reference")).reshape(-1))
    nan = torch.isnan(found).reshape(-1).numpy()
    assert nan[: 3 * 256].all()
    sign = bits >> (8 * spec.dtype.itemsize - 1)
    assert np.array_equal(sign[nan], codes[nan] >> 7)


@pytest.mark.parametrize("impl", IMPLS)
def test_every_power_of_two_decodes_by_the_page(impl):
    codec = get_codec("fp8:scale=token,scale_dtype=ue8m0")
    spec = BlockSpec(256, 1, 64, torch.float32)
    rows = encode(codec, torch.ones(1, *spec.shape), "reference")
    rows.payload[0, 16 + spec.numel :] = torch.arange(256, dtype=torch.uint8)
    value = 448.0 if rows.payload[0, 16] == 0x7E else 256.0 if rows.payload[0, 16] == 0x78 else None
    assert value is not None
    found = decode(rows, impl)[0, :, 0, 0].to(torch.float64).numpy()
    most = float(torch.finfo(torch.float32).max)
    for power in range(255):
        assert found[power] == min(value * 2.0 ** (power - 127), most)
    assert np.isnan(found[255])


@pytest.mark.parametrize(
    "text",
    ["fp8:group=64", "fp8:scale=group,group=32", "fp8:scale_dtype=e5m2",
     "fp8:scale=channel,given=1.0", "fp8:scale=block,given=1.0,scale_dtype=ue8m0"],
)  # fmt: skip
def test_parameters_that_make_no_sense_are_refused(text):
    with pytest.raises(InvalidInputError):
        get_codec(text)


def test_groups_must_fill_the_head():
    spec = BlockSpec(4, 2, 96, torch.bfloat16)
    assert "multiple of group=128" in get_codec("fp8:scale=group").supports(spec)
