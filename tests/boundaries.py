"""Named boundary tables. Every codec and implementation runs the rows that concern it.

A value that was once converted wrongly, here or elsewhere, becomes a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kvcodec import BlockSpec

INF = float("inf")
UP, DOWN = 1 + 2.0**-23, 1 - 2.0**-24  # one fp32 step away from a power of two


@dataclass(frozen=True, slots=True)
class Cast:
    """An fp32 value under scale 1, and the values it becomes; the same with a minus sign."""

    name: str
    value: float
    e4m3: float
    e5m2: float


CASTS = (
    Cast("zero", 0.0, 0.0, 0.0),
    Cast("one", 1.0, 1.0, 1.0),
    Cast("a_detour_through_fp16_would_round_down", 400.2, 416.0, 384.0),
    Cast("a_detour_through_fp16_would_make_a_tie", 1.0625001, 1.125, 1.0),
    Cast("tie_goes_down_to_even", 1.0625, 1.0, 1.0),
    Cast("tie_goes_up_to_even", 1.1875, 1.25, 1.25),
    Cast("tie_carries_into_the_exponent", 1.9375, 2.0, 2.0),
    Cast("tie_of_e5m2_goes_down_to_even", 1.125, 1.125, 1.0),
    Cast("tie_of_e5m2_goes_up_to_even", 1.375, 1.375, 1.5),
    Cast("tie_of_e5m2_carries", 1.875, 1.875, 2.0),
    Cast("tie_below_the_largest_e4m3", 432.0, 448.0, 448.0),
    Cast("largest_e4m3", 448.0, 448.0, 448.0),
    Cast("past_the_largest_e4m3", 449.0, 448.0, 448.0),
    Cast("tie_with_the_e4m3_that_is_nan", 464.0, 448.0, 448.0),
    Cast("nearer_to_the_e4m3_that_is_nan", 465.0, 448.0, 448.0),
    Cast("the_e4m3_that_is_nan", 480.0, 448.0, 512.0),
    Cast("largest_e5m2", 57344.0, 448.0, 57344.0),
    Cast("below_the_tie_with_infinity", 61439.0, 448.0, 57344.0),
    Cast("tie_with_infinity", 61440.0, 448.0, 57344.0),
    Cast("infinity_of_e5m2", 65536.0, 448.0, 57344.0),
    Cast("large", 1e30, 448.0, 57344.0),
    Cast("largest_fp32", float(np.finfo(np.float32).max), 448.0, 57344.0),
    Cast("infinity", INF, 448.0, 57344.0),
    Cast("smallest_normal_e4m3", 2.0**-6, 2.0**-6, 2.0**-6),
    Cast("rounds_up_to_normal_e4m3", 15 * 2.0**-10, 2.0**-6, 2.0**-6),
    Cast("largest_subnormal_e4m3", 7 * 2.0**-9, 7 * 2.0**-9, 7 * 2.0**-9),
    Cast("tie_of_subnormals_goes_down", 5 * 2.0**-10, 2.0**-8, 5 * 2.0**-10),
    Cast("tie_of_subnormals_goes_up", 3 * 2.0**-10, 2.0**-8, 3 * 2.0**-10),
    Cast("smallest_subnormal_e4m3", 2.0**-9, 2.0**-9, 2.0**-9),
    Cast("half_of_it_is_a_tie_with_zero", 2.0**-10, 0.0, 2.0**-10),
    Cast("above_half_of_it", 2.0**-10 * UP, 2.0**-9, 2.0**-10),
    Cast("below_half_of_it", 2.0**-10 * DOWN, 0.0, 2.0**-10),
    Cast("smallest_normal_e5m2", 2.0**-14, 0.0, 2.0**-14),
    Cast("rounds_up_to_normal_e5m2", 7 * 2.0**-17, 0.0, 2.0**-14),
    Cast("smallest_subnormal_e5m2", 2.0**-16, 0.0, 2.0**-16),
    Cast("half_of_it_is_a_tie_with_zero_too", 2.0**-17, 0.0, 0.0),
    Cast("above_half_of_that", 2.0**-17 * UP, 0.0, 2.0**-16),
    Cast("smallest_normal_fp32", 2.0**-126, 0.0, 0.0),
    Cast("smallest_subnormal_fp32", 2.0**-149, 0.0, 0.0),
)


@dataclass(frozen=True, slots=True)
class CastE2M1:
    """A quotient and the E2M1 value it becomes; the same with a minus sign, NaN apart."""

    name: str
    value: float
    e2m1: float


CASTS_E2M1 = (
    CastE2M1("zero", 0.0, 0.0),
    CastE2M1("tie_with_zero", 0.25, 0.0),
    CastE2M1("above_the_tie_with_zero", 0.25 * UP, 0.5),
    CastE2M1("below_a_tie_that_goes_up", 0.75 * DOWN, 0.5),
    CastE2M1("a_reciprocal_would_break_this_tie", 0.75, 1.0),
    CastE2M1("tie_goes_down_to_one", 1.25, 1.0),
    CastE2M1("above_it", 1.25 * UP, 1.5),
    CastE2M1("tie_carries_into_the_exponent", 1.75, 2.0),
    CastE2M1("tie_goes_down_to_two", 2.5, 2.0),
    CastE2M1("above_that", 2.5 * UP, 3.0),
    CastE2M1("tie_goes_up_to_four", 3.5, 4.0),
    CastE2M1("below_it", 3.5 * DOWN, 3.0),
    CastE2M1("tie_goes_down_to_four", 5.0, 4.0),
    CastE2M1("above_the_last_tie", 5.0 * UP, 6.0),
    CastE2M1("largest_e2m1", 6.0, 6.0),
    CastE2M1("past_the_largest_e2m1", 7.5, 6.0),
    CastE2M1("smallest_subnormal", 2.0**-149, 0.0),
)


@dataclass(frozen=True, slots=True)
class Shared:
    """A group's largest magnitude and its E8M0 scales for E2M1, E4M3 and E5M2 codes."""

    name: str
    amax: float
    e2m1: int
    e4m3: int
    e5m2: int


