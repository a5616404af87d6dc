"""segments: a launch a segment each way, beside those of its codec; blocks that stay raw."""

from __future__ import annotations

import functools

import torch

from kernel_cases.case import NUM_ROWS, Case, run
from kvcodec import BlockSpec

CODEC = "segments:layout=fp8_ds_mla,codecs=raw/raw/raw"
SPEC = BlockSpec(64, 1, 656, torch.uint8)  # DeepSeek V3.2


def segments() -> list[Case]:
    """pack and unpack move a segment's row, keep and return a whole block; of bytes."""
    steps = {"pack": ("compress", 512), "keep": ("compress", 656)}
    steps |= {"unpack": ("decompress", 512), "return": ("decompress", 656)}
    return [
        Case(
            f"segments fp8_ds_mla {call}: {step}",
            f"_segments_triton.{step}_kernel",
            functools.partial(run, CODEC, SPEC, call == "decompress"),
            NUM_ROWS * 64 * nbytes,
            1,
            2,
        )
        for step, (call, nbytes) in steps.items()
    ]


CASES = segments()
