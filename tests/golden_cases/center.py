"""center=profile: every codec that has it, with and without entropy coding; a profile beside."""

from profiles import make_tables

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec, Profile
from kvcodec.bits import DTYPES

BLOCKS = (("cache", 2), ("edges", 2), ("noise", 1), ("zeros", 2), ("noise", 0))
CODECS = (
    ("fp8", "bf16", ""),
    ("fp8", "fp16", ",scale=channel"),
    ("nvfp4", "bf16", ""),
    ("nvfp4", "fp32", ",entropy=rans"),
    ("mxfp4", "bf16", ""),
    ("mxfp8", "bf16", ""),
    ("int4", "bf16", ""),
    ("turboangle", "bf16", ""),
    ("turboquant", "bf16", ",bits=3"),
)


def case(codec: str, source: str, more: str) -> Case:
    """One frame of a small block."""
    spec = BlockSpec(2, 2, 32, DTYPES[source])
    profile = Profile({(0, "key"): make_tables(spec, 7).select(("mean",))}, {"model": "made up"})
    batch = Batch(f"{codec}:center=profile{more}", spec, BLOCKS, profile)
    return Case(f"{codec}/v1/center-{source}", (batch,))


CASES = [case(*entry) for entry in CODECS]
