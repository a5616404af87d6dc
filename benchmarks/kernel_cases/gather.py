"""gather_rows: words of rows into one buffer."""

from __future__ import annotations

import torch

from kernel_cases.case import NUM_ROWS, Case

GATHER_WORDS = 2690  # 8-byte words in a row of about the size that split makes of a 32 KiB block


def gather() -> None:
    from kvcodec.kernels._gather_triton import gather

    rows = torch.empty(NUM_ROWS, 8 * GATHER_WORDS, dtype=torch.uint8)
    offsets = torch.empty(NUM_ROWS + 1, dtype=torch.int64)
    gather(rows, offsets, torch.empty(rows.numel(), dtype=torch.uint8))


CASES = [
    Case(
        "gather",
        "_gather_triton.gather_kernel",
        gather,
        elements=NUM_ROWS * GATHER_WORDS,  # elements are words here
        raw_nbytes=8,
        moved_nbytes=16,
    ),
]
