"""raw without a compiler: one copy for all rows of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvcodec.bits import U8, from_bits, to_bits
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.kernels._dense import DenseKernel
from kvcodec.row import read_rows, row_layout


def encode(
    blocks: torch.Tensor,
    num_valid: torch.Tensor,
    out: EncodedBlocks,
    positions: torch.Tensor | None = None,
) -> None:
    """See `Codec.encode`."""
    begin, nbytes = part_and_row(out)
    rows, valid = out.payload.numpy()[:, :nbytes], num_valid.numpy()
    elements = rows[:, begin : begin + out.spec.nbytes]
    rows[:, :begin] = 0
    rows[:, 2:4] = valid.astype("<u2").view(np.uint8).reshape(-1, 2)
    elements[:] = to_bits(blocks).reshape(len(rows), -1).view(np.uint8)
    rows[:, begin + out.spec.nbytes :] = 0
    clear_unused(elements, valid, out.spec)
    out.nbytes.fill_(nbytes)


def decode(encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
    """See `Codec.decode`."""
    spec = encoded.spec
    valid = np.array([row.num_valid for row in read_rows(encoded)])
    begin, _ = part_and_row(encoded)
    blocks = encoded.payload.numpy()[:, begin : begin + spec.nbytes].copy()
    clear_unused(blocks, valid, spec)
    return from_bits(blocks.view(f"u{spec.dtype.itemsize}").reshape(-1, *spec.shape), spec.dtype)


def part_and_row(rows: EncodedBlocks) -> tuple[int, int]:
    """Where the elements begin in a row, and the row's bytes."""
    offsets, nbytes = row_layout(rows.codec.sections(rows.spec, 0), {})
    return offsets["elements"], nbytes


def clear_unused(blocks: U8, valid: npt.NDArray[Any], spec: BlockSpec) -> None:
    """Zero the slots past `valid[i]` tokens of each block of bytes."""
    token_nbytes = spec.token_numel * spec.dtype.itemsize
    for i in np.flatnonzero(valid < spec.block_size):
        blocks[i, valid[i] * token_nbytes :] = 0


KERNEL = DenseKernel(encode, decode)
