"""segments on a GPU: each segment by its codec's Triton kernel, rows put together on the device.

A segment's codec sees a view of the cache where blocks are contiguous and the segment's elements
lie at multiples of their size; otherwise blocks are copied into the workspace first. No host sync.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton

from kvcodec.bits import int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.codecs.raw import Raw
from kvcodec.codecs.segments import CUT, Segments, layout_of
from kvcodec.kernels import raw_triton
from kvcodec.kernels._rows_triton import check_rows, scratch
from kvcodec.kernels._segments_triton import keep_kernel, pack_kernel, return_kernel, unpack_kernel
from kvcodec.kernels._triton import TritonKernel
from kvcodec.registry import load_kernel
from kvcodec.row import align, row_layout
from kvcodec.segments import Layout, parse_layout, windows

TILE = 1024  # words of 8 bytes, or elements, that a program moves
PREFIX = 16  # bytes in front of a raw block


@dataclass(frozen=True, slots=True)
class Scratch:
    """A workspace, cut: raw rows for blocks that need a copy, rows of each segment, the rest."""

    staged: EncodedBlocks
    rows: tuple[EncodedBlocks, ...]
    rest: torch.Tensor


def owners(codec: Segments, spec: BlockSpec) -> list[tuple[Codec, BlockSpec]]:
    """What rows in the workspace are of: whole blocks, then each segment."""
    return [(Raw(), spec), *zip(codec.parts, codec.part_specs(spec), strict=True)]


def sizes_of(codec: Segments, spec: BlockSpec, n: int) -> list[int]:
    """Bytes of the workspace's pieces: rows, their sizes, and what the segments' kernels need."""
    found = owners(codec, spec)
    rest = max(load_kernel(of, "triton").workspace_nbytes(of, s, n) for of, s in found[1:])
    return [*(n * of.max_nbytes(inner) for of, inner in found), *(4 * n for _ in found), rest]


def workspace_nbytes(codec: Codec, spec: BlockSpec, num_blocks: int) -> int:
    """Bytes of either call."""
    return sum(map(align, sizes_of(layout_of(codec)[0], spec, num_blocks)))


def cut_workspace(
    codec: Segments, spec: BlockSpec, n: int, workspace: torch.Tensor | None, device: torch.device
) -> Scratch:
    """The pieces as batches of rows."""
    *pieces, rest = scratch(workspace, device, *sizes_of(codec, spec, n))
    found = owners(codec, spec)
    payloads, sizes = pieces[: len(found)], pieces[len(found) :]
    staged, *rows = [
        EncodedBlocks(of, inner, payload.view(n, -1), size.view(torch.int32))
        for (of, inner), payload, size in zip(found, payloads, sizes, strict=True)
    ]
    return Scratch(staged, tuple(rows), rest)


def view_segments(
    data: torch.Tensor, layout: Layout, shape: torch.Size
) -> list[torch.Tensor] | None:
    """Each segment of blocks' bytes [n, nbytes] as [n, T, H, numel]; None if one is misaligned."""
    found = []
    for segment, window in zip(layout.segments, windows(data, layout, shape[1]), strict=True):
        places = (window.data_ptr(), *window.stride()[:-1])
        if any(place % segment.dtype.itemsize for place in places):
            return None
        found.append(window.view(segment.dtype).view(len(data), *shape[1:3], segment.numel))
    return found


def view_cache(cache: torch.Tensor, layout: Layout) -> list[torch.Tensor] | None:
    """Each segment as a view of the cache; None where blocks must be copied first."""
    if not cache[0].is_contiguous():
        return None
    flat = int_view(cache).as_strided((len(cache), cache[0].numel()), (cache.stride(0), 1))
    return view_segments(flat.view(torch.uint8), layout, cache.shape)


def copy_segments(data: torch.Tensor, layout: Layout, shape: torch.Size) -> list[torch.Tensor]:
    """Each segment as a contiguous copy, for layouts whose elements are not aligned."""
    return [
        window.contiguous().view(segment.dtype).view(len(data), *shape[1:3], segment.numel)
        for segment, window in zip(layout.segments, windows(data, layout, shape[1]), strict=True)
    ]


def block_bytes(staged: EncodedBlocks) -> torch.Tensor:
    """The blocks of raw rows, uint8 [n, nbytes]."""
    return staged.payload[:, PREFIX : PREFIX + staged.spec.nbytes]


def constants(codec: Segments, spec: BlockSpec) -> dict[str, int]:
    """What the kernels that take rows apart and put them together share."""
    sections = codec.sections(spec, CUT)
    offsets, _ = row_layout(sections, dict.fromkeys((s.name for s in sections), 0))
    header = offsets[sections[0].name]
    return {"S": len(sections), "HEADER": header, "T": spec.block_size, "TILE": TILE}