SHARED_EXPONENTS = (
    Shared("zero", 0.0, 0, 0, 0),
    Shared("smallest_subnormal_fp32", 2.0**-149, 0, 0, 0),
    Shared("smallest_normal_fp32", 2.0**-126, 0, 0, 0),
    Shared("last_clamped_e2m1", 2.0**-125, 0, 0, 0),
    Shared("first_above_zero_e2m1", 2.0**-124, 1, 0, 0),
    Shared("first_above_zero_e4m3", 2.0**-118, 7, 1, 0),
    Shared("first_above_zero_e5m2", 2.0**-111, 14, 8, 1),
    Shared("amax_1e_30", 1e-30, 25, 19, 12),
    Shared("below_a_power_of_two", 4 * DOWN, 126, 120, 113),
    Shared("a_power_of_two", 4.0, 127, 121, 114),
    Shared("largest_e2m1", 6.0, 127, 121, 114),
    Shared("it_rounds_to_eight_and_saturates", 7.99, 127, 121, 114),
    Shared("largest_e4m3", 448.0, 133, 127, 120),
    Shared("largest_fp32", float(np.finfo(np.float32).max), 252, 246, 239),
)


@dataclass(frozen=True, slots=True)
class Store:
    """A code's value and a scale, and the element they decode to in each type."""

    name: str
    value: float
    scale: float
    bf16: float
    fp16: float
    fp32: float


BF16, FP16, FP32 = (
    float(torch.finfo(dtype).max) for dtype in (torch.bfloat16, torch.float16, torch.float32)
)
STORES = (
    Store("exact", 1.5, 0.5, 0.75, 0.75, 0.75),
    Store("zero_keeps_its_sign", -0.0, 3.0, -0.0, -0.0, -0.0),
    Store("fp16_saturates", 448.0, 1000.0, 448512.0, FP16, 448000.0),
    Store("fp16_saturates_at_its_tie_with_infinity", 1.0, 65520.0, 65536.0, FP16, 65520.0),
    Store("all_saturate", 448.0, 2.0**120, BF16, FP16, FP32),
    Store("bf16_saturates_where_fp32_does_not", 1.0, FP32, BF16, FP16, FP32),
    Store("fp16_subnormal", 0.5, 2.0**-23, 2.0**-24, 2.0**-24, 2.0**-24),
    Store("half_of_an_fp16_subnormal", 0.5, 2.0**-24, 2.0**-25, 0.0, 2.0**-25),
    Store("above_half_of_it", 0.5625, 2.0**-24, 9 * 2.0**-28, 2.0**-24, 9 * 2.0**-28),
    # 1.75 * scale is just above the tie 257/256, its fp32 is the tie: two roundings by definition
    Store("rounds_to_fp32_first", 1.75, 0.5736607313156128, 1.0, 1 + 2.0**-8, 1 + 2.0**-8),
    Store("fp32_subnormal", 2.0**-6, 2.0**-126, 2.0**-132, 0.0, 2.0**-132),
)


@dataclass(frozen=True, slots=True)
class Angle:
    """A pair of rotated elements, of at most 20 bits each, and its code among n directions."""

    name: str
    n: int
    pair: tuple[float, float]
    code: int


