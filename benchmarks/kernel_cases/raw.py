"""raw: copies."""

from kernel_cases.case import BF16, single

CASES = [
    single("bf16 compress", "raw", "raw_triton.encode_kernel", BF16, 4),
    single("bf16 decompress", "raw", "raw_triton.decode_kernel", BF16, 4),
]
