"""turboquant on a GPU: one launch for a batch, straight between the paged cache and the rows."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import functools
from typing import Any, cast

import numpy as np
import torch
import triton
import triton.language as tl

from kvcodec.bits import int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.turboquant import THRESHOLDS, TurboQuant
from kvcodec.kernels._float_triton import finite, load_bits, narrow, widen
from kvcodec.kernels._int4_groups_triton import finite_or_zero, pack
from kvcodec.kernels._rotation_triton import hadamard, num_stages, tables
from kvcodec.kernels._rows_triton import check_rows, valid_tokens
from kvcodec.kernels._triton import TritonKernel
from kvcodec.row import row_layout

TILE = 2048  # elements of a program: 16 a thread of 4 warps


@triton.jit
def store_plane(
    row_ptr, first, codes, PLANE: tl.constexpr, WIDTH: tl.constexpr, VECTORS: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, D_PAD: tl.constexpr,
):  # fmt: skip
    """Write the fields [ROWS, D_PAD] of vectors `first...` into the plane at byte PLANE."""
    vector = first + tl.arange(0, ROWS)[:, None]
    byte = tl.arange(0, D_PAD * WIDTH // 8)[None, :]
    at = row_ptr + PLANE + vector * (D * WIDTH // 8) + byte
    inside = (vector < VECTORS) & (byte < D * WIDTH // 8)
    tl.store(at, pack(codes, WIDTH, ROWS, D_PAD), mask=inside)


@triton.jit
def load_plane(row_ptr, element, inside, PLANE: tl.constexpr, WIDTH: tl.constexpr):
    """Fields of elements by their numbers in the block."""
    byte = tl.load(row_ptr + PLANE + element // (8 // WIDTH), mask=inside, other=0).to(tl.uint32)
    return (byte >> (element % (8 // WIDTH) * WIDTH).to(tl.uint32)) & ((1 << WIDTH) - 1)


@triton.jit
def encode_kernel(
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    ids_ptr,  # int64 [n]
    valid_ptr,  # int32 [n]; unused unless HAS_VALID
    rows_ptr,  # uint8 [n, ROW or more]
    norms_ptr,  # int16 or int32 [n, T * H], a view of the rows
    nbytes_ptr,  # int32 [n]
    flips_ptr,  # int32 [D], sign bits of the rotation
    factors_ptr,  # fp32 [D], of the rotation
    edges_ptr,  # fp32 [2^(BITS - 1) - 1]
    stride_block, stride_token, stride_head, stride_dim, stride_row, stride_norms,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    NORM_E: tl.constexpr, NORM_M: tl.constexpr, BITS: tl.constexpr, ROOT: tl.constexpr,
    PLANE0: tl.constexpr, PLANE1: tl.constexpr, PLANE0_END: tl.constexpr,
    PLANE1_END: tl.constexpr, NORMS: tl.constexpr, NORMS_END: tl.constexpr, ROW: tl.constexpr,
    HAS_VALID: tl.constexpr, ROWS: tl.constexpr, D_PAD: tl.constexpr, STAGES: tl.constexpr,
    HALVINGS: tl.constexpr,
):  # fmt: skip
    """Encode ROWS vectors, each held in registers."""
    i = tl.program_id(0).to(tl.int64)
    valid = valid_tokens(valid_ptr, i, T, HAS_VALID)
    row_ptr = rows_ptr + i * stride_row
    if tl.program_id(1) == 0:
        lane = tl.arange(0, 16)
        prefix = tl.where(lane == 2, valid & 0xFF, tl.where(lane == 3, valid >> 8, 0))
        tl.store(row_ptr + lane, prefix.to(tl.uint8))
        nothing = tl.zeros([16], tl.uint8)
        tl.store(row_ptr + PLANE0_END + lane, nothing, mask=lane < PLANE1 - PLANE0_END)
        tl.store(row_ptr + PLANE1_END + lane, nothing, mask=lane < NORMS - PLANE1_END)
        tl.store(row_ptr + NORMS_END + lane, nothing, mask=lane < ROW - NORMS_END)
        tl.store(nbytes_ptr + i, ROW)
    first = tl.program_id(1) * ROWS
    r = first + tl.arange(0, ROWS)  # [ROWS]
    token, head = r // H, r % H
    d = tl.arange(0, D_PAD)[None, :]  # [1, D_PAD]
    start = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    counts = ((r < T * H) & (token < valid))[:, None] & (d < D)
    bits = load_bits(block_ptr + start[:, None] + d.to(tl.int64) * stride_dim, counts)
    magnitude = finite(bits & ((1 << (E + M)) - 1), E, M)
    largest = widen(tl.max(magnitude, 1), E, M).to(tl.uint32, bitcast=True)
    exponent = tl.minimum(tl.maximum(largest >> 23, 1), 253)
    power = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    size = widen(magnitude, E, M) * power[:, None]
    s = size * size
    for k in tl.static_range(HALVINGS):
        a, b = tl.split(tl.reshape(s, [ROWS, D_PAD >> (k + 1), 2]))
        s = a + b
    radius = tl.sqrt_rn(tl.reshape(s, [ROWS]))
    flips = load_bits(flips_ptr + d, d < D)
    factors = tl.load(factors_ptr + d, mask=d < D, other=0.0)
    sign = (bits >> (E + M) << 31) ^ flips
    u = (size.to(tl.uint32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    y = hadamard(u, factors, D, STAGES, ROWS, D_PAD)
    z = y * tl.div_rn(ROOT, radius)[:, None]
    codes = tl.where(z < 0, 1 << (BITS - 1), 0).to(tl.uint32)
    for k in tl.static_range((1 << (BITS - 1)) - 1):
        codes += (tl.abs(z) >= tl.load(edges_ptr + k)).to(tl.uint32)
    if BITS == 3:
        store_plane(row_ptr, first, codes & 3, PLANE0, 2, T * H, D, ROWS, D_PAD)
        store_plane(row_ptr, first, codes >> 2, PLANE1, 1, T * H, D, ROWS, D_PAD)
    else:
        store_plane(row_ptr, first, codes, PLANE0, BITS, T * H, D, ROWS, D_PAD)
    norm = radius * (exponent << 23).to(tl.float32, bitcast=True)
    pattern = narrow(norm, NORM_E, NORM_M).to(norms_ptr.dtype.element_ty)
    tl.store(norms_ptr + i * stride_norms + r, pattern, mask=r < T * H)


@triton.jit
def decode_kernel(
    rows_ptr,  # uint8 [n, row bytes]
    norms_ptr,  # int16 or int32 [n, T * H], a view of the rows
    ids_ptr,  # int64 [n]
    cache_ptr,  # intW [num_blocks, T, H, D], any strides
    flips_ptr,  # int32 [D], sign bits of the rotation
    factors_ptr,  # fp32 [D], of the rotation
    book_ptr,  # fp32 [2^BITS], values of the codes
    stride_row, stride_norms, stride_block, stride_token, stride_head, stride_dim,
    T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr,
    NORM_E: tl.constexpr, NORM_M: tl.constexpr, BITS: tl.constexpr, ROOT: tl.constexpr,
    PLANE0: tl.constexpr, PLANE1: tl.constexpr, ROWS: tl.constexpr, D_PAD: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Decode ROWS vectors; nothing a row holds moves a store out of its block."""
    i = tl.program_id(0).to(tl.int64)
    row_ptr = rows_ptr + i * stride_row
    valid = tl.load(row_ptr + 2).to(tl.int32) | tl.load(row_ptr + 3).to(tl.int32) << 8
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    token, head = r // H, r % H
    d = tl.arange(0, D_PAD)[None, :]  # [1, D_PAD]
    inside = (r < T * H)[:, None] & (d < D)
    element = (r * D)[:, None] + d
    if BITS == 3:
        codes = load_plane(row_ptr, element, inside, PLANE0, 2)
        codes |= load_plane(row_ptr, element, inside, PLANE1, 1) << 2
    else:
        codes = load_plane(row_ptr, element, inside, PLANE0, BITS)
    v = tl.load(book_ptr + codes.to(tl.int32))
    factors = tl.load(factors_ptr + d, mask=d < D, other=0.0)
    w = hadamard(v, factors, D, STAGES, ROWS, D_PAD).to(tl.uint32, bitcast=True)
    w = (w ^ load_bits(flips_ptr + d, d < D)).to(tl.float32, bitcast=True)
    norm = finite_or_zero(load_bits(norms_ptr + i * stride_norms + r, r < T * H), NORM_E, NORM_M)
    value = (w * tl.div_rn(norm, ROOT)[:, None]).to(tl.uint32, bitcast=True)
    size = (value & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    bits = narrow(size, E, M) | value >> 31 << (E + M)
    bits = tl.where((token < valid)[:, None], bits, 0)
    start = token.to(tl.int64) * stride_token + head.to(tl.int64) * stride_head
    block_ptr = cache_ptr + tl.load(ids_ptr + i) * stride_block
    at = block_ptr + start[:, None] + d.to(tl.int64) * stride_dim
    tl.store(at, bits.to(cache_ptr.dtype.element_ty), mask=inside)


def compress(
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    num_valid: torch.Tensor | None,
    out: EncodedBlocks,
    **unused: Any,
) -> None:
    """Encode a batch in one launch, without workspace or host sync.

    Traffic: reads the elements once, writes the row.
    """
    codec, spec = cast(TurboQuant, out.codec), out.spec
    sections = codec.sections(spec, 0)
    offsets, nbytes = row_layout(sections, {})
    ends = {s.name: offsets[s.name] + s.nbytes() for s in sections}
    sizes = out.nbytes.contiguous()  # a copy if they have gaps, written back below
    valid = block_ids if num_valid is None else num_valid.contiguous()
    norms, shared = row_norms(codec, spec, out), constants(codec, spec)
    encode_kernel[grid(spec, len(out))](
        int_view(cache), block_ids.contiguous(), valid, out.payload, norms, sizes,
        *tables(spec.head_dim, cache.device), edges(codec.bits, cache.device),
        *cache.stride(), out.payload.stride(0), norms.stride(0),
        **shared, PLANE0_END=ends["codes0"], PLANE1_END=ends.get("codes1", offsets["norms"]),
        NORMS=offsets["norms"], NORMS_END=ends["norms"], ROW=nbytes,
        HAS_VALID=num_valid is not None, HALVINGS=int(shared["D_PAD"]).bit_length() - 1,
        enable_fp_fusion=False,
    )  # fmt: skip
    if sizes is not out.nbytes:
        out.nbytes.copy_(sizes)


def decompress(
    encoded: EncodedBlocks, cache: torch.Tensor, block_ids: torch.Tensor, **unused: Any
) -> None:
    """Decode a batch in one launch, without workspace or host sync.

    Traffic: reads the rows, writes the elements once.
    """
    codec, spec = cast(TurboQuant, encoded.codec), encoded.spec
    norms = row_norms(codec, spec, encoded)
    decode_kernel[grid(spec, len(encoded))](
        encoded.payload, norms, block_ids.contiguous(), int_view(cache),
        *tables(spec.head_dim, cache.device), book(codec.bits, cache.device),
        encoded.payload.stride(0), norms.stride(0), *cache.stride(),
        **constants(codec, spec), enable_fp_fusion=False,
    )  # fmt: skip


def vectors(spec: BlockSpec) -> tuple[int, int]:
    """Vectors of a tile, and head_dim padded to a power of two.

    Half a tile where there is padding: each stage then keeps both its input and its result.
    """
    d_pad: int = triton.next_power_of_2(spec.head_dim)
    tile = TILE if d_pad == spec.head_dim else TILE // 2
    return max(1, tile // d_pad), d_pad


def grid(spec: BlockSpec, n: int) -> tuple[int, int]:
    """Programs: blocks, tiles of vectors."""
    return n, triton.cdiv(spec.block_size * spec.num_kv_heads, vectors(spec)[0])


def constants(codec: TurboQuant, spec: BlockSpec) -> dict[str, int | float]:
    """Constants that both kernels take."""
    offsets, _ = row_layout(codec.sections(spec, 0), {})
    rows, d_pad = vectors(spec)
    return {
        "T": spec.block_size,
        "H": spec.num_kv_heads,
        "D": spec.head_dim,
        "E": spec.format.exponent_bits,
        "M": spec.format.mantissa_bits,
        "NORM_E": codec.norm_format.exponent_bits,
        "NORM_M": codec.norm_format.mantissa_bits,
        "BITS": codec.bits,
        "ROOT": float(np.sqrt(np.float32(spec.head_dim))),
        "PLANE0": offsets["codes0"],
        "PLANE1": offsets.get("codes1", offsets["norms"]),
        "ROWS": rows,
        "D_PAD": d_pad,
        "STAGES": num_stages(spec.head_dim),
    }


def row_norms(codec: TurboQuant, spec: BlockSpec, rows: EncodedBlocks) -> torch.Tensor:
    """Norms of the rows as integers [n, T * H], a view of the payload."""
    check_rows(rows.payload)
    begin = row_layout(codec.sections(spec, 0), {})[0]["norms"]
    nbytes = spec.block_size * spec.num_kv_heads * codec.norm_format.itemsize
    word = torch.int16 if codec.norm_format.itemsize == 2 else torch.int32
    return rows.payload[:, begin : begin + nbytes].view(word)


@functools.lru_cache(maxsize=16)
def edges(bits: int, device: torch.device) -> torch.Tensor:
    """Thresholds on a device, one unused where there is none; copied once."""
    patterns = np.array(THRESHOLDS[bits] or (0,), np.uint32)
    return torch.from_numpy(patterns.view(np.float32)).to(device)


@functools.lru_cache(maxsize=16)
def book(bits: int, device: torch.device) -> torch.Tensor:
    """Values of the codes on a device; copied once."""
    return torch.from_numpy(TurboQuant(bits).book()).to(device)


KERNEL = TritonKernel(compress, decompress)
