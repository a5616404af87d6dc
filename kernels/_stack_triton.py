"""The stack on a GPU: a few launches for each part of a row, whatever the batch; no host sync."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton

from kvcodec import rans, stack
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.kernels._rows_triton import check_rows, scratch
from kvcodec.kernels._stack_decode_triton import (
    begin_kernel,
    decode_kernel,
    fill_kernel,
    slots_kernel,
)
from kvcodec.kernels._stack_encode_triton import (
    count_kernel,
    encode_kernel,
    pack_kernel,
    write_kernel,
)
from kvcodec.kernels._triton import availability, launching
from kvcodec.quantizer import Quantizer
from kvcodec.row import Section, align, row_layout

TILE_COUNT = 2048  # elements that a histogram takes in one go: 16 a thread
TILE = 1024  # bytes, words or elements that a program moves in the copying launches: 8 a thread


@dataclass(frozen=True, slots=True)
class Part:
    """A part as the kernels take it. plane: number of its first raw plane in the row."""

    begin: int = 0
    tokens: int = 0
    per: int = 0  # elements of an entry
    most: int = 0  # elements of a full block
    size: int = 1
    fields: tuple[int, int] = (8, 0)  # exponent and mantissa bits
    widths: tuple[int, ...] = ()
    plane: int = 0
    canonical: bool = False
    coded: bool = True

    def constants(self) -> dict[str, Any]:
        """Where the elements are, and what they are made of."""
        return {
            "BEGIN": self.begin, "TOKENS": self.tokens, "PER": self.per, "SIZE": self.size,
            "E": self.fields[0], "M": self.fields[1],
        }  # fmt: skip

    def planes(self) -> dict[str, int]:
        """The raw planes."""
        w0, w1, w2 = (*self.widths, 0, 0, 0)[:3]
        return {"W0": w0, "W1": w1, "W2": w2, "PLANE": self.plane}


@dataclass(frozen=True, slots=True)
class Shape:
    """A quantizer's plain rows as the kernels take them."""

    coded: tuple[Part, ...]
    raw: tuple[Part, ...]
    num_tables: int
    plain_nbytes: int
    raw_nbytes: int
    num_planes: int
    lanes: int
    block_size: int

    def constants(self) -> dict[str, Any]:
        """What every decoding kernel takes."""
        return {
            "T": self.block_size, "P": self.num_tables, "PLAIN": self.plain_nbytes,
            "LAYOUT": self.num_planes + 1, "LANES": self.lanes,
        }  # fmt: skip

    def encode_scratch(self, n: int) -> tuple[int, ...]:
        """Bytes of the tables, sizes, raw planes, states and words of n rows on their way."""
        tables = 1024 * self.num_tables * n, 4 * (self.num_tables + 1) * n
        return (*tables, align(self.raw_nbytes) * n, 4 * self.lanes * n, self.plain_nbytes * n)

    def decode_scratch(self, n: int) -> tuple[int, ...]:
        """Bytes of the expanded tables, states and positions of n rows."""
        return 4 * rans.TOTAL * n, 4 * self.lanes * n, 4 * n


@functools.lru_cache(maxsize=64)
def shape_of(codec: Quantizer, spec: BlockSpec) -> Shape:
    """Parts of a plain codec's rows."""
    sections = codec.sections(spec, stack.PLAIN)
    offsets, nbytes = row_layout(sections, {})
    parts, planes = [], 0
    for s in sections:
        fmt = stack.float_format(s.coding)
        size, fields = 1, (8, 0)
        if fmt is not None:
            size, fields = fmt.itemsize, (fmt.exponent_bits, fmt.mantissa_bits)
        elif s.coding == "raw":
            fields = (0, 7)
        elif s.coding in stack.NIBBLES:
            size, fields = 0, (4, 0)
        entries = s.shape[0] if s.shape and s.tokens else 1
        most = 2 * s.nbytes() if size == 0 else s.nbytes() // size
        widths = stack.raw_widths(s.coding)
        parts.append(
            Part(
                offsets[s.name], s.tokens, most // entries, most, size, fields, widths, planes,
                s.coding == "e2m1", s.coding != "raw",
            )
        )  # fmt: skip
        planes += len(widths)
    coded = tuple(p for p in parts if p.coded)
    return Shape(
        coded or (Part(),),  # seeds go through the coder all the same
        tuple(p for p in parts if p.widths),
        len(coded),
        nbytes,
        sum(sum(stack.raw_nbytes(s, spec.block_size)) for s in sections),
        planes,
        rans.num_lanes(spec.nbytes),
        spec.block_size,
    )


@functools.lru_cache(maxsize=64)
def layout_of(codec: Quantizer, spec: BlockSpec, device: torch.device) -> torch.Tensor:
    """int32 [block_size + 1, planes + 1]: where a row's raw planes begin, by its valid tokens.

    The copy to the device, which waits for it, happens once.
    """
    sections: tuple[Section, ...] = codec.sections(spec, stack.PLAIN)
    table = []
    for valid in range(spec.block_size + 1):
        ends = [0]
        for s in sections:
            for nbytes in stack.raw_nbytes(s, valid):
                ends.append(ends[-1] + nbytes)
        table.append(ends)
    return torch.tensor(table, dtype=torch.int32, device=device)


def quantizer_of(rows: EncodedBlocks) -> Quantizer:
    """The plain codec of rows."""
    if not isinstance(rows.codec, Quantizer):
        raise TypeError(f"the stack got rows of a {type(rows.codec).__name__} codec")
    return rows.codec.plain


