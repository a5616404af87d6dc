"""nvfp4: a measured global scale and a given one, one rule for scales and two."""

from kernel_cases.case import BF16, MLA, SMALL, single

ENCODE, DECODE = "nvfp4_triton.encode_kernel", "nvfp4_triton.decode_kernel"
MOVED = 2 + 4 / 8 + 1 / 16
LOOP = {"per_iteration": 2048, "passes": 2}  # one program walks a block twice

CASES = [
    single("bf16 compress", "nvfp4", ENCODE, BF16, MOVED, **LOOP),
    single("bf16 decompress", "nvfp4", DECODE, BF16, MOVED),
    single("mla compress", "nvfp4:four_over_six=true", ENCODE, MLA, MOVED, **LOOP),
    single("mla decompress", "nvfp4:four_over_six=true", DECODE, MLA, MOVED),
    single("fp16 compress", "nvfp4:given=0.003", ENCODE, SMALL, MOVED),
    single("fp16 decompress", "nvfp4:given=0.003", DECODE, SMALL, MOVED),
]
