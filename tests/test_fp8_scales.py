"""fp8: scales of degenerate data, error bounds, and supplied scales."""

import math

import numpy as np
import pytest
import torch
from boundaries import BLOCKS, make
from fp8_rows import DEVICE, IMPLS, SCALES, codes_of, encode, fmt, random_blocks, scales_of

from kvcodec import BlockSpec, exact
from kvcodec.bits import DTYPES
from kvcodec.codecs.fp8 import Fp8
from kvcodec.errors import InvalidInputError, UnsupportedSpecError


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", BLOCKS)
def test_degenerate_blocks(name, impl):
    """Scales stay finite and positive, zeros stay zeros, and the error stays in its bound."""
    for scale, element, dtype in ("token_head", "bf16", "e4m3"), ("head", "fp32", "e5m2"), (
        "block", "fp16", "e4m3",
    ):  # fmt: skip
        codec = Fp8(dtype=dtype, scale=scale)
        spec = BlockSpec(4, 3, 20, DTYPES[element])
        block = make(name, spec)[None]
        rows = encode(codec, block, impl)
        assert torch.equal(rows.payload, encode(codec, block, "reference").payload)
        scales = scales_of(rows)
        assert (np.isfinite(scales) & (scales >= 2.0**-100)).all()
        x = block.to(torch.float64).numpy()
        values = exact.widen(codes_of(rows), codec.target).astype(np.float64)
        assert np.array_equal(np.isnan(values), np.isnan(x))
        assert (values[x == 0] == 0).all()
        finite = np.isfinite(x)
        assert (np.abs(values[np.isinf(x)]) == torch.finfo(codec.target.dtype).max).all()
        bound = error_bound(x, scales.astype(np.float64), codec.target)
        assert (np.abs(values * scales - x)[finite] <= bound[finite]).all()


def error_bound(x, scales, target):
    """Bound of formats/fp8.md: half a code's spacing, and the rounding of the quotient."""
    lowest = 1 - exact.codes_of(target).bias
    with np.errstate(all="ignore"):
        q = np.abs(x / scales)
        exponent = np.where(q == 0, lowest, np.floor(np.log2(q)))
        spacing = 2.0 ** (np.maximum(exponent, lowest) - target.mantissa_bits)
        return (spacing / 2 + 2.0**-24 * q) * scales


@pytest.mark.parametrize("impl", IMPLS)
def test_values_up_to_a_groups_maximum_err_by_half_a_code(impl):
    """Every e4m3 value from 128 to 448 and the values between, under a maximum of 448 exactly."""
    x = torch.arange(128, 449, dtype=torch.float32)
    block = torch.cat([x, x[-1:].expand(-len(x) % 8)]).reshape(1, 1, 1, -1)
    rows = encode(Fp8(), block, impl)
    assert scales_of(rows).reshape(-1).tolist() == [1.0]
    values = exact.widen(codes_of(rows), fmt("e4m3fn"))
    error = np.abs(values - block.numpy())
    assert (error <= np.where(block.numpy() < 256, 8, 16)).all()
    assert values.reshape(-1)[[0, -1]].tolist() == [128.0, 448.0]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("scale", SCALES)
def test_nan_of_unused_slots_reaches_no_scale_and_no_code(scale, impl):
    codec = Fp8(scale=scale)
    spec = BlockSpec(4, 2, 16, torch.bfloat16)
    clean, dirty = random_blocks(spec, 5, specials=False), random_blocks(spec, 5, specials=False)
    valid = [0, 1, 3, 4, 2]
    for i, count in enumerate(valid):
        dirty[i, :count] = clean[i, :count]
        dirty[i, count:] = float("nan")
    rows, other = encode(codec, clean, impl, valid), encode(codec, dirty, impl, valid)
    assert torch.equal(rows.payload, other.payload)
    assert torch.equal(rows.payload, encode(codec, clean, "reference", valid).payload)
    for i, count in enumerate(valid):
        assert not codes_of(rows)[i, count:].any()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf, 2.0**-101, 2.0**101])
def test_supplied_scales_that_are_no_scales_are_refused(bad):
    with pytest.raises(InvalidInputError, match="given scale"):
        Fp8(scale="block", given=(bad,))
    with pytest.raises(InvalidInputError, match="given scale"):
        Fp8(scale="head", given=(1.0, bad))


def test_supplied_scales_of_another_shape_are_refused():
    with pytest.raises(InvalidInputError, match="takes 1 given scale, got 2"):
        Fp8(scale="block", given=(1.0, 2.0))
    with pytest.raises(InvalidInputError, match="need scale=block or scale=head"):
        Fp8(scale="token_head", given=(1.0,))
    cache = torch.zeros(1, 4, 3, 16, dtype=torch.bfloat16, device=DEVICE)
    with pytest.raises(UnsupportedSpecError, match="2 given scales for 3 heads"):
        Fp8(scale="head", given=(1.0, 2.0)).compress(cache, [0])


@pytest.mark.parametrize("parameters", [{"dtype": "e3m4"}, {"scale": "row"}])
def test_unknown_parameters_are_refused(parameters):
    with pytest.raises(InvalidInputError, match="wanted"):
        Fp8(**parameters)
