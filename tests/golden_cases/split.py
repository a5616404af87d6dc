"""split: every element type, every mode, both lane counts, partial blocks."""

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES

TYPES = ("bf16", "fp16", "fp32", "e4m3fn", "e5m2")
BLOCKS = (
    ("edges", 16), ("cache", 16), ("cache", 11), ("noise", 16), ("zeros", 16), ("noise", 0)
)  # fmt: skip
CENTRED = "split:model=centred"
CHANNELS = (
    ("channels", 32), ("channels", 11), ("cache", 32), ("edges", 32), ("noise", 32), ("zeros", 32),
    ("channels", 1), ("noise", 0),
)  # fmt: skip
WIDE = BlockSpec(64, 1, 128, DTYPES["bf16"])  # 16 KiB: 64 lanes, the last round partly filled

CASES = [
    *(
        Case(f"split/v1/{t}", (Batch("split", BlockSpec(16, 2, 32, DTYPES[t]), BLOCKS),))
        for t in TYPES
    ),
    Case("split/v1/bf16-64-lanes", (Batch("split", WIDE, (("cache", 61),)),)),
    *(
        Case(f"split/v1/centred-{t}", (Batch(CENTRED, BlockSpec(32, 2, 9, DTYPES[t]), CHANNELS),))
        for t in ("bf16", "fp16", "e4m3fn")
    ),
]
