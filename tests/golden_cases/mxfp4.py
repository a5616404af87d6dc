"""mxfp4: every source."""

from golden_cases.case import Batch, Case
from golden_cases.nvfp4 import BLOCKS
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES

CASES = [
    Case(f"mxfp4/v1/{source}", (Batch("mxfp4", BlockSpec(2, 1, 64, DTYPES[source]), BLOCKS),))
    for source in ("bf16", "fp16", "fp32")
]
