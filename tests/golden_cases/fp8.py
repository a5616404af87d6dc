"""fp8: both code types, every source, every scale, given ones, entropy-coded rows."""

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

GROUPED = (
    ("e4m3-token-bf16", "fp8:scale=token", "bf16"),
    ("e5m2-token-ue8m0-fp16", "fp8:dtype=e5m2,scale=token,scale_dtype=ue8m0", "fp16"),
    ("e4m3-channel-bf16", "fp8:scale=channel", "bf16"),
    ("e4m3-channel-ue8m0-fp32", "fp8:scale=channel,scale_dtype=ue8m0", "fp32"),
    ("e4m3-group64-ue8m0-bf16", "fp8:scale=group,group=64,scale_dtype=ue8m0", "bf16"),
    ("e4m3-group128-fp32", "fp8:scale=group", "fp32"),
    ("e4m3-block-ue8m0-bf16", "fp8:scale=block,scale_dtype=ue8m0", "bf16"),
)
STACKED = (
    ("e4m3-rans-bf16", "fp8:entropy=rans", "bf16"),
    ("e5m2-head-rans-fp16", "fp8:dtype=e5m2,scale=head,entropy=rans", "fp16"),
)
LONGER = (("cache", 16), ("cache", 11), ("noise", 16), ("edges", 16), ("zeros", 16), ("noise", 0))
SHORT = (("edges", 3), ("cache", 2), ("tiny", 3), ("zeros", 0))
WIDE = BlockSpec(64, 1, 128, DTYPES["bf16"])  # 16 KiB: 64 lanes

CASES = [
    *(
        Case(f"fp8/v1/{name}", (Batch(codec, BlockSpec(4, 3, 16, DTYPES[source]), BLOCKS),))
        for name, codec, source in CODECS
    ),
    *(
        Case(f"fp8/v1/{name}", (Batch(codec, BlockSpec(16, 2, 32, DTYPES[source]), LONGER),))
        for name, codec, source in STACKED
    ),
    *(
        Case(f"fp8/v1/{name}", (Batch(codec, BlockSpec(3, 2, 128, DTYPES[source]), SHORT),))
        for name, codec, source in GROUPED
    ),
    Case("fp8/v1/e4m3-rans-64-lanes", (Batch("fp8:entropy=rans", WIDE, (("cache", 61),)),)),
]