def runs(codec: Segments, spec: BlockSpec) -> Iterator[dict[str, int]]:
    """Elements of the cache where each run of the layout lies, and those of a token and head."""
    size, begin = spec.dtype.itemsize, 0
    for nbytes in parse_layout(codec.layout).run_nbytes:
        end = begin + spec.block_size * spec.num_kv_heads * nbytes // size
        yield {"BEGIN": begin, "END": end, "WIDTH": nbytes // size}
        begin = end


def compress(
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    num_valid: torch.Tensor | None,
    out: EncodedBlocks,
    *,
    workspace: torch.Tensor | None = None,
    **unused: Any,
) -> None:
    """The launches of every segment's codec, and one more a segment; then blocks kept raw."""
    codec, layout = layout_of(out.codec)
    check_rows(out.payload)
    n, spec, ids = len(out), out.spec, block_ids.contiguous()
    made = cut_workspace(codec, spec, n, workspace, cache.device)
    views, at = view_cache(cache, layout), ids
    if views is None:
        raw_triton.compress(cache, ids, None, made.staged)
        data, at = block_bytes(made.staged), torch.arange(n, device=cache.device)
        views = view_segments(data, layout, cache.shape) or copy_segments(data, layout, cache.shape)
    for view, rows in zip(views, made.rows, strict=True):
        load_kernel(rows.codec, "triton").compress(
            view, at, num_valid, rows, positions=None, workspace=made.rest, num_threads=None
        )
    sizes = torch.stack([rows.nbytes for rows in made.rows], 1)
    valid = ids if num_valid is None else num_valid.contiguous()
    bound, header = Raw().max_nbytes(spec), constants(codec, spec)["HEADER"]
    for i, rows in enumerate(made.rows):
        grid = (n, triton.cdiv(rows.payload.shape[1] // 8, TILE))
        pack_kernel[grid](
            rows.payload.view(torch.int64), sizes, valid, out.payload, out.nbytes,
            rows.payload.stride(0) // 8, out.payload.stride(0), out.nbytes.stride(0),
            INDEX=i, HAS_VALID=num_valid is not None, LOSSLESS=codec.lossless, BOUND=bound,
            LANES=triton.next_power_of_2(header // 4),
            **constants(codec, spec),
        )  # fmt: skip
    if not codec.lossless:
        return
    for run in runs(codec, spec):
        last = run["END"] == spec.numel
        stop = (bound - PREFIX) // spec.dtype.itemsize if last else run["END"]
        keep_kernel[(n, triton.cdiv(stop - run["BEGIN"], TILE))](
            int_view(cache), ids, out.payload, *cache.stride(), out.payload.stride(0),
            H=spec.num_kv_heads, D=spec.head_dim, STOP=stop, TILE=TILE, **run,
        )  # fmt: skip


def decompress(
    encoded: EncodedBlocks,
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    *,
    workspace: torch.Tensor | None = None,
    **unused: Any,
) -> None:
    """A launch a segment, and those of its codec, into the cache; then the blocks kept raw."""
    codec, layout = layout_of(encoded.codec)
    check_rows(encoded.payload)
    n, spec, ids = len(encoded), encoded.spec, block_ids.contiguous()
    made = cut_workspace(codec, spec, n, workspace, cache.device)
    data = block_bytes(made.staged)
    direct = view_cache(cache, layout)
    aligned = direct or view_segments(data, layout, cache.shape)
    views = aligned or copy_segments(data, layout, cache.shape)
    at = ids if direct else torch.arange(n, device=cache.device)
    for i, (view, rows) in enumerate(zip(views, made.rows, strict=True)):
        limit = rows.payload.shape[1]
        unpack_kernel[(n, triton.cdiv(limit // 8, TILE))](
            encoded.payload, encoded.nbytes, rows.payload.view(torch.int64), rows.nbytes,
            encoded.payload.stride(0), encoded.nbytes.stride(0), rows.payload.stride(0) // 8,
            INDEX=i, CAPACITY=encoded.payload.shape[1], LIMIT=limit, **constants(codec, spec),
        )  # fmt: skip
        load_kernel(rows.codec, "triton").decompress(
            rows, view, at, positions=None, workspace=made.rest, num_threads=None
        )
    if not direct:
        if not aligned:
            for view, window in zip(views, windows(data, layout, spec.block_size), strict=True):
                window.copy_(view.flatten(1, 2).view(torch.uint8))
        send(made.staged, cache, ids)
    for run in runs(codec, spec):
        return_kernel[(n, triton.cdiv(run["END"] - run["BEGIN"], TILE))](
            encoded.payload, encoded.nbytes, int_view(cache), ids,
            encoded.payload.stride(0), encoded.nbytes.stride(0), *cache.stride(),
            BOUND=Raw().max_nbytes(spec), T=spec.block_size, H=spec.num_kv_heads,
            D=spec.head_dim, TILE=TILE, **run,
        )  # fmt: skip


def send(staged: EncodedBlocks, cache: torch.Tensor, ids: torch.Tensor) -> None:
    """Staged blocks into the cache, every token of them."""
    head = staged.payload[:, :PREFIX]
    head.zero_()
    head[:, 2].fill_(staged.spec.block_size & 0xFF)
    head[:, 3].fill_(staged.spec.block_size >> 8)
    staged.nbytes.fill_(staged.payload.shape[1])
    raw_triton.decompress(staged, cache, ids)


KERNEL = TritonKernel(compress, decompress, workspace_nbytes)
