"""fp8 and mxfp8 on the host: every bf16 pattern and code, where the fast paths begin and end."""

import numpy as np
import pytest
import torch
from test_native import ISAS, decode, encode, used

from kvcodec import BlockSpec, get_codec
from kvcodec.bits import from_bits, to_bits
from kvcodec.kernels._dense import reference_kernel
from kvcodec.kernels._microscaling_native import Mxfp8Native
from kvcodec.kernels.fp8_native import Fp8Native

SCALES = (2.0**-100, 1e-4, 0.0123, 1.0, 4 / 3, 1.9999999, 117.3, 2.0**100)
PATTERNS = np.arange(1 << 16, dtype=np.uint16)


@pytest.fixture(params=[index for index, _ in ISAS] or [0], ids=[name for _, name in ISAS] or ["-"])
def isa(request):
    return request.param


def block_of(patterns, head_dim=128):
    """bf16 [1, tokens, 1, head_dim]."""
    return from_bits(patterns.reshape(1, -1, 1, head_dim), torch.bfloat16)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_every_bf16_pattern_is_divided_alike(isa, dtype, scale):
    codec = get_codec(f"fp8:dtype={dtype},scale=block,given={scale!r}")
    block = block_of(PATTERNS)
    assert used(encode(Fp8Native(isa), codec, block)) == used(
        encode(reference_kernel(codec), codec, block)
    )


@pytest.mark.parametrize("scale", [*SCALES, 2.0**-101, 2.0**101, 2.0**-140, -3.0, np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_every_code_is_multiplied_alike(isa, dtype, scale):
    """In order, with and without NaN in a piece of 32, and with a piece that is cut."""
    codec, spec = get_codec(f"fp8:dtype={dtype},scale=block"), BlockSpec(4, 1, 136, torch.bfloat16)
    rows = encode(Fp8Native(isa), codec, torch.zeros(1, *spec.shape, dtype=spec.dtype))
    end = 16 + spec.numel
    rows.payload[0, 16:end] = torch.arange(spec.numel).to(torch.uint8)
    rows.payload[0, end : end + 4] = torch.from_numpy(np.array([scale], np.float32).view(np.uint8))
    np.testing.assert_array_equal(decode(Fp8Native(isa), rows), to_bits(codec.decode(rows)))


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_every_bf16_pattern_is_shifted_alike(isa, dtype):
    """A group's largest value at any exponent, and below it every value there is."""
    codec = get_codec(f"mxfp8:dtype={dtype}")
    for field in (0, 1, 9, 10, 11, 17, 18, 25, 26, 33, 120, 127, 253, 254, 255):
        top = field << 7 | 0x55
        rest = np.unique(
            np.concatenate([PATTERNS[: top + 1 : 7], PATTERNS[max(top - 3000, 0) : top]])
        )
        rest = np.resize(rest, -(-len(rest) // 124) * 124).reshape(-1, 31)
        rest = rest | (rest.sum(1, keepdims=True) % 2 << 15).astype(np.uint16)
        groups = np.concatenate([rest, np.full((len(rest), 1), top, np.uint16)], 1)
        block = block_of(groups)
        rows = encode(reference_kernel(codec), codec, block)
        assert used(encode(Mxfp8Native(isa), codec, block)) == used(rows)
        np.testing.assert_array_equal(decode(Mxfp8Native(isa), rows), to_bits(codec.decode(rows)))


def test_channels_may_have_any_scale_of_a_row(isa):
    """Scales of a damaged row too: NaN, infinite, negative, past what an encoder writes."""
    codec, spec = get_codec("fp8:scale=channel"), BlockSpec(4, 2, 40, torch.bfloat16)
    rng = np.random.default_rng(0)
    cache = from_bits(rng.integers(0, 1 << 16, (1, *spec.shape)).astype(np.uint16), torch.bfloat16)
    rows = encode(reference_kernel(codec), codec, cache)
    assert used(encode(Fp8Native(isa), codec, cache)) == used(rows)
    for scales in ([1.0], [2.0**101, 1.0], [np.nan, -1.0, np.inf, 2.0**-120, 0.0, 3.0]):
        values = np.resize(np.array(scales, np.float32), spec.num_kv_heads * spec.head_dim)
        begin = 16 + spec.numel
        rows.payload[0, begin : begin + values.nbytes] = torch.from_numpy(values.view(np.uint8))
        rows.payload[0, 16:begin] = torch.from_numpy(
            rng.integers(0, 256, spec.numel).astype(np.uint8)
        )
        np.testing.assert_array_equal(decode(Fp8Native(isa), rows), to_bits(codec.decode(rows)))
