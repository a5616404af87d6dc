"""turboangle: bit and digit packing, coded and whole norms, vectors of one block and of several."""

from kernel_cases.case import BF16, MLA, SMALL, Case, single

ENCODE = "_turboangle_encode_triton.encode_kernel"
DECODE = "_turboangle_decode_triton.decode_kernel"
LOG = "turboangle:n=64,norm_bits=4,norm=log"
DIGITS = "turboangle:n=48,norm_bits=6,minmax=fp16"
WHOLE = "turboangle:n=256,norm=fp16"


def both(label: str, codec: str, spec, bits: float) -> list[Case]:
    """Either way, `bits` per element in a row."""
    moved = spec.dtype.itemsize + bits / 8
    return [
        single(f"{label} compress", codec, ENCODE, spec, moved),
        single(f"{label} decompress", codec, DECODE, spec, moved),
    ]


CASES = [
    *both("bf16", "turboangle", BF16, 8.0),
    *both("bf16", LOG, BF16, 5.5),
    *both("fp16", DIGITS, SMALL, 6.3),
    *both("mla", WHOLE, MLA, 12.0),
]
