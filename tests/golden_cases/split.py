"""split: every element type, every mode, both lane counts, partial blocks."""

from profiles import make_tables

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec, Profile
from kvcodec.bits import DTYPES

TYPES = ("bf16", "fp16", "fp32", "e4m3fn", "e5m2")
BLOCKS = (
    ("edges", 16), ("cache", 16), ("cache", 11), ("noise", 16), ("zeros", 16), ("noise", 0)
)  # fmt: skip
CENTRED = "split:model=centred"
CHANNELS = (
    ("channels", 32), ("channels", 11), ("cache", 32), ("edges", 32), ("noise", 32), ("zeros", 32),
    ("channels", 1), ("noise", 0),
)  # fmt: skip
TABLED = (("cache", 8), ("cache", 5), ("edges", 8), ("zeros", 8), ("noise", 0))
WIDE = BlockSpec(64, 1, 128, DTYPES["bf16"])  # 16 KiB: 64 lanes, the last round partly filled


def tabled(name: str, dtype: str) -> Case:
    """Rows of both models of a profile, which stands beside them and suits "cache"."""
    spec = BlockSpec(8, 2, 33, DTYPES[dtype])
    tables = make_tables(spec, 5, octaves=2)
    profile = Profile({(0, "key"): tables}, {"model": "made up"})
    models = ("split:model=profile", "split:model=context")
    batches = (Batch(model, spec, TABLED, profile) for model in models)
    return Case(f"split/v1/{name}", tuple(batches))


CASES = [
    *(
        Case(f"split/v1/{t}", (Batch("split", BlockSpec(16, 2, 32, DTYPES[t]), BLOCKS),))
        for t in TYPES
    ),
    Case("split/v1/bf16-64-lanes", (Batch("split", WIDE, (("cache", 61),)),)),
    *(
        Case(f"split/v1/centred-{t}", (Batch(CENTRED, BlockSpec(32, 2, 9, DTYPES[t]), CHANNELS),))
        for t in ("bf16", "fp16", "e4m3fn")
    ),
    tabled("tabled-bf16", "bf16"),
    tabled("tabled-fp16", "fp16"),
]
