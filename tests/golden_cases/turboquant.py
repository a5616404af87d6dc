"""turboquant: every width, both types of norms, every source."""

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES

BLOCKS = (("edges", 2), ("cache", 2), ("cache", 1), ("tiny", 2), ("zeros", 2), ("noise", 0))
CODECS = (
    ("4-bits-bf16", "turboquant", 20, "bf16"),
    ("3-bits-bf16", "turboquant:bits=3", 24, "bf16"),
    ("2-bits-fp16", "turboquant:bits=2,norm=fp32", 12, "fp16"),
    ("1-bit-fp32", "turboquant:bits=1,norm=fp32", 16, "fp32"),
)

CASES = [
    Case(f"turboquant/v1/{name}", (Batch(codec, BlockSpec(2, 2, dim, DTYPES[source]), BLOCKS),))
    for name, codec, dim, source in CODECS
]
