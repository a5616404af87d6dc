"""Layouts of rows that mix formats: named segments, each of an element type of its own.

A layout is written as text. `nope.e4m3x512+scale.fp32x4+rope.bf16x64` is a token of three segments
side by side; `/` begins a new run, which stands behind the run before it for *all* tokens of the
block: `k.e4m3x128/scale.fp32x1` is 128 bytes a token, then 4 bytes a token.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import torch

from kvcodec.bits import DTYPES
from kvcodec.errors import InvalidInputError

# `e2m1x2` is a byte of two e2m1 codes, `e8m0` a UE8M0 scale
TYPES: dict[str, torch.dtype] = {
    **DTYPES,
    "e4m3": torch.float8_e4m3fn,
    "e2m1x2": torch.uint8,
    "e8m0": torch.uint8,
}

# What engines write, by name.
LAYOUTS: dict[str, str] = {
    "mla": "nope.bf16x512+rope.bf16x64",  # latent and RoPE key of DeepSeek V2 and V3, 1,152 bytes
    "fp8_ds_mla": "nope.e4m3x512+scale.fp32x4+rope.bf16x64",  # DeepSeek V3.2, 656 bytes
    "deepseek_v4": "nope.e4m3x448+rope.bf16x64/scale.e8m0x8",  # 584: 7 scales and a pad
    "deepseek_v41": "kv.e4m3x512/scale.e8m0x16",  # 528: a scale for 32 elements
    "nvfp4_ds_mla": "nope.e2m1x2x256+rope.e4m3x64+scale.e4m3x32",  # 352: a scale for 16
    "indexer": "k.e4m3x128/scale.fp32x1",  # DeepSeek's sparse indexer, 132
}

_SEGMENT = re.compile(r"([a-z][a-z0-9_]*)\.([a-z0-9]+)x([1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Segment:
    """`numel` elements of each token, at byte `begin` of the token's part of run `run`."""

    name: str
    type: str
    dtype: torch.dtype
    numel: int
    run: int
    begin: int

    @property
    def nbytes(self) -> int:
        """Bytes of one token."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """Segments of a block, and the bytes a token takes in each run."""

    segments: tuple[Segment, ...]
    run_nbytes: tuple[int, ...]

    @property
    def token_nbytes(self) -> int:
        """Bytes of a token over all runs."""
        return sum(self.run_nbytes)


@functools.cache
def parse_layout(text: str) -> Layout:
    """Layout of a name out of LAYOUTS, or of a text in the form above.

    Raises:
        InvalidInputError: the text is malformed, or a name occurs twice.
    """
    segments: list[Segment] = []
    widths: list[int] = []
    for run, items in enumerate(LAYOUTS.get(text, text).split("/")):
        begin = 0
        for item in items.split("+"):
            match = _SEGMENT.fullmatch(item)
            if match is None or match[2] not in TYPES:
                raise InvalidInputError(
                    f"layout {text!r}: {item!r} is no segment; wanted NAME.TYPExCOUNT with a type "
                    f"of {', '.join(TYPES)}, or a layout of {', '.join(LAYOUTS)}"
                )
            segments.append(Segment(match[1], match[2], TYPES[match[2]], int(match[3]), run, begin))
            begin += segments[-1].nbytes
        widths.append(begin)
    names = [segment.name for segment in segments]
    if len(set(names)) != len(names):
        raise InvalidInputError(f"layout {text!r}: a segment's name occurs twice")
    return Layout(tuple(segments), tuple(widths))


def cut(blocks: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    """Blocks of each segment, [n, block_size, num_heads, numel] of its type, contiguous copies.

    blocks: [n, block_size, num_heads, head_dim] on the host, contiguous, `token_nbytes` bytes a
        token and head; one head if the layout has several runs.
    """
    return [
        window.contiguous().view(segment.dtype).view(*blocks.shape[:3], segment.numel)
        for segment, window in zip(
            layout.segments, windows(_bytes(blocks), layout, blocks.shape[1]), strict=True
        )
    ]


def join(parts: list[torch.Tensor], layout: Layout, blocks: torch.Tensor) -> None:
    """Inverse of `cut`, into `blocks`."""
    into = windows(_bytes(blocks), layout, blocks.shape[1])
    for segment, part, window in zip(layout.segments, parts, into, strict=True):
        window.copy_(part.reshape(*window.shape[:2], segment.numel).view(torch.uint8))


def _bytes(blocks: torch.Tensor) -> torch.Tensor:
    """uint8 [n, bytes of a block], the same memory."""
    return blocks.flatten(1).view(torch.uint8)


def windows(data: torch.Tensor, layout: Layout, block_size: int) -> list[torch.Tensor]:
    """The bytes of each segment, [n, tokens and heads, bytes of it]: views of `data`.

    data: uint8 [n, bytes of a block], the last stride 1.
    """
    found, begin = [], 0
    for run, width in enumerate(layout.run_nbytes):
        records = data.shape[1] // width if len(layout.run_nbytes) == 1 else block_size
        records_of = data[:, begin : begin + records * width].view(len(data), records, width)
        found += [
            records_of[..., segment.begin : segment.begin + segment.nbytes]
            for segment in layout.segments
            if segment.run == run
        ]
        begin += records * width
    return found
