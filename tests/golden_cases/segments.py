"""segments: one run and several, cut and raw rows, a lossy segment, partial blocks."""

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES

OPAQUE = BlockSpec(8, 2, 40, DTYPES["u8"])
RUNS = BlockSpec(8, 1, 40, DTYPES["u8"])
ONE_TYPE = BlockSpec(8, 1, 48, DTYPES["bf16"])
BLOCKS = (("zeros", 8), ("noise", 8), ("noise", 3), ("noise", 0))

CASES = [
    Case(
        "segments/v1/u8",
        (
            Batch("segments:layout=nope.e4m3x24+rope.bf16x6+scale.fp32x1", OPAQUE, BLOCKS),
            Batch(
                "segments:layout=k.e4m3x32+tag.u8x4/scale.fp32x1,codecs=split/raw/split",
                RUNS,
                BLOCKS[:2],
            ),
        ),
    ),
    Case(
        "segments/v1/bf16",
        (
            Batch("segments:layout=nope.bf16x32+rope.bf16x16", ONE_TYPE, (("cache", 8),)),
            Batch(
                "segments:layout=nope.bf16x32+rope.bf16x16,codecs=fp8/split",
                ONE_TYPE,
                (("cache", 8), ("edges", 5)),
            ),
        ),
    ),
]
