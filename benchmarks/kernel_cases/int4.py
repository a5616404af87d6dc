"""int4: groups of channels and of tokens, both widths."""

from dataclasses import replace

from kernel_cases.case import BF16, SMALL, single

ENCODE = "int4_triton.encode_kernel"
DECODE = "int4_triton.decode_kernel"
LONG = replace(BF16, block_size=64)

CASES = [
    single("bf16 compress", "int4", ENCODE, BF16, 2.5 + 4 / 32),
    single("bf16 decompress", "int4", DECODE, BF16, 2.5 + 4 / 32),
    single("fp16 compress", "int4:bits=2", ENCODE, SMALL, 2.25 + 4 / 32),
    single("fp16 decompress", "int4:bits=2", DECODE, SMALL, 2.25 + 4 / 32),
    single("bf16 compress", "int4:axis=channel", ENCODE, LONG, 2.5 + 4 / 32),
    single("bf16 decompress", "int4:axis=channel", DECODE, LONG, 2.5 + 4 / 32),
]
