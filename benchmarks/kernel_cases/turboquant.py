"""turboquant: a width in one plane, one in two, a head_dim that fills no tile."""

from kernel_cases.case import BF16, SMALL, single

ENCODE = "turboquant_triton.encode_kernel"
DECODE = "turboquant_triton.decode_kernel"

CASES = [
    single("bf16 compress", "turboquant", ENCODE, BF16, 2.5 + 2 / 128),
    single("bf16 decompress", "turboquant", DECODE, BF16, 2.5 + 2 / 128),
    single("fp16 compress", "turboquant:bits=3", ENCODE, SMALL, 2.375 + 2 / 96),
    single("fp16 decompress", "turboquant:bits=3", DECODE, SMALL, 2.375 + 2 / 96),
]
