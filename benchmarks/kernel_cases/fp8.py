"""fp8: a scale per token and head, per head, per block, per channel, per group."""

from kernel_cases.case import BF16, MLA, SMALL, single

ROWS = "_fp8_encode_triton.encode_rows_kernel"
GROUPS = "_fp8_encode_triton.encode_groups_kernel"
CHANNELS = "_fp8_encode_triton.encode_channels_kernel"
DECODE = "_fp8_decode_triton.decode_words_kernel"
SINGLE = "fp8_triton.decode_kernel"

CASES = [
    single("bf16 compress", "fp8", ROWS, BF16, 3 + 4 / 128),
    single("bf16 decompress", "fp8", DECODE, BF16, 3 + 4 / 128),
    single("fp16 compress", "fp8:dtype=e5m2", ROWS, SMALL, 3 + 4 / 96),
    single("fp16 decompress", "fp8:dtype=e5m2", DECODE, SMALL, 3 + 4 / 96),
    single("bf16 compress", "fp8:scale=head", GROUPS, BF16, 3),
    single("mla compress", "fp8:scale=block", GROUPS, MLA, 3, per_iteration=2048, passes=2),
    single("bf16 compress", "fp8:scale=channel", CHANNELS, BF16, 3 + 4 / 16),
    single("bf16 decompress", "fp8:scale=group,scale_dtype=ue8m0", DECODE, BF16, 3 + 1 / 128),
    single("bf16 decompress", "fp8:scale=channel", SINGLE, BF16, 3 + 4 / 16),
    single("mla decompress", "fp8:scale=block", DECODE, MLA, 3),
]