class TritonCoder:
    """See `registry.Coder`."""

    def encode_rows(
        self,
        plain: EncodedBlocks,
        out: EncodedBlocks,
        *,
        workspace: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Count and pack each part, code the parts from last to first, write the shorter row.

        Traffic: reads the plain rows three times, the second and third time from the L2 cache
        unless the batch outgrows it; raw planes and words cross the workspace once.
        """
        with launching(plain.payload):
            encode(plain, out, workspace)

    def decode_rows(
        self,
        encoded: EncodedBlocks,
        plain: EncodedBlocks,
        *,
        workspace: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Decode part by part, then join exponents with their raw planes.

        A damaged row whose sizes do not tile it becomes a row without valid tokens; any other
        damage gives wrong values. Loads stay in the row, and loops end with the block.

        Traffic: reads the coded rows once, writes the plain rows up to three times.
        """
        with launching(plain.payload):
            decode(encoded, plain, workspace)

    def workspace_nbytes(self, codec: Quantizer, spec: BlockSpec, num_blocks: int) -> int:
        """Scratch of encoding or decoding, whichever takes more."""
        shape = shape_of(codec.plain, spec)
        return max(
            sum(map(align, shape.encode_scratch(num_blocks))),
            sum(map(align, shape.decode_scratch(num_blocks))),
        )

    def unavailable(self, device: torch.device) -> str | None:
        """As for every Triton kernel."""
        return availability(device)


def encode(plain: EncodedBlocks, out: EncodedBlocks, workspace: torch.Tensor | None) -> None:
    """Launches of `TritonCoder.encode_rows`."""
    codec, spec, n = quantizer_of(plain), plain.spec, len(plain)
    check_rows(plain.payload)
    check_rows(out.payload)
    shape, device = shape_of(codec, spec), plain.payload.device
    layout = layout_of(codec, spec, device)
    pieces = scratch(workspace, device, *shape.encode_scratch(n))
    tables, sizes = pieces[0].view(torch.uint32), pieces[1].view(torch.int32)
    raw, states, words = pieces[2], pieces[3].view(torch.uint32), pieces[4].view(torch.uint16)
    rows, stride = plain.payload, plain.payload.stride(0)
    run = {"RAW": align(shape.raw_nbytes), "LAYOUT": shape.num_planes + 1}
    coder = {"LANES": shape.lanes, "MAX_WORDS": shape.plain_nbytes // 2}
    for i, part in enumerate(shape.coded[: shape.num_tables]):
        count_kernel[(n,)](
            rows, tables, sizes, stride, T=spec.block_size, CANON=part.canonical,
            **part.constants(), PART=i, P=shape.num_tables, TILE=TILE_COUNT,
        )  # fmt: skip
    for part in shape.raw:
        most = triton.cdiv(part.most * max(part.widths), 8)
        pack_kernel[(n, triton.cdiv(most, TILE))](
            rows, raw, layout, stride, T=spec.block_size,
            **part.constants(), **part.planes(), **run, TILE=TILE,
        )  # fmt: skip
    last = len(shape.coded) - 1
    for i, part in reversed(list(enumerate(shape.coded))):
        encode_kernel[(n,)](
            rows, tables, sizes, raw, layout, states, words, stride,
            T=spec.block_size, CANON=part.canonical, **part.constants(),
            PART=i, P=shape.num_tables, FIRST=i == last, **run, **coder, num_warps=1,
        )  # fmt: skip
    nibbles = [part for part in shape.coded if part.canonical]
    canon = (nibbles[0].begin, nibbles[0].begin + nibbles[0].most // 2) if nibbles else (0, 0)
    write_kernel[(n, triton.cdiv(shape.plain_nbytes, TILE))](
        rows, tables, sizes, raw, layout, states, words, out.payload, out.nbytes,
        stride, out.payload.stride(0), out.nbytes.stride(0),
        T=spec.block_size, P=shape.num_tables, PLAIN=shape.plain_nbytes,
        CANON_BEGIN=canon[0], CANON_END=canon[1], **run, **coder, TILE=TILE,
    )  # fmt: skip


def decode(encoded: EncodedBlocks, plain: EncodedBlocks, workspace: torch.Tensor | None) -> None:
    """Launches of `TritonCoder.decode_rows`."""
    codec, spec, n = quantizer_of(plain), plain.spec, len(plain)
    check_rows(plain.payload)
    check_rows(encoded.payload)
    shape, device = shape_of(codec, spec), plain.payload.device
    layout, known = layout_of(codec, spec, device), shape.constants()
    pieces = scratch(workspace, device, *shape.decode_scratch(n))
    slots, states = pieces[0].view(torch.uint32), pieces[1].view(torch.uint32)
    reads = pieces[2].view(torch.int32)
    rows, target = encoded.payload, plain.payload
    sizes = rows.stride(0), encoded.nbytes.stride(0), rows.shape[1]
    source = rows, encoded.nbytes, layout
    begin_kernel[(n, triton.cdiv(shape.plain_nbytes, TILE))](
        *source, target, plain.nbytes, *sizes, target.stride(0), plain.nbytes.stride(0),
        **known, TILE=TILE,
    )  # fmt: skip
    for i, part in enumerate(shape.coded):
        if shape.num_tables:
            slots_kernel[(n,)](*source, slots, *sizes, PART=i, **known, num_warps=8)
        decode_kernel[(n,)](
            *source, slots, target, states, reads, *sizes, target.stride(0),
            **part.constants(), FIRST=i == 0, **known, num_warps=1,
        )  # fmt: skip
    for part in shape.raw:
        fill_kernel[(n, triton.cdiv(part.most, TILE))](
            *source, states, target, *sizes, target.stride(0),
            **part.constants(), **part.planes(), **known, TILE=TILE,
        )  # fmt: skip


CODER = TritonCoder()
