"""nvfp4: every source, both rules for scales, a supplied global scale."""

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES

BLOCKS = (("edges", 2), ("cache", 2), ("noise", 1), ("zeros", 2), ("tiny", 2), ("noise", 0))
CODECS = (
    ("bf16", "nvfp4", "bf16"),
    ("fp16", "nvfp4", "fp16"),
    ("fp32", "nvfp4", "fp32"),
    ("four-over-six-bf16", "nvfp4:four_over_six=true", "bf16"),
    ("given-fp16", "nvfp4:given=0.003", "fp16"),
)

CASES = [
    Case(f"nvfp4/v1/{name}", (Batch(codec, BlockSpec(2, 3, 16, DTYPES[source]), BLOCKS),))
    for name, codec, source in CODECS
]
