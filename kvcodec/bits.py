"""Float formats as integer fields, and the two bit packings every format page refers to.

Nothing here does floating-point arithmetic: tensors are reinterpreted, never converted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

U8 = npt.NDArray[np.uint8]
UInt = npt.NDArray[Any]  # uint8, uint16 or uint32


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """Sign, exponent and mantissa widths of an element type; `name` is its name in frames."""

    name: str
    dtype: torch.dtype
    exponent_bits: int
    mantissa_bits: int

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def raw_bits(self) -> int:
        """Bits of sign and mantissa together."""
        return 1 + self.mantissa_bits


FORMATS: dict[torch.dtype, FloatFormat] = {
    f.dtype: f
    for f in (
        FloatFormat("bf16", torch.bfloat16, 8, 7),
        FloatFormat("fp16", torch.float16, 5, 10),
        FloatFormat("fp32", torch.float32, 8, 23),
        FloatFormat("e4m3fn", torch.float8_e4m3fn, 4, 3),
        FloatFormat("e5m2", torch.float8_e5m2, 5, 2),
        FloatFormat("e4m3fnuz", torch.float8_e4m3fnuz, 4, 3),
        FloatFormat("e5m2fnuz", torch.float8_e5m2fnuz, 5, 2),
        FloatFormat("u8", torch.uint8, 0, 7),  # opaque bytes: no exponent field
    )
}
DTYPES: dict[str, torch.dtype] = {f.name: f.dtype for f in FORMATS.values()}

_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def int_view(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as signed integers of the same width; any strides, no copy."""
    if tensor.dtype == torch.uint8:
        return tensor
    return tensor.view(_SIGNED[tensor.dtype.itemsize])


def to_bits(tensor: torch.Tensor) -> UInt:
    """Bit patterns of a CPU tensor as unsigned integers of the same shape."""
    array: UInt = int_view(tensor).numpy()
    return array.view(_UNSIGNED[tensor.dtype.itemsize])


def from_bits(bits: UInt, dtype: torch.dtype) -> torch.Tensor:
    """Inverse of `to_bits`; shares memory with `bits`."""
    if dtype == torch.uint8:
        return torch.from_numpy(bits)
    signed = bits.view(np.dtype(f"i{bits.dtype.itemsize}"))
    return torch.from_numpy(signed).view(dtype)


def split_fields(bits: UInt, fmt: FloatFormat) -> tuple[U8, UInt]:
    """Exponent, and `sign << mantissa_bits | mantissa`, of each element."""
    m, e = fmt.mantissa_bits, fmt.exponent_bits
    exponent = ((bits >> m) & ((1 << e) - 1)).astype(np.uint8)
    raw = ((bits >> (m + e)) << m) | (bits & ((1 << m) - 1))
    return exponent, raw.astype(bits.dtype)


def join_fields(exponent: U8, raw: UInt, fmt: FloatFormat) -> UInt:
    """Inverse of `split_fields`."""
    m, e = fmt.mantissa_bits, fmt.exponent_bits
    word = raw.dtype.type
    bits = ((raw >> m) << (m + e)) | (exponent.astype(raw.dtype) << m) | (raw & word((1 << m) - 1))
    return bits.astype(raw.dtype)


def plane_widths(num_bits: int) -> tuple[int, ...]:
    """Widths of the planes that carry `num_bits` per element: bytes first, then 4, 2, 1.

    8 -> (8,), 11 -> (8, 2, 1), 24 -> (8, 8, 8), 4 -> (4,), 3 -> (2, 1).
    """
    rest = num_bits % 8
    return (8,) * (num_bits // 8) + tuple(w for w in (4, 2, 1) if rest & w)


def pack_plane(values: UInt, width: int) -> U8:
    """Pack `width`-bit integers (1, 2, 4 or 8), element i at bit `i * width`, little-endian.

    values: [..., n] with n a multiple of `8 // width`. Returns [..., n * width / 8].
    """
    per_byte = 8 // width
    grouped = values.astype(np.uint8).reshape(*values.shape[:-1], -1, per_byte)
    packed = np.zeros(grouped.shape[:-1], np.uint8)
    for i in range(per_byte):
        packed |= grouped[..., i] << (i * width)
    return packed


def unpack_plane(packed: U8, width: int) -> U8:
    """Inverse of `pack_plane`: [..., n * width / 8] -> [..., n]."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    values = (packed[..., None] >> shifts) & np.uint8((1 << width) - 1)
    return values.reshape(*packed.shape[:-1], -1)
