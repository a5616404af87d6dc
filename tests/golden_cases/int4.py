"""int4: both widths, both axes, every type of scales, groups cut short."""

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES

CODECS = (
    ("token-bf16", "int4", (2, 2, 40), "bf16"),
    ("token-fp32", "int4:group=16,meta=fp32", (2, 1, 20), "fp32"),
    ("channel-bf16", "int4:bits=2,axis=channel,group=16", (17, 1, 4), "bf16"),
    ("channel-fp16", "int4:axis=channel,group=16,meta=bf16", (16, 2, 4), "fp16"),
)


def blocks(tokens: int) -> tuple[tuple[str, int], ...]:
    """Full, partly filled and empty blocks of each habit."""
    full = tuple((kind, tokens) for kind in ("edges", "cache", "tiny", "zeros"))
    return (*full, ("noise", tokens - 1), ("noise", 0))


CASES = [
    Case(f"int4/v1/{name}", (Batch(codec, BlockSpec(*shape, DTYPES[source]), blocks(shape[0])),))
    for name, codec, shape, source in CODECS
]
