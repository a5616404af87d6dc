"""Frames of several codecs and specs, with and without an identity."""

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES
from kvcodec.identity import Identity

narrow, odd = BlockSpec(16, 2, 32, DTYPES["bf16"]), BlockSpec(16, 1, 48, DTYPES["bf16"])

CASES = [
    Case("frame/v1/empty", (), Identity(model="empty")),
    Case(
        "frame/v1/mixed",
        (
            Batch("split", narrow, (("cache", 16),)),
            Batch("fp8:scale=head", narrow, (("cache", 16), ("cache", 7))),
            Batch("fp8:scale=head", odd, (("cache", 16),)),
            Batch("split", narrow, (("edges", 2),)),
        ),
        Identity(
            tenant="t1",
            salt="",
            model="kvcodec/größe",
            revision="0" * 40,
            weight_format="q8_0",
            rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta": [32, 1.5]},
            layer=3,
            kind="key",
            block_key="5f2e00ff",
            num_heads=8,
            tp_rank=1,
            tp_size=4,
            pp_rank=0,
            pp_size=1,
            layout="nhd",
            rotation="none",
            rotation_version=0,
            profile_hash="",
            lora="",
        ),
    ),
]
