"""split: three launches either way, and two more with a profile."""

from __future__ import annotations

import functools

import numpy as np

from kernel_cases.case import BF16, E4M3, NUM_ROWS, SMALL, Case, run
from kvcodec import BlockSpec, Codec, get_codec, rans
from kvcodec.tables import BUCKETS, HISTORIES, PREVIOUS, WINDOW, Tables

EXPONENT_BITS = 2.8  # what a coded exponent takes on average
DECODES = ("slots", "decode", "fill")
CODED_BITS = 6.2  # what sign, exponent and leading mantissa bits take with a profile


def split(
    label: str, spec: BlockSpec, codec: str = "split", *, without: tuple[str, ...] = ()
) -> list[Case]:
    """The launches of split either way, full blocks and no raw fallback assumed.

    without: launches whose code is that of another format; then no sum of a call is shown.
    """
    n, block = spec.numel, spec.nbytes
    fmt, lanes = spec.format, rans.num_lanes(spec.nbytes)
    words, states, table = n * EXPONENT_BITS / 8, 4 * lanes, 4 << fmt.exponent_bits
    row = words + states + n * fmt.raw_bits / 8
    slots, prefixes = 4 * rans.TOTAL, 64 * -(-n // 1024)  # of the tiles that only look at a prefix
    # bytes that a launch moves for a block, and elements of one iteration of its loop
    steps = {
        "count": (block + table, 2048 if n > 2048 else 0),  # a small block is one iteration
        "encode": (block + table + words + states, 4 * lanes),
        "write": (block + table + words + states + row, 0),
        "slots": (slots, n // 16),  # an iteration is a symbol, and a block has about 16
        "decode": (row + slots + block, 4 * lanes),
        "fill": (prefixes, 0),
    }
    return [
        Case(
            f"{codec} {label} {'decompress' if step in DECODES else 'compress'}"
            f"{' ' if without and step in DECODES else ': '}{step}",
            f"_split_{'decode' if step in DECODES else 'encode'}_triton.{step}_kernel",
            functools.partial(run, codec, spec, step in DECODES),
            NUM_ROWS * n,
            spec.dtype.itemsize,
            moved / n,
            per_iteration,
        )
        for step, (moved, per_iteration) in steps.items()
        if step not in without
    ]


def even_tables(spec: BlockSpec) -> Tables:
    """Tables of one class in which all symbols are equally frequent."""
    shape = (spec.num_kv_heads, spec.head_dim)
    exponents = rans.normalize(np.ones(WINDOW + 1, np.int64)).astype("<u2")
    return Tables(
        (spec.format.name, *shape),
        {
            **{name: np.zeros(shape, "u1") for name in ("centre", "class", "flip", "sign_class")},
            "exponents": np.tile(exponents, (1, PREVIOUS, 1)),
            "mantissas": np.full((1, WINDOW + 1, 8), rans.TOTAL // 8, "<u2"),
            "signs": np.full((1, HISTORIES, BUCKETS), rans.TOTAL // 2, "<u2"),
        },
    )


def with_profile(label: str, spec: BlockSpec) -> list[Case]:
    """The launches that a profile adds to those of a centred model."""
    n, block, lanes = spec.numel, spec.nbytes, rans.num_lanes(spec.nbytes)
    codec: Codec = get_codec("split:model=profile").hold(even_tables(spec))
    words, states, low = n * CODED_BITS / 8, 4 * lanes, n * 4 / 8
    steps = {
        "encode": (block + words + states, lanes),
        "write": (block + 2 * words + 2 * states + low, 0),
        "decode": (words + states + block, lanes),
        "join": (low + states + 2 * block, 0),
    }
    return [
        Case(
            f"split:model=profile {label} {'decompress' if decodes else 'compress'}: {step}",
            f"_profile_{'decode' if decodes else 'encode'}_triton.profile_{step}_kernel",
            functools.partial(run, codec, spec, decodes),
            NUM_ROWS * n,
            spec.dtype.itemsize,
            moved / n,
            per_iteration,
        )
        for step, (moved, per_iteration) in steps.items()
        for decodes in (step in ("decode", "join"),)
    ]


CASES = [
    *split("bf16", BF16),
    *split("e4m3", E4M3, without=("slots", "fill")),
    *split("fp16 small", SMALL, without=("slots", "fill")),
    *split("bf16", BF16, "split:model=centred"),
    *with_profile("bf16 tables", BF16),
]
