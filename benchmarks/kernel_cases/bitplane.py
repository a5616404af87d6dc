"""bitplane: three launches to encode, two to decode."""

from __future__ import annotations

import functools

from kernel_cases.case import BF16, NUM_ROWS, Case, run
from kvcodec import BlockSpec, get_codec
from kvcodec.codecs.bitplane import Bitplane, num_tiles

BITS = {"bitplane": 3 + 24 * 0.014, "bitplane:bits=2+3": 2 + 3 * 0.26 + 24 * 0.007}
PATCHED = {"bitplane": 0.014, "bitplane:bits=2+3": 0.007}  # part of the elements
SECTORS = 64 + 3  # bytes that an escape moves: a sector each way, and itself


def bitplane(codec: str, label: str, spec: BlockSpec) -> list[Case]:
    """The launches of bitplane either way, for full blocks that are coded."""
    n, block, tiles = spec.numel, spec.nbytes, num_tiles(spec)
    row = n * (BITS[codec] + spec.format.raw_bits) / 8 + spec.token_numel + 8 * tiles
    two_level = get_codec(codec) != Bitplane()
    steps = {  # bytes that a launch moves for a block
        "bases": block + spec.token_numel,
        "count": block + (n * 3 / 8 if two_level else 0) + 8 * tiles,
        "write": block + row,
        "decode": row + block,
        "patch": SECTORS * PATCHED[codec] * n + 64 * tiles,
    }
    cases = []
    for step, moved in steps.items():
        decode = step in ("decode", "patch")
        cases.append(
            Case(
                f"{codec} {label} {'decompress' if decode else 'compress'}: {step}",
                f"_bitplane_{'decode' if decode else 'encode'}_triton.{step}_kernel",
                functools.partial(run, codec, spec, decode),
                NUM_ROWS * n,
                spec.dtype.itemsize,
                moved / n,
            )
        )
    return cases


CASES = [
    *bitplane("bitplane", "bf16", BF16),
    *bitplane("bitplane:bits=2+3", "bf16", BF16),
]
