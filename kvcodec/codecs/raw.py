"""raw: the bytes of the block as they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvcodec.bits import from_bits, to_bits
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.errors import CorruptDataError
from kvcodec.registry import register
from kvcodec.row import Section, read_rows, row_layout, write_row


@register
@dataclass(frozen=True, slots=True)
class Raw(Codec):
    """Keep a block bit for bit, uncompressed.

    Cost: one read and one write of the block. Format: formats/raw.md.
    """

    name = "raw"
    lossless = True
    fixed_size = True
    head_splittable = True
    stream_ordered = True
    idempotent = True
    examples = ("raw",)

    def supports(self, spec: BlockSpec) -> str | None:
        """Every spec."""
        return None

    def sections(self, spec: BlockSpec, mode: int) -> tuple[Section, ...]:
        """One part, the elements' bit patterns."""
        if mode != 0:
            raise CorruptDataError(f"raw: mode {mode}, wanted 0")
        return (Section("elements", f"<u{spec.dtype.itemsize}", spec.shape, head_axis=1),)

    def max_nbytes(self, spec: BlockSpec) -> int:
        """16 bytes of prefix and the block, padded."""
        return row_layout(self.sections(spec, 0), {})[1]

    def encode(
        self,
        blocks: torch.Tensor,
        num_valid: torch.Tensor,
        out: EncodedBlocks,
        positions: torch.Tensor | None = None,
    ) -> None:
        """Copy the valid tokens; the others are zeros."""
        payload, sections = out.payload.numpy(), self.sections(out.spec, 0)
        for i, valid in enumerate(num_valid.tolist()):
            elements = to_bits(blocks[i]).copy()
            elements[valid:] = 0
            out.nbytes[i] = write_row(payload[i], sections, 0, valid, {"elements": elements})

    def decode(self, encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Copy back."""
        bits = np.zeros((len(encoded), *encoded.spec.shape), f"u{encoded.spec.dtype.itemsize}")
        for block, row in zip(bits, read_rows(encoded), strict=True):
            block[: row.num_valid] = row.parts["elements"][: row.num_valid]
        return from_bits(bits, encoded.spec.dtype)
