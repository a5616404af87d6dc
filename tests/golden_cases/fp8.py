"""fp8: both code types, every source, every scale, given ones."""

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES

BLOCKS = (
    ("edges", 4), ("cache", 4), ("cache", 3), ("noise", 4), ("zeros", 4), ("tiny", 4), ("noise", 0)
)  # fmt: skip
CODECS = (
    ("e4m3-bf16", "fp8", "bf16"),
    ("e4m3-fp16", "fp8", "fp16"),
    ("e4m3-fp32", "fp8", "fp32"),
    ("e5m2-bf16", "fp8:dtype=e5m2", "bf16"),
    ("e5m2-fp16", "fp8:dtype=e5m2", "fp16"),
    ("e5m2-fp32", "fp8:dtype=e5m2", "fp32"),
    ("e4m3-head-bf16", "fp8:scale=head", "bf16"),
    ("e4m3-block-fp16", "fp8:scale=block", "fp16"),
    ("e4m3-block-given-fp32", "fp8:scale=block,given=0.75", "fp32"),
    ("e5m2-head-given-bf16", "fp8:dtype=e5m2,scale=head,given=1.0/0.3/3e-05", "bf16"),
)

CASES = [
    Case(f"fp8/v1/{name}", (Batch(codec, BlockSpec(4, 3, 16, DTYPES[source]), BLOCKS),))
    for name, codec, source in CODECS
]
