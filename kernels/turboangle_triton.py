"""turboangle on a GPU: one launch for a batch, straight between the paged cache and the rows."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
from __future__ import annotations

import functools
import math
from typing import Any, cast

import numpy as np
import torch
import triton

from kvcodec import angles, fixed_log, radix
from kvcodec.bits import int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.turboangle import STORED, TurboAngle
from kvcodec.kernels import _rotation_triton
from kvcodec.kernels._rows_triton import check_rows
from kvcodec.kernels._triton import TritonKernel
from kvcodec.kernels._turboangle_decode_triton import decode_kernel
from kvcodec.kernels._turboangle_encode_triton import encode_kernel
from kvcodec.row import row_layout

TILE = 1024  # elements of a program's tile: packing holds four integers for each in registers


def compress(
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    num_valid: torch.Tensor | None,
    out: EncodedBlocks,
    **unused: Any,
) -> None:
    """Encode a batch in one launch, without workspace or host sync.

    Traffic: reads the elements once, writes the row; tables of a few KiB stay in the cache.
    """
    codec, spec = cast(TurboAngle, out.codec), out.spec
    check_rows(out.payload)
    offsets, nbytes = row_layout(codec.sections(spec, 0), {})
    stored = stored_view(codec, spec, out)
    sizes = out.nbytes.contiguous()  # a copy if they have gaps, written back below
    valid = block_ids if num_valid is None else num_valid.contiguous()
    edges, _, powers, logs = tables(codec.n, cache.device)
    rows, d_pad = tile(spec)
    ends = offsets.get("minmax", nbytes)
    encode_kernel[grid(len(out), spec, rows)](
        int_view(cache), block_ids.contiguous(), valid, out.payload, stored, sizes,
        *_rotation_triton.tables(spec.head_dim, cache.device), edges, powers, logs,
        *cache.stride(), out.payload.stride(0), stored.stride(0),
        **constants(codec, spec), TURNS=codec.n / (2 * math.pi), ENDS=ends,
        ENDS_END=nbytes if ends == nbytes else ends + stored.shape[1] * stored.element_size(),
        ROW=nbytes, HAS_VALID=num_valid is not None, ROWS=rows, D_PAD=d_pad,
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
    codec, spec = cast(TurboAngle, encoded.codec), encoded.spec
    check_rows(encoded.payload)
    stored = stored_view(codec, spec, encoded)
    _, directions, powers, logs = tables(codec.n, cache.device)
    rows, d_pad = tile(spec)
    bits, norm_bits = packing(codec.n)[0], codec.norm_bits
    runs = codec.norm not in STORED and 0 < bits <= 8 and norm_bits <= 8 and d_pad == spec.head_dim
    rows *= 2 if runs else 1  # a thread of 4 warps decodes a run of 16 elements
    decode_kernel[grid(len(encoded), spec, rows)](
        encoded.payload, stored, block_ids.contiguous(), int_view(cache),
        *_rotation_triton.tables(spec.head_dim, cache.device), directions, powers, logs,
        _rotation_triton.flip_words(spec.head_dim, cache.device),
        encoded.payload.stride(0), stored.stride(0), *cache.stride(),
        **constants(codec, spec), RUNS=runs, ROWS=rows, D_PAD=d_pad,
        enable_fp_fusion=False,
    )  # fmt: skip


def tile(spec: BlockSpec) -> tuple[int, int]:
    """Vectors of a program, and their padded length, at least one byte's worth of 1-bit codes."""
    d_pad = max(16, triton.next_power_of_2(spec.head_dim))
    return max(1, TILE // d_pad), d_pad


def grid(n: int, spec: BlockSpec, rows: int) -> tuple[int, int]:
    """Programs: rows of the batch, tiles of their vectors."""
    return n, triton.cdiv(spec.block_size * spec.num_kv_heads, rows)


def packing(n: int) -> tuple[int, int, int]:
    """Bits of a code, or 0 for digits; codes and bytes of a group."""
    if not radix.is_power_of_two(n):
        return (0, *radix.group(n))
    bits = n.bit_length() - 1
    group = 8 // math.gcd(bits, 8)
    return bits, group, group * bits // 8


def constants(codec: TurboAngle, spec: BlockSpec) -> dict[str, Any]:
    """Constants that both kernels take."""
    pairs, whole = spec.head_dim // 2, codec.norm in STORED
    fmt = STORED[codec.norm if whole else codec.minmax]
    bits, group, group_nbytes = packing(codec.n)
    norm_bits, norm_group, norm_nbytes = packing(1 << codec.norm_bits)
    per_vector = radix.packed_nbytes(pairs, 1 << codec.norm_bits)
    return {
        "T": spec.block_size, "H": spec.num_kv_heads, "D": spec.head_dim,
        "E": spec.format.exponent_bits, "M": spec.format.mantissa_bits,
        "STORED_E": fmt.exponent_bits, "STORED_M": fmt.mantissa_bits,
        "WHOLE": whole, "LOG": codec.norm == "log", "N": codec.n,
        "BITS": bits, "GROUP": group, "GROUP_NBYTES": group_nbytes,
        "A": radix.packed_nbytes(pairs, codec.n),
        "NORM_BITS": norm_bits, "NORM_GROUP": norm_group, "NORM_NBYTES": norm_nbytes,
        "B": pairs * fmt.itemsize if whole else per_vector,
        "NORMS": row_layout(codec.sections(spec, 0), {})[0]["norms"],
        "STAGES": _rotation_triton.num_stages(spec.head_dim),
    }  # fmt: skip


def stored_view(codec: TurboAngle, spec: BlockSpec, rows: EncodedBlocks) -> torch.Tensor:
    """The rows' whole norms [n, T H P], or their ranges [n, T H 2], as integers."""
    name = "norms" if codec.norm in STORED else "minmax"
    begin = row_layout(codec.sections(spec, 0), {})[0][name]
    [section] = (s for s in codec.sections(spec, 0) if s.name == name)
    width = int(section.dtype[-1])
    data = rows.payload[:, begin : begin + section.nbytes()]
    return data.view(torch.int16 if width == 2 else torch.int32)


@functools.lru_cache(maxsize=64)
def tables(
    n: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Boundaries, directions, powers of n, logarithms and powers; copied to a device once."""
    powers = [n**j % 2**64 for j in range(radix.group(n)[0])]
    logs = np.concatenate([fixed_log.log_table(), fixed_log.power_table()]).astype(np.int32)
    arrays = angles.boundaries(n), angles.directions(n), np.array(powers, np.int64), logs
    first, second, third, fourth = (torch.from_numpy(a.copy()).to(device) for a in arrays)
    return first, second, third, fourth


KERNEL = TritonKernel(compress, decompress)
