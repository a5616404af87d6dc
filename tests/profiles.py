"""Profiles for tests: tables made by an integer generator, the same on every machine."""

from __future__ import annotations

import functools

import golden_rans
import numpy as np

from kvcodec import BlockSpec, Codec, Profile, rans
from kvcodec.tables import BUCKETS, DEAD, HISTORIES, PREVIOUS, WINDOW, Tables

CLASSES, SIGN_CLASSES = 3, 2
SHAPE = (1, 2, 4, 7, 14, 28, 55, 108, 190, 265, 224, 88, 13, 1)  # octaves -10 to 3 of a centre
SLOPE = (17, 15, 14, 13, 12, 11, 10, 9)  # of leading mantissa bits


@functools.cache
def make_profile(spec: BlockSpec, seed: int = 0) -> Profile:
    """Key and value tables of layer 0 for blocks of a spec; values of about 1 are coded well."""
    planes = {(0, kind): make_tables(spec, 2 * seed + i) for i, kind in enumerate(("key", "value"))}
    return Profile(planes, {"model": "made up"})


def make_tables(
    spec: BlockSpec, seed: int = 0, dead: tuple[int, ...] = (), octaves: int = 0
) -> Tables:
    """All tables of a plane for values of about 1, or so many octaves larger.

    dead: channels that are zero in every token.
    """
    draw = draws(seed)
    fmt, shape = spec.format, (spec.num_kv_heads, spec.head_dim)
    one = 1 << max(0, fmt.exponent_bits - 1)  # the exponent of 2
    kind = draw(shape, CLASSES)
    kind.reshape(-1)[list(dead)] = DEAD
    leads = 1 << min(3, fmt.mantissa_bits)
    return Tables(
        (fmt.name, *shape),
        {
            "mean": 0x3F80 + draw(shape, 128).astype("<u2"),
            "centre": (one - 1 + octaves + draw(shape, 8) // 7).astype("u1"),
            "class": kind.astype("u1"),
            "exponents": exponents(draw),
            "mantissas": mantissas(draw, leads),
            "flip": draw(shape, 2).astype("u1"),
            "sign_class": draw(shape, SIGN_CLASSES).astype("u1"),
            "signs": (1948 + draw((SIGN_CLASSES, HISTORIES, BUCKETS), 200)).astype("<u2"),
        },
    )


def draws(seed: int):
    """A function that draws integers [0, below) of a shape; every call others."""
    at = 0

    def draw(shape, below):
        nonlocal at
        n = int(np.prod(shape))
        values = golden_rans.integers(1000 + seed, at + n)[at:]
        at += n
        return (values % np.uint64(below)).astype(np.int64).reshape(shape)

    return draw


def exponents(draw) -> np.ndarray:
    """The shape above, an octave lower or higher after exponents far from the centre."""
    made = np.zeros((CLASSES, PREVIOUS, WINDOW + 1), "<u2")
    for k in range(CLASSES):
        for p in range(PREVIOUS):
            counts = 1 + draw((WINDOW + 1,), 3)
            first = 6 + (9 < p < PREVIOUS - 2) - (p < 3)
            counts[first : first + len(SHAPE)] += 64 * np.array(SHAPE)
            made[k, p] = rans.normalize(counts)
    return made


def mantissas(draw, leads: int) -> np.ndarray:
    """Slightly falling tables of the leading mantissa bits that a type has."""
    made = np.zeros((CLASSES, WINDOW + 1, 8), "<u2")
    for table in made.reshape(-1, 8):
        table[:leads] = rans.normalize(16 * np.array(SLOPE[:leads]) + draw((leads,), 8))
    return made


def bound(codec: Codec, spec: BlockSpec, seed: int = 0) -> Codec:
    """The codec; one that needs a profile is bound to a made-up one of that spec, if it fits."""
    if not codec.needs_profile or codec.supports(spec) is not None:
        return codec
    return codec.bind(make_profile(spec, seed), 0, "key")
