"""turboangle on the host with numpy: a chunk of vectors at a time, one vector to a column.

With vectors as columns every step of the butterfly, of the pairs and of the packing runs over
contiguous memory. The fp32 steps are the reference's, in its order; only the estimate of an angle,
which decides nothing, is a library function. Casts of elements are torch's, inside their range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from kvcodec import angles, exact, radix
from kvcodec.bits import U8, int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.turboangle import STORED, TINY, TurboAngle, scales, store, whole_norms
from kvcodec.exact import F32
from kvcodec.kernels._dense import DenseKernel
from kvcodec.rotation import block_sizes, norm_factor, signs
from kvcodec.row import read_rows, row_layout

CHUNK_NUMEL = 1 << 18  # elements of a chunk: its fp32 values, 1 MiB, stay in cache


def encode(
    blocks: torch.Tensor,
    num_valid: torch.Tensor,
    out: EncodedBlocks,
    positions: torch.Tensor | None = None,
) -> None:
    """See `Codec.encode`."""
    codec, spec = cast(TurboAngle, out.codec), out.spec
    sections = codec.sections(spec, 0)
    offsets, nbytes = row_layout(sections, {})
    rows = out.payload.numpy()[:, :nbytes]
    rows[:, :16] = 0
    rows[:, 2:4] = num_valid.numpy().astype("<u2").view(np.uint8).reshape(-1, 2)
    out.nbytes.fill_(nbytes)
    for at in chunks(len(rows), spec):
        x = columns(blocks[at], num_valid[at])
        down, up = scales(np.abs(x).max(0))
        x *= signs(spec.head_dim)[:, None]
        y = hadamard(np.multiply(x, down, out=x))
        y[np.abs(y) < TINY] = 0
        a, b = np.ascontiguousarray(y[0::2]), np.ascontiguousarray(y[1::2])
        r = exact.sqrt(a * a + b * b)
        parts = {"angles": pack(nearest(a, b, codec.n), codec.n)}
        if codec.norm in STORED:
            parts["norms"] = store(exact.mul(r, up).T, codec.norm)
        else:
            q, parts["minmax"] = codec.code_norms(r.T, down[:, None], up[:, None])
            parts["norms"] = pack(q.T, 1 << codec.norm_bits)
        for section in sections:
            begin, size = offsets[section.name], section.nbytes()
            data = np.ascontiguousarray(parts[section.name]).view(np.uint8)
            rows[at, begin : begin + size] = data.reshape(-1, size)
            rows[at, begin + size : begin + -(-size // 16) * 16] = 0


def decode(encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
    """See `Codec.decode`."""
    codec, spec = cast(TurboAngle, encoded.codec), encoded.spec
    sections = codec.sections(spec, 0)
    offsets, nbytes = row_layout(sections, {})
    rows = encoded.payload.numpy()[:, :nbytes]
    num_valid = rows[:, 2].astype(np.int64) | rows[:, 3].astype(np.int64) << 8
    sizes = encoded.nbytes.numpy()
    if (sizes != nbytes).any() or rows[:, :2].any() or (num_valid > spec.block_size).any():
        read_rows(encoded)  # raises, and says which field is wrong
    blocks = torch.empty(len(rows), *spec.shape, dtype=spec.dtype)
    pairs = spec.head_dim // 2
    for at in chunks(len(rows), spec):
        parts = {}
        for section in sections:
            begin = offsets[section.name]
            data = np.ascontiguousarray(rows[at, begin : begin + section.nbytes()])
            width = data.shape[1] // (spec.block_size * spec.num_kv_heads)
            parts[section.name] = data.reshape(-1, width).view(section.dtype)
        k = unpack(parts["angles"], pairs, codec.n)
        if codec.norm in STORED:
            r, up = whole_norms(parts["norms"])
        else:
            q = unpack(parts["norms"], pairs, 1 << codec.norm_bits)
            r, up = codec.norms_of(q.T, parts["minmax"])
        y = np.empty((spec.head_dim, k.shape[1]), np.float32)
        cos, sin = angles.directions(codec.n).T
        np.multiply(r.T, cos[k], out=y[0::2])
        np.multiply(r.T, sin[k], out=y[1::2])
        x = hadamard(y)
        x *= signs(spec.head_dim)[:, None]
        store_columns(blocks[at], exact.mul(x, up[:, 0]), num_valid[at])
    return blocks


def chunks(num_blocks: int, spec: BlockSpec) -> Iterator[slice]:
    """Slices of a batch, each about CHUNK_NUMEL elements and at least one block."""
    step = max(1, CHUNK_NUMEL // spec.numel)
    return (slice(begin, begin + step) for begin in range(0, num_blocks, step))


def columns(blocks: torch.Tensor, num_valid: torch.Tensor) -> F32:
    """Finite fp32 values [head_dim, vectors] of blocks, zeros past num_valid."""
    bits = int_view(blocks)
    if bool((num_valid < blocks.shape[1]).any()):
        unused = torch.arange(blocks.shape[1]) >= num_valid[:, None]
        bits = bits.masked_fill(unused[:, :, None, None], 0)
    most = torch.finfo(blocks.dtype).max
    x = bits.view(blocks.dtype).to(torch.float32).nan_to_num(nan=0.0, posinf=most, neginf=-most)
    return np.ascontiguousarray(x.view(-1, blocks.shape[3]).numpy().T)


def store_columns(blocks: torch.Tensor, x: F32, num_valid: npt.NDArray[np.int64]) -> None:
    """Round values [head_dim, vectors] into blocks, saturating; zeros past num_valid."""
    x += np.float32(0)  # -0 becomes 0
    most = torch.finfo(blocks.dtype).max
    values = torch.from_numpy(np.ascontiguousarray(x.T)).clamp_(-most, most)
    blocks.copy_(values.view(blocks.shape))
    unused = torch.arange(blocks.shape[1]) >= torch.from_numpy(num_valid)[:, None]
    int_view(blocks).masked_fill_(unused[:, :, None, None], 0)


def hadamard(y: F32) -> F32:
    """H y down the columns [head_dim, vectors], as `kvcodec.rotation` does; y is spent."""
    spare, begin = np.empty_like(y), 0
    for size in block_sizes(len(y)):
        source, target = y[begin : begin + size], spare[begin : begin + size]
        stride = 1
        while stride < size:
            shape = (size // (2 * stride), 2, stride, y.shape[1])
            pairs, sums = source.reshape(shape), target.reshape(shape)
            np.add(pairs[:, 0], pairs[:, 1], out=sums[:, 0])
            np.subtract(pairs[:, 0], pairs[:, 1], out=sums[:, 1])
            source, target, stride = target, source, 2 * stride
        np.multiply(source, norm_factor(size), out=y[begin : begin + size])
        begin += size
    return y


def nearest(a: F32, b: F32, n: int) -> radix.Codes:
    """`angles.nearest`: only the boundary nearest to an estimate of the angle is compared."""
    position = np.arctan2(b, a) * np.float32(n / (2 * math.pi))
    position += np.where(position < 0, np.float32(n), np.float32(0))
    i = np.minimum(position.astype(np.int64), n - 1)
    bx, by = angles.boundaries(n).T
    code = i + (b * bx[i] > a * by[i])
    return np.where(code == n, 0, code)


def grouping(n: int) -> tuple[int, int]:
    """(m, b): m codes in b bytes, powers of two included."""
    if not radix.is_power_of_two(n):
        return radix.group(n)
    width = n.bit_length() - 1
    m = 8 // math.gcd(width, 8)
    return m, m * width // 8


def pack(codes: radix.Codes, n: int) -> U8:
    """`radix.pack` of columns: [count, vectors] to [vectors, packed_nbytes]."""
    m, nbytes = grouping(n)
    if nbytes > 8:  # n = 512
        return radix.pack(codes.T, n)
    words = np.zeros((-(-len(codes) // m), codes.shape[1]), np.uint64)
    for j in reversed(range(m)):
        digits = codes[j::m].astype(np.uint64)
        words *= np.uint64(n)
        words[: len(digits)] += digits
    data = np.ascontiguousarray(words.T).astype("<u8").view(np.uint8)
    data = data.reshape(codes.shape[1], -1, 8)[..., :nbytes].reshape(codes.shape[1], -1)
    return data[:, : radix.packed_nbytes(len(codes), n)]


def unpack(packed: U8, count: int, n: int) -> radix.Codes:
    """`radix.unpack` to columns: [vectors, packed_nbytes] to [count, vectors]."""
    m, nbytes = grouping(n)
    if nbytes > 8:
        return radix.unpack(packed, count, n).T
    groups = -(-count // m)
    data = np.zeros((len(packed), groups * nbytes), np.uint8)
    data[:, : packed.shape[1]] = packed
    wide = np.zeros((len(packed), groups, 8), np.uint8)
    wide[..., :nbytes] = data.reshape(len(packed), groups, nbytes)
    words = np.ascontiguousarray(wide.view("<u8")[..., 0].T)
    codes = np.empty((groups * m, len(packed)), np.int64)
    for j in range(m):
        quotient = words // np.uint64(n)
        codes[j::m] = words - quotient * np.uint64(n)
        words = quotient
    return codes[:count]


KERNEL = DenseKernel(encode, decode)
