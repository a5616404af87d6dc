"""The stack: four launches each way for the codes of fp8; other parts take the same kernels."""

from __future__ import annotations

import functools

from kernel_cases.case import BF16, NUM_ROWS, SMALL, Case, run
from kvcodec import BlockSpec, rans

EXPONENT_BITS = 2.9  # what a coded exponent takes on average
DECODES = ("begin", "slots", "decode", "fill")


def stacked(label: str, codec: str, spec: BlockSpec) -> list[Case]:
    """Launches for the first part of a row, full blocks assumed."""
    n, lanes = spec.numel, rans.num_lanes(spec.nbytes)
    words, states, raw = n * EXPONENT_BITS / 8, 4 * lanes, n / 2
    plain, row, slots = n, words + states + raw, 4 * rans.TOTAL
    # bytes that a launch moves for a block, and elements of one iteration of its loop
    steps = {
        "count": (plain + 1024, 2048 if n > 2048 else 0),
        "pack": (plain + raw, 0),
        "encode": (plain + 1024 + words + states, 4 * lanes),
        "write": (2 * row, 0),
        "begin": (plain, 0),
        "slots": (slots, n // 16),  # an iteration is a symbol, and a block has about 16
        "decode": (words + slots + plain, 4 * lanes),
        "fill": (raw + 2 * plain, 0),
    }
    # codes are coded last; without coded scales their launch is the first, which is looked at
    codes_only = codec.replace("entropy", "scale=head,entropy")
    return [
        Case(
            f"{codec} {label} {'decompress' if step in DECODES else 'compress'}: {step}",
            f"_stack_{'decode' if step in DECODES else 'encode'}_triton.{step}_kernel",
            functools.partial(run, codes_only, spec, step in DECODES)
            if step == "encode"
            else functools.partial(run, codec, spec, step in DECODES),
            NUM_ROWS * n,
            spec.dtype.itemsize,
            moved / n,
            per_iteration,
        )
        for step, (moved, per_iteration) in steps.items()
    ]


CASES = [
    *stacked("bf16", "fp8:entropy=rans", BF16),
    *stacked("small", "fp8:dtype=e5m2,entropy=rans", SMALL),
]
