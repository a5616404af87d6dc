"""raw: every element type, opaque bytes among them."""

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES

TYPES = ("bf16", "fp16", "fp32", "e4m3fn", "e5m2")
EDGES = (("edges", 4), ("noise", 3))
OPAQUE = Batch("raw", BlockSpec(4, 3, 8, DTYPES["u8"]), (("noise", 4), ("noise", 0)))

CASES = [
    *(Case(f"raw/v1/{t}", (Batch("raw", BlockSpec(4, 3, 8, DTYPES[t]), EDGES),)) for t in TYPES),
    Case("raw/v1/u8", (OPAQUE,)),
]
