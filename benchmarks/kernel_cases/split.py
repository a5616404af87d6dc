"""split: three launches either way."""

from __future__ import annotations

import functools

from kernel_cases.case import BF16, E4M3, NUM_ROWS, SMALL, Case, run
from kvcodec import BlockSpec, rans

EXPONENT_BITS = 2.8  # what a coded exponent takes on average
DECODES = ("slots", "decode", "fill")


def split(label: str, spec: BlockSpec, codec: str = "split") -> list[Case]:
    """The three launches of split either way, full blocks and no raw fallback assumed."""
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
            f"{codec} {label} {'decompress' if step in DECODES else 'compress'}: {step}",
            f"_split_{'decode' if step in DECODES else 'encode'}_triton.{step}_kernel",
            functools.partial(run, codec, spec, step in DECODES),
            NUM_ROWS * n,
            spec.dtype.itemsize,
            moved / n,
            per_iteration,
        )
        for step, (moved, per_iteration) in steps.items()
    ]


CASES = [
    *split("bf16", BF16),
    *split("e4m3", E4M3),
    *split("fp16 small", SMALL),
    *split("bf16", BF16, "split:model=centred"),
]
