"""opaque: every coding, rows that shrink and rows that do not, partial blocks."""

from golden_cases.case import Batch, Case
from kvcodec import BlockSpec
from kvcodec.bits import DTYPES
from kvcodec.codecs.opaque import CODINGS

SPEC = BlockSpec(16, 2, 32, DTYPES["u8"])
BLOCKS = (("cache", 16), ("zeros", 16), ("noise", 16), ("cache", 5), ("noise", 0))

CASES = [
    *(
        Case(f"opaque/v1/{coding}", (Batch(f"opaque:coding={coding}", SPEC, BLOCKS),))
        for coding in CODINGS
    ),
    Case("opaque/v1/plain", (Batch("opaque:entropy=none", SPEC, BLOCKS[3:]),)),
]
