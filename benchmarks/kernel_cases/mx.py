"""mxfp4 and mxfp8: one launch either way."""

from kernel_cases.case import BF16, SMALL, single

ENCODE, DECODE = "_mx_triton.encode_kernel", "_mx_triton.decode_kernel"
FOUR, EIGHT = 2 + 4 / 8 + 1 / 32, 2 + 1 + 1 / 32

CASES = [
    single("bf16 compress", "mxfp4", ENCODE, BF16, FOUR),
    single("bf16 decompress", "mxfp4", DECODE, BF16, FOUR),
    single("bf16 compress", "mxfp8", ENCODE, BF16, EIGHT),
    single("bf16 decompress", "mxfp8", DECODE, BF16, EIGHT),
    single("fp16 compress", "mxfp8:dtype=e5m2", ENCODE, SMALL, EIGHT),
    single("fp16 decompress", "mxfp8:dtype=e5m2", DECODE, SMALL, EIGHT),
]
