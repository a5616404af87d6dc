"""turboquant on the host with numpy: the reference's own steps, over chunks of blocks.

Elements are converted by torch, with the casts that tests/test_fp8_kernels.py holds against
`kvcodec.exact`.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch

from kvcodec.bits import int_view
from kvcodec.block import EncodedBlocks
from kvcodec.codecs.turboquant import TurboQuant
from kvcodec.kernels._dense import DenseKernel
from kvcodec.kernels.fp8_vector import chunks, narrow_into, unused_slots
from kvcodec.row import read_rows, row_layout


def encode(
    blocks: torch.Tensor,
    num_valid: torch.Tensor,
    out: EncodedBlocks,
    positions: torch.Tensor | None = None,
) -> None:
    """See `Codec.encode`."""
    codec, spec = cast(TurboQuant, out.codec), out.spec
    sections = codec.sections(spec, 0)
    offsets, nbytes = row_layout(sections, {})
    rows = out.payload[:, :nbytes]
    rows[:, :16] = 0
    rows[:, 2:4] = num_valid.to(torch.int16).view(torch.uint8).view(-1, 2)
    for end, section in zip([*[*offsets.values()][1:], nbytes], sections, strict=True):
        rows[:, offsets[section.name] + section.nbytes() : end] = 0
    out.nbytes.fill_(nbytes)
    unused = unused_slots(num_valid, spec)
    for at in chunks(len(rows), spec):
        x = blocks[at].to(torch.float32, copy=True)
        if unused is not None:
            x.masked_fill_(unused[at], 0)
        for name, part in codec.quantize(x.numpy()).items():
            flat = np.ascontiguousarray(part).reshape(len(x), -1).view(np.uint8)
            rows[at, offsets[name] :][:, : flat.shape[1]] = torch.from_numpy(flat)


def decode(encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
    """See `Codec.decode`."""
    codec, spec = cast(TurboQuant, encoded.codec), encoded.spec
    sections = codec.sections(spec, 0)
    offsets, nbytes = row_layout(sections, {})
    rows = encoded.payload[:, :nbytes]
    num_valid = rows[:, 2].to(torch.int32) | rows[:, 3].to(torch.int32) << 8
    damaged = (encoded.nbytes != nbytes) | rows[:, :2].any(1) | (num_valid > spec.block_size)
    if bool(damaged.any()):
        read_rows(encoded)  # raises, and says which field is wrong
    unused = unused_slots(num_valid, spec)
    blocks = torch.empty(len(rows), *spec.shape, dtype=spec.dtype)
    for at in chunks(len(rows), spec):
        parts = {
            s.name: np.ascontiguousarray(rows[at, offsets[s.name] :].numpy()[:, : s.nbytes()])
            .view(s.dtype)
            .reshape(-1, *(s.shape or ()))
            for s in sections
        }
        elements = int_view(blocks[at])
        narrow_into(elements, torch.from_numpy(codec.dequantize(parts)), spec.format)
        if unused is not None:
            elements.masked_fill_(unused[at], 0)
    return blocks


KERNEL = DenseKernel(encode, decode)
