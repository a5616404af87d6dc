"""segments on the host: each by the vector implementation of its codec, or by its reference."""

from __future__ import annotations

import torch

from kvcodec.block import EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.codecs.segments import decode_with, encode_with
from kvcodec.kernels._dense import DenseKernel
from kvcodec.registry import Kernel, load_kernel, why_unavailable

CPU = torch.device("cpu")
ORDER: tuple[str, ...] = ("vector", "reference")


def part_kernel(codec: Codec, order: tuple[str, ...]) -> Kernel:
    """The first of `order` that a segment's codec has here."""
    found = [impl for impl in order if why_unavailable(codec, impl, CPU) is None]
    return load_kernel(codec, found[0])


def dense_kernel(order: tuple[str, ...]) -> DenseKernel:
    """Cut, encode the parts, join; and back."""

    def encode_part(
        codec: Codec, blocks: torch.Tensor, num_valid: torch.Tensor, out: EncodedBlocks
    ) -> None:
        part_kernel(codec, order).compress(
            blocks, torch.arange(len(out)), num_valid, out,
            positions=None, workspace=None, num_threads=None,
        )  # fmt: skip

    def decode_part(rows: EncodedBlocks) -> torch.Tensor:
        blocks = torch.zeros(len(rows), *rows.spec.shape, dtype=rows.spec.dtype)
        part_kernel(rows.codec, order).decompress(
            rows, blocks, torch.arange(len(rows)), positions=None, workspace=None, num_threads=None
        )
        return blocks

    return DenseKernel(
        lambda blocks, num_valid, out, positions: encode_with(encode_part, blocks, num_valid, out),
        lambda encoded, positions: decode_with(decode_part, encoded),
    )


KERNEL = dense_kernel(ORDER)
