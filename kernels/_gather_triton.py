"""gather_rows on a GPU: copy the used bytes of every row into one buffer."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE_WORDS = 1024  # 8-byte words a program copies: 8 KiB, four times 16 bytes a thread each way


@triton.jit
def gather_kernel(
    rows_ptr,  # int64 [n, row_words]
    offsets_ptr,  # int64 [n + 1], bytes
    buffer_ptr,  # int64 [n * row_words]
    stride_row,  # words
    TILE: tl.constexpr,
):
    """Copy one tile of one row; reads and writes only used words."""
    row = tl.program_id(0).to(tl.int64)
    # rows and offsets are multiples of 16 bytes: in this form the compiler sees it
    begin = tl.load(offsets_ptr + row) // 16 * 2
    words = (tl.load(offsets_ptr + row + 1) // 16 * 2 - begin).to(tl.int32)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = at < words
    data = tl.load(rows_ptr + row * (stride_row // 2 * 2) + at, mask=mask)
    tl.store(buffer_ptr + begin + at, data, mask=mask)


def gather(rows: torch.Tensor, offsets: torch.Tensor, buffer: torch.Tensor) -> None:
    """rows: uint8 [n, row_nbytes], rows 16-byte aligned. See `kvcodec.gather_rows`."""
    n, row_nbytes = rows.shape
    if n == 0:
        return
    grid = (n, triton.cdiv(row_nbytes // 8, TILE_WORDS))
    gather_kernel[grid](
        rows.view(torch.int64), offsets, buffer.view(torch.int64), rows.stride(0) // 8,
        TILE=TILE_WORDS,
    )  # fmt: skip
