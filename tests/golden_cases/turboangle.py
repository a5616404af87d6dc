"""turboangle: every source, every norm, packings of both kinds, a head_dim of three blocks."""

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES

BLOCKS = (("edges", 1), ("cache", 1), ("noise", 1), ("tiny", 1), ("noise", 0))
CODECS = (
    ("k128-bf16", "turboangle", "bf16"),
    ("k128-fp16", "turboangle", "fp16"),
    ("k128-fp32", "turboangle", "fp32"),
    ("k64-log4-bf16", "turboangle:n=64,norm_bits=4,norm=log", "bf16"),
    ("k48-b6-minmax16-bf16", "turboangle:n=48,norm_bits=6,minmax=fp16", "bf16"),
    ("k56-log5-minmax16-fp32", "turboangle:n=56,norm_bits=5,norm=log,minmax=fp16", "fp32"),
    ("k512-norm16-bf16", "turboangle:n=512,norm=fp16", "bf16"),
    ("k3-norm32-fp16", "turboangle:n=3,norm=fp32", "fp16"),
)

HEADS = BlockSpec(2, 3, 20, DTYPES["bf16"])

CASES = [
    *(
        Case(f"turboangle/v1/{name}", (Batch(codec, BlockSpec(1, 1, 44, DTYPES[source]), BLOCKS),))
        for name, codec, source in CODECS
    ),
    Case("turboangle/v1/heads-bf16", (Batch("turboangle", HEADS, (("cache", 2), ("cache", 1))),)),
]
