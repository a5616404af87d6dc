"""kvcodec.exact against rationals, for every pattern of the small formats."""

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from rationals import NAN, WIDTHS, convert, midpoints, round_to, top_finite, value_of

from kvcodec import exact
from kvcodec.bits import DTYPES, FORMATS, to_bits

NARROW = ("bf16", "fp16", "e4m3fn", "e5m2")
FP8 = ("e4m3fn", "e5m2")
ML_DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def fmt(name):
    return FORMATS[DTYPES[name]]


def every_pattern(name):
    return np.arange(1 << (1 + sum(WIDTHS[name])), dtype=f"u{fmt(name).itemsize}")


def random_fp32(n=1 << 20):
    """Random patterns: all exponents alike, with some 8000 NaNs."""
    return np.random.default_rng(3).integers(0, 1 << 32, n, np.uint32)


def both_signs(magnitudes):
    a = np.array(magnitudes, np.uint32)
    return np.concatenate([a, a | np.uint32(1 << 31)])


@pytest.mark.parametrize("name", NARROW)
def test_widen_is_exact_for_every_pattern(name):
    got = exact.widen(every_pattern(name), fmt(name)).view(np.uint32)
    half = len(got) // 2
    values = [value_of(code, name) for code in range(half)]
    widened = [value_of(int(bits), "fp32") for bits in got[:half]]
    assert widened == values
    assert np.array_equal(got[half:], got[:half] | np.uint32(1 << 31))


def test_widen_of_fp32_changes_only_nan_payloads():
    bits = random_fp32()
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    want = np.where(nan, (bits & 0x80000000) | 0x7FC00000, bits)
    assert np.array_equal(exact.widen(bits, fmt("fp32")).view(np.uint32), want)


@pytest.mark.parametrize("name", [*NARROW, "fp32"])
def test_narrow_returns_what_widen_made(name):
    bits = random_fp32() if name == "fp32" else every_pattern(name)
    e, m = WIDTHS[name]
    magnitude, sign = bits & ((1 << (e + m)) - 1), bits >> (e + m) << (e + m)
    top = top_finite(name)
    want = np.minimum(magnitude, top)  # infinity saturates
    has_inf = name != "e4m3fn"
    want = np.where(magnitude > top + has_inf, NAN[name], want) | sign
    assert np.array_equal(exact.narrow(exact.widen(bits, fmt(name)), fmt(name)), want)


@pytest.mark.parametrize(("source", "target"), [*itertools.product(("bf16", "fp16"), FP8)])
def test_narrow_rounds_every_16_bit_value_like_rationals(source, target):
    bits = every_pattern(source)
    got = exact.narrow(exact.widen(bits, fmt(source)), fmt(target))
    assert got.tolist() == [convert(b, source, target) for b in bits.tolist()]


@pytest.mark.parametrize("target", NARROW)
def test_narrow_decides_at_every_midpoint(target):
    """Neighbours of the midpoint go apart, the midpoint goes to the even code."""
    points = midpoints(target)
    if target not in FP8:
        points = (*points[:3072], *points[3072::61], *points[-30:])  # fp16's subnormals end at 3072
    bits = both_signs(points)
    got = exact.narrow(bits.view(np.float32), fmt(target))
    assert got.tolist() == [convert(b, "fp32", target) for b in bits.tolist()]


@pytest.mark.parametrize("target", NARROW)
def test_narrow_agrees_with_ml_dtypes_and_torch_in_range(target):
    """Only up to the largest finite value: beyond it libraries differ, and for NaN."""
    limit = float(value_of(top_finite(target), target))
    x = random_fp32().view(np.float32)
    x = x[np.abs(x) <= limit]
    assert x.size > 500_000
    want = exact.narrow(x, fmt(target))
    assert np.array_equal(x.astype(ML_DTYPES[target]).view(want.dtype), want)
    assert np.array_equal(to_bits(torch.from_numpy(x).to(DTYPES[target])), want)


def test_narrow_to_fp32_saturates_infinity():
    x = np.array([np.inf, -np.inf], np.float32)
    assert exact.narrow(x, fmt("fp32")).tolist() == [0x7F7FFFFF, 0xFF7FFFFF]


@pytest.mark.parametrize("operation", [exact.mul, exact.div])
def test_mul_and_div_round_rationals_once(operation):
    """Subnormal results included: half of the pairs are made to land there."""
    rng = np.random.default_rng(11)
    low, high = 0x00800000, 0x7F000000
    a, b = rng.integers(low, high, (2, 4000)).astype(np.uint32)
    b[::2] = (b[::2] & 0x7FFFFF) | (0x02000000 if operation is exact.mul else 0x7D000000)
    got = operation(a.view(np.float32), b.view(np.float32)).view(np.uint32)
    checked = 0
    for x, y, z in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        p, q = value_of(x, "fp32"), value_of(y, "fp32")
        true = p * q if operation is exact.mul else p / q
        if true < Fraction(2) ** 127:  # beyond it IEEE overflows and the oracle saturates
            assert z == round_to(true, "fp32")
            checked += z < low
    assert checked > 200


def test_finite_amax_passes_over_infinity_and_nan():
    x = np.array([[1.0, -3.0, np.inf], [np.nan, -np.inf, -0.0]], np.float32)
    assert exact.finite_amax(x, (1,)).tolist() == [[3.0], [0.0]]
    assert exact.finite_amax(x, (0, 1)).tolist() == [[3.0]]
    assert not np.signbit(exact.finite_amax(x, (1,))).any()


def test_is_nan_goes_by_bits():
    bits = np.array([0x7F800000, 0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0], np.uint32)
    assert exact.is_nan(bits.view(np.float32)).tolist() == [False, True, True, True, False]
