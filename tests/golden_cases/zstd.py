"""zstd: every element type, opaque bytes, both modes, partial blocks. Checked by decoding only."""

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES

TYPES = ("bf16", "fp16", "fp32", "e4m3fn", "e5m2", "u8")
BLOCKS = (("edges", 8), ("cache", 8), ("cache", 5), ("noise", 8), ("zeros", 8), ("noise", 0))
SMALL = BlockSpec(8, 1, 32, DTYPES["bf16"])

CASES = [
    *(
        Case(f"zstd/v1/{t}", (Batch("zstd", BlockSpec(8, 1, 32, DTYPES[t]), BLOCKS),))
        for t in TYPES
    ),
    *(
        Case(f"zstd/v1/bf16-level{level}", (Batch(f"zstd:level={level}", SMALL, BLOCKS[:3]),))
        for level in (-7, 19)
    ),
]
