"""bitplane on a GPU: three launches to encode, two to decode, and no host sync."""

from __future__ import annotations

from typing import Any, cast

import torch
import triton

from kvcodec.bits import int_view, plane_widths
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.bitplane import TILE, Bitplane, num_columns, num_tiles
from kvcodec.kernels._bitplane_decode_triton import decode_kernel, patch_kernel
from kvcodec.kernels._bitplane_encode_triton import bases_kernel, count_kernel, write_kernel
from kvcodec.kernels._bits_triton import format_constants
from kvcodec.kernels._rows_triton import check_rows, neighbours, scratch
from kvcodec.kernels._triton import TritonKernel
from kvcodec.row import align

CHANNELS = 64  # whose bases a program looks for: 2 a lane, or half a warp for each of 4 warps
TOKENS = 32  # that it looks at together: 16 elements a thread
CHUNK = 128  # escapes that a program patches together: a tile of Gaussian channels has about 110
FILL = 1024  # elements of a raw row, or zeros, that it moves together: 32 a thread


def paired(cache: torch.Tensor) -> torch.Tensor | None:
    """The cache as pairs of neighbours of a head, where they lie side by side in whole words."""
    return neighbours(int_view(cache), 2)


def constants(codec: Bitplane, spec: BlockSpec) -> dict[str, int | bool]:
    """Constants of blocks and rows that most kernels take."""
    w0, w1, w2 = (*plane_widths(spec.format.raw_bits), 0, 0)[:3]
    ends = 16 + align(spec.token_numel)
    return {
        "T": spec.block_size, "H": spec.num_kv_heads, "D": spec.head_dim,
        **format_constants(spec.format),
        "W": num_columns(spec), "W0": w0, "W1": w1, "W2": w2,
        "TWO_LEVEL": codec.two_level,
        "PLANES": ends + align((8 if codec.two_level else 4) * num_tiles(spec)),
        "TILE": TILE,
    }  # fmt: skip


def ends_offset(spec: BlockSpec) -> int:
    """Where the ends of tiles begin in a row."""
    return 16 + align(spec.token_numel)


def counts_nbytes(spec: BlockSpec, n: int) -> int:
    """Bytes of two counts for each tile."""
    return 8 * num_tiles(spec) * n


def workspace_nbytes(codec: object, spec: BlockSpec, num_blocks: int) -> int:
    """Scratch of `compress`; `decompress` takes none."""
    return align(counts_nbytes(spec, num_blocks))


def compress(
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    num_valid: torch.Tensor | None,
    out: EncodedBlocks,
    *,
    workspace: torch.Tensor | None,
    **unused: Any,
) -> None:
    """Encode a batch: find bases, count what has no fixed size, write the rows.

    Traffic: reads the blocks E + 2 times, from the L2 cache but for the first unless the batch
    outgrows it; writes the rows, and the room of second codes once more.
    """
    codec, spec, n, rows = cast(Bitplane, out.codec), out.spec, len(out), out.payload
    check_rows(rows)
    (counts,) = scratch(workspace, cache.device, counts_nbytes(spec, n))
    counts = counts.view(torch.int32)
    ids = block_ids.contiguous()
    valid = ids if num_valid is None else num_valid.contiguous()
    block = {**constants(codec, spec), "HAS_VALID": num_valid is not None}
    elements, pairs = int_view(cache), paired(cache)
    shape = {k: block[k] for k in ("T", "H", "D", "E", "M", "HAS_VALID")}
    tokens = min(TOKENS, triton.next_power_of_2(spec.block_size))
    bases_kernel[(n, triton.cdiv(spec.token_numel, CHANNELS))](
        elements, ids, valid, rows, *elements.stride(), rows.stride(0), **shape,
        QUANTILE=codec.rate.quantile, DEPTH=codec.rate.depth, TOKENS=tokens, CHANNELS=CHANNELS,
    )  # fmt: skip
    source = elements if pairs is None else pairs
    grid = n, num_tiles(spec)
    count_kernel[grid](
        source, ids, valid, rows, counts, *source.stride(), rows.stride(0), rows.shape[1],
        **block, PAIRED=pairs is not None, num_warps=2,
    )  # fmt: skip
    write_kernel[grid](
        source, ids, valid, rows, counts, out.nbytes,
        *source.stride(), rows.stride(0), out.nbytes.stride(0),
        **block, ENDS=ends_offset(spec), PAIRED=pairs is not None,
        TILES=grid[1], POW2_TILES=triton.next_power_of_2(grid[1]), num_warps=2,
    )  # fmt: skip


def decompress(
    encoded: EncodedBlocks, cache: torch.Tensor, block_ids: torch.Tensor, **unused: Any
) -> None:
    """Decode a batch: planes to elements; then escapes, raw rows and the zeros of unused slots.

    A damaged row whose sizes do not tile it decodes to zeros; any other damage gives wrong values.
    Neither loads leave the row nor stores the block, and loops are bounded by the row's size.

    Traffic: reads the rows once and writes the blocks once; each escape moves a sector each way.
    """
    codec, spec, n = cast(Bitplane, encoded.codec), encoded.spec, len(encoded)
    rows = encoded.payload
    check_rows(rows)
    ids, elements, pairs = block_ids.contiguous(), int_view(cache), paired(cache)
    target = elements if pairs is None else pairs
    sizes = rows.stride(0), encoded.nbytes.stride(0), rows.shape[1]
    block, ends = constants(codec, spec), ends_offset(spec)
    grid = n, num_tiles(spec)
    decode_kernel[grid](
        rows, encoded.nbytes, target, ids, *sizes, *target.stride(),
        **block, ENDS=ends, PAIRED=pairs is not None, num_warps=2,
    )  # fmt: skip
    patch_kernel[grid](
        rows, encoded.nbytes, elements, ids, *sizes, *elements.stride(),
        **block, ENDS=ends, CHUNK=CHUNK, FILL=FILL, num_warps=1,
    )  # fmt: skip


KERNEL = TritonKernel(compress, decompress, workspace_nbytes)
