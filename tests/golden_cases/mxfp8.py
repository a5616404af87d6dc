"""mxfp8: both code types, every source."""

from golden_cases.case import Batch, Case
from golden_cases.nvfp4 import BLOCKS
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES

CODECS = (
    ("e4m3-bf16", "mxfp8", "bf16"),
    ("e4m3-fp16", "mxfp8", "fp16"),
    ("e4m3-fp32", "mxfp8", "fp32"),
    ("e5m2-bf16", "mxfp8:dtype=e5m2", "bf16"),
)

CASES = [
    Case(f"mxfp8/v1/{name}", (Batch(codec, BlockSpec(2, 1, 64, DTYPES[source]), BLOCKS),))
    for name, codec, source in CODECS
]