ONE = 2.0**19  # a step away from it is a millionth of a turn
ANGLES = (
    Angle("origin", 128, (0, 0), 0),
    Angle("axis_right", 128, (1, 0), 0),
    Angle("axis_up", 128, (0, 1), 32),
    Angle("axis_left", 128, (-1, 0), 64),
    Angle("axis_down", 128, (0, -1), 96),
    Angle("last_direction_before_the_axis", 128, (1000, -20), 0),
    Angle("last_direction", 128, (1000, -30), 127),
    Angle("diagonal_is_a_direction_of_eight", 8, (-7, 7), 3),
    Angle("tie_of_four_takes_the_lower_code", 4, (5, 5), 0),
    Angle("a_step_past_it", 4, (ONE, ONE + 1), 1),
    Angle("a_step_before_it", 4, (ONE + 1, ONE), 0),
    Angle("tie_in_the_second_quadrant", 4, (-3, 3), 1),
    Angle("tie_in_the_third", 4, (-3, -3), 2),
    Angle("tie_of_the_last_and_the_first", 4, (3, -3), 3),
    Angle("a_step_past_that", 4, (ONE + 1, -ONE), 0),
    Angle("axis_is_a_tie_of_two", 2, (0, 1), 0),
    Angle("a_step_past_the_axis", 2, (-1, ONE), 1),
    Angle("other_axis_is_a_tie_of_two", 2, (0, -1), 1),
    Angle("a_step_past_the_other_axis", 2, (1, -ONE), 0),
    Angle("odd_number_of_directions", 3, (-1, 0), 1),
    Angle("just_below_the_left_axis_of_three", 3, (-ONE, -1), 2),
    Angle("tie_of_twelve", 12, (9, 9), 1),
)


@dataclass(frozen=True, slots=True)
class Norms:
    """Norms of a vector's pairs under `norm_bits=4`, and their codes, linear and logarithmic."""

    name: str
    norms: tuple[float, ...]
    linear: tuple[int, ...]
    log: tuple[int, ...]


NORMS = (
    Norms("all_zero", (0, 0, 0), (0, 0, 0), (0, 0, 0)),
    Norms("all_equal", (3, 3, 3), (0, 0, 0), (0, 0, 0)),
    Norms("from_zero", (0, 8, 15), (0, 8, 15), (0, 14, 15)),
    Norms("tie_goes_up_to_even", (0, 8, 16), (0, 8, 15), (0, 14, 15)),
    Norms("tie_goes_down_to_even", (0, 1, 6), (0, 2, 15), (0, 11, 15)),
    Norms("tie_of_logarithms", (1, 2, 4), (0, 5, 15), (0, 8, 15)),
    Norms("below_the_lowest_level", (1, 2.0**12, 2.0**13), (0, 7, 15), (0, 14, 15)),
    Norms("ten_octaves", (1, 32, 1024), (0, 0, 15), (0, 8, 15)),
)


def _normal(spec: BlockSpec) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(spec.shape)


def _with(spec: BlockSpec, where: tuple, value: object) -> np.ndarray:
    x = _normal(spec)
    x[where] = value
    return x


def _amax(spec: BlockSpec, amax: float) -> np.ndarray:
    x = _normal(spec)
    return x / np.abs(x).max() * amax


def _outlier_channels(spec: BlockSpec) -> np.ndarray:
    """Keys of models with a bias on them: a few channels 100 to 1000 times larger."""
    x = _normal(spec)
    x[..., :: max(1, spec.head_dim // 3)] *= np.geomspace(100, 1000, spec.block_size)[:, None, None]
    return x


# Blocks that break scales. Name -> finite values [block_size, num_kv_heads, head_dim], or specials.
BLOCKS: dict[str, Callable[[BlockSpec], np.ndarray]] = {
    "zero_block": lambda spec: np.zeros(spec.shape),
    "negative_zero_block": lambda spec: -np.zeros(spec.shape),
    "zero_token": lambda spec: _with(spec, (0,), 0),
    "zero_head": lambda spec: _with(spec, (slice(None), 0), 0),
    "zero_channel": lambda spec: _with(spec, (..., 0), 0),
    "one_value_left": lambda spec: _with(spec, (..., slice(1, None)), 0),
    "amax_1e_30": lambda spec: _amax(spec, 1e-30),
    "amax_1e_7": lambda spec: _amax(spec, 1e-7),
    "amax_subnormal": lambda spec: _amax(spec, 2.0**-130),
    "amax_largest": lambda spec: _amax(spec, float(torch.finfo(spec.dtype).max)),
    "outlier_channels": _outlier_channels,
    "one_nan": lambda spec: _with(spec, (0, 0, 0), np.nan),
    "nan_head": lambda spec: _with(spec, (slice(None), 0), np.nan),
    "infinities": lambda spec: _with(spec, (0, 0), INF) * np.where(_normal(spec) < 0, -1, 1),
}


def make(name: str, spec: BlockSpec) -> torch.Tensor:
    """Block of BLOCKS in the spec's element type."""
    return torch.from_numpy(BLOCKS[name](spec)).to(spec.dtype)
