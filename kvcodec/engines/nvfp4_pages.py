"""nvfp4 rows and what engines call NVFP4: pages, global scales, swizzled scales.

Rows of the `nvfp4` codec hold codes and linear scales over [token, head, dim] under a scale that
multiplies on decoding. Engines have the same numbers in other places and conventions; each function
here is one named step between the two, on tensors of any device, and none of them rounds a code.
"""

from __future__ import annotations

import torch

from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.nvfp4 import GROUP, Nvfp4
from kvcodec.errors import InvalidInputError
from kvcodec.row import row_layout

TILE_ROWS, TILE_COLUMNS = 128, 4


def page_nbytes(spec: BlockSpec) -> int:
    """Bytes of a page of one plane: head_dim / 2 + head_dim / 16 for every vector."""
    return spec.block_size * spec.num_kv_heads * (spec.head_dim // 2 + spec.head_dim // GROUP)


def page_parts(pages: torch.Tensor, spec: BlockSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of vLLM (FlashInfer) pages: codes [n, H, T, D / 2] and scales [n, H, T, D / 16].

    pages: uint8 [n, page_nbytes], the last axis contiguous. A page holds its heads one after the
    other, and a head the codes of all its tokens, then the scales of all its tokens.
    """
    if (
        pages.dtype != torch.uint8
        or pages.dim() != 2
        or pages.shape[1] != page_nbytes(spec)
        or pages.stride(1) != 1
    ):
        raise InvalidInputError(
            f"pages are {pages.dtype} {tuple(pages.shape)} with strides {pages.stride()}, wanted "
            f"uint8 [n, {page_nbytes(spec)}] with contiguous pages"
        )
    tokens, heads, dim = spec.shape
    slots = pages.view(len(pages), heads, -1)
    codes = slots[..., : tokens * dim // 2].view(len(pages), heads, tokens, -1)
    return codes, slots[..., tokens * dim // 2 :].view(len(pages), heads, tokens, -1)


def row_parts(rows: EncodedBlocks) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of rows: codes [n, T, H, D / 2] and scales [n, T, H, D / 16]."""
    sections = rows.codec.sections(rows.spec, 0)
    offsets, _ = row_layout(sections, {})
    codes, scales = (
        rows.payload[:, offsets[s.name] :][:, : s.nbytes()].view(len(rows), *(s.shape or ()))
        for s in sections[:2]
    )
    return codes, scales


def rows_to_pages(rows: EncodedBlocks) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages uint8 [n, page_nbytes] and the decode scales fp32 [n] of their blocks.

    An engine with one scale for a layer needs rows of a codec with that scale `given`: then all of
    the decode scales are the same. Unused tokens are zeros.
    """
    codec = _nvfp4(rows)
    pages = torch.empty(
        len(rows), page_nbytes(rows.spec), dtype=torch.uint8, device=rows.payload.device
    )
    for page, part in zip(page_parts(pages, rows.spec), row_parts(rows), strict=True):
        page.copy_(part.transpose(1, 2))
    if codec.given is not None:
        return pages, torch.full((len(rows),), codec.given, device=pages.device)
    begin = row_layout(codec.sections(rows.spec, 0), {})[0]["global"]
    return pages, rows.payload[:, begin : begin + 4].contiguous().view(torch.float32)[:, 0]


def pages_to_rows(pages: torch.Tensor, spec: BlockSpec, decode_scale: float) -> EncodedBlocks:
    """Rows of full blocks from pages under one decode scale, which becomes the codec's `given`.

    spec: its element type is what the rows decode to.
    """
    codec = Nvfp4(given=decode_scale)
    codec.require(spec)
    rows = EncodedBlocks.empty(codec, spec, len(pages), pages.device)
    rows.payload.zero_()
    rows.payload[:, 2] = spec.block_size & 0xFF
    rows.payload[:, 3] = spec.block_size >> 8
    rows.nbytes.fill_(codec.max_nbytes(spec))
    for part, page in zip(row_parts(rows), page_parts(pages, spec), strict=True):
        part.copy_(page.transpose(1, 2))
    return rows


def encode_scale_2688(amax: torch.Tensor) -> torch.Tensor:
    """Global encode scale of vLLM, compressed-tensors and TensorRT-LLM: 2688 / amax."""
    return 2688.0 / amax.to(torch.float32)


def encode_scale_448(amax: torch.Tensor) -> torch.Tensor:
    """Global encode scale that leaves the codes' 6 out, 448 / amax: group scales stay below 75."""
    return 448.0 / amax.to(torch.float32)


def decode_scale(encode_scale: torch.Tensor) -> torch.Tensor:
    """The scale that multiplies on decoding (`Nvfp4.given`), whatever the convention: 1 / scale.

    It differs from the scale that `nvfp4` measures, amax / 2688 in one rounding, by an ulp or so.
    """
    return 1.0 / encode_scale.to(torch.float32)


def swizzle_scales(scales: torch.Tensor) -> torch.Tensor:
    """Linear scale bytes [M, K] in the order of the tensor cores' 128x4 tiles, padded with zeros.

    Returns uint8 [ceil(M / 128) * ceil(K / 4) * 512]: tiles row by row; in a tile, row m and
    column k stand at `m % 32 * 16 + m // 32 * 4 + k`.
    """
    rows, columns = scales.shape
    tall, wide = -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
    padded = scales.new_zeros(tall * TILE_ROWS, wide * TILE_COLUMNS)
    padded[:rows, :columns] = scales
    return padded.view(tall, 4, 32, wide, 4).permute(0, 3, 2, 1, 4).reshape(-1)


def unswizzle_scales(swizzled: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Inverse of `swizzle_scales`: linear scale bytes [rows, columns]."""
    tall, wide = -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
    if swizzled.shape != (tall * wide * 512,):
        raise InvalidInputError(
            f"swizzled scales are {tuple(swizzled.shape)}, wanted [{tall * wide * 512}] for "
            f"{rows} rows of {columns}"
        )
    tiles = swizzled.view(tall, wide, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(tall * TILE_ROWS, wide * TILE_COLUMNS)[:rows, :columns]


def _nvfp4(rows: EncodedBlocks) -> Nvfp4:
    if not isinstance(rows.codec, Nvfp4):
        raise InvalidInputError(f"rows are {rows.codec}, wanted rows of nvfp4")
    return rows.codec
