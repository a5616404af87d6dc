"""bitplane: every element type, both rates, both modes, partial blocks, more than one tile."""

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES

TOKENS = {"bf16": 16, "fp16": 16, "fp32": 16, "e4m3fn": 32, "e5m2": 32}
RATES = {"": "bitplane", "-two-level": "bitplane:bits=2+3"}
TILES = BlockSpec(17, 3, 170, DTYPES["e5m2"])  # 272 columns


def batch(codec: str, name: str, tokens: int) -> Batch:
    """Blocks small enough for many files, and large enough for the coded mode."""
    blocks = (("edges", tokens), ("cache", tokens), ("cache", tokens - 5), ("noise", 0))
    return Batch(codec, BlockSpec(tokens, 1, 16, DTYPES[name]), blocks)


CASES = [
    *(
        Case(f"bitplane/v1/{name}{suffix}", (batch(codec, name, tokens),))
        for suffix, codec in RATES.items()
        for name, tokens in TOKENS.items()
    ),
    Case("bitplane/v1/tiles-two-level", (Batch(RATES["-two-level"], TILES, (("cache", 17),)),)),
]
