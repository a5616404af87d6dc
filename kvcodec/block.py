"""What one block is, and what an encoded batch of blocks is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from kvcodec.bits import DTYPES, FORMATS, FloatFormat
from kvcodec.errors import InvalidInputError

if TYPE_CHECKING:
    from kvcodec.codec import Codec

MAX_BLOCK_NUMEL = 1 << 24  # positions inside a block fit 24 bits in every format


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """Shape and element type of one block of one plane (keys or values of one layer)."""

    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.dtype not in FORMATS:
            known = ", ".join(DTYPES)
            raise InvalidInputError(f"BlockSpec: dtype {self.dtype} is not one of {known}")
        for name in ("block_size", "num_kv_heads", "head_dim"):
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise InvalidInputError(
                    f"BlockSpec: {name} is {size!r}, wanted an int of at least 1"
                )
        if self.block_size > 0xFFFF:
            raise InvalidInputError(f"BlockSpec: block_size {self.block_size} is over 65535")
        if self.numel > MAX_BLOCK_NUMEL:
            raise InvalidInputError(
                f"BlockSpec: {self.numel} elements in a block, at most {MAX_BLOCK_NUMEL} fit"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(block_size, num_kv_heads, head_dim)."""
        return self.block_size, self.num_kv_heads, self.head_dim

    @property
    def token_numel(self) -> int:
        """Elements of one token."""
        return self.num_kv_heads * self.head_dim

    @property
    def numel(self) -> int:
        """Elements of one block."""
        return self.block_size * self.token_numel

    @property
    def nbytes(self) -> int:
        """Raw bytes of one block."""
        return self.numel * self.dtype.itemsize

    @property
    def format(self) -> FloatFormat:
        """Float fields of the element type."""
        return FORMATS[self.dtype]

    @classmethod
    def of(cls, cache: torch.Tensor) -> BlockSpec:
        """Spec of a plane `[num_blocks, block_size, num_kv_heads, head_dim]`."""
        if cache.dim() != 4:
            raise InvalidInputError(
                f"cache has {cache.dim()} axes {tuple(cache.shape)}, wanted "
                "[num_blocks, block_size, num_kv_heads, head_dim]; see kvcodec.layout"
            )
        return cls(cache.shape[1], cache.shape[2], cache.shape[3], cache.dtype)

    def to_json(self) -> dict[str, Any]:
        """JSON form; the element type stands under its encoding's name."""
        return {
            "block_size": self.block_size,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "encoding": self.format.name,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BlockSpec:
        """Inverse of `to_json`; raises InvalidInputError on anything else."""
        wanted = {"block_size", "num_kv_heads", "head_dim", "encoding"}
        if (
            not isinstance(data, dict)
            or set(data) != wanted
            or data["encoding"] not in list(DTYPES)
        ):
            raise InvalidInputError(f"BlockSpec: got {data!r}, wanted the fields {sorted(wanted)}")
        sizes = (data["block_size"], data["num_kv_heads"], data["head_dim"])
        return cls(*sizes, DTYPES[data["encoding"]])


@dataclass(frozen=True, slots=True)
class EncodedBlocks:
    """A header-free batch of encoded blocks on any device.

    payload: uint8 [n, row_nbytes]; of row i only the first `nbytes[i]` bytes mean anything.
    nbytes: int32 [n], each a multiple of 16.
    """

    codec: Codec
    spec: BlockSpec
    payload: torch.Tensor
    nbytes: torch.Tensor

    def __len__(self) -> int:
        return self.payload.shape[0]

    @classmethod
    def empty(
        cls, codec: Codec, spec: BlockSpec, num_blocks: int, device: torch.device | str = "cpu"
    ) -> EncodedBlocks:
        """Uninitialised rows for `num_blocks` blocks, each `codec.max_nbytes(spec)` long."""
        payload = torch.empty(num_blocks, codec.max_nbytes(spec), dtype=torch.uint8, device=device)
        return cls(codec, spec, payload, torch.empty(num_blocks, dtype=torch.int32, device=device))

    def to(self, device: torch.device | str) -> EncodedBlocks:
        """The same rows on another device (every reserved byte is copied; see `gather_rows`)."""
        return replace(self, payload=self.payload.to(device), nbytes=self.nbytes.to(device))

    def __getitem__(self, rows: slice) -> EncodedBlocks:
        return replace(self, payload=self.payload[rows], nbytes=self.nbytes[rows])

    def total_nbytes(self) -> int:
        """Bytes of all rows, prefix, side information and padding included. Syncs on a GPU."""
        return int(self.nbytes.sum(dtype=torch.int64))


def concat(batches: list[EncodedBlocks]) -> EncodedBlocks:
    """One batch from several of the same codec and spec, in order."""
    if not batches:
        raise InvalidInputError("concat: no batches; the codec and spec of none are unknown")
    first = batches[0]
    for batch in batches[1:]:
        if batch.codec != first.codec or batch.spec != first.spec:
            raise InvalidInputError(
                f"concat: {batch.codec} {batch.spec} differs from {first.codec} {first.spec}"
            )
    return replace(
        first,
        payload=torch.cat([b.payload for b in batches]),
        nbytes=torch.cat([b.nbytes for b in batches]),
    )


def gather_rows(encoded: EncodedBlocks) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack the used bytes of all rows into one buffer, so that one copy moves what was kept.

    Returns:
        buffer: uint8 [n * row_nbytes]; its first `offsets[-1]` bytes are used (bounded size, so
            no host sync is needed to allocate it).
        offsets: int64 [n + 1], multiples of 16; row i is `buffer[offsets[i]:offsets[i + 1]]`.
    Cost: on a GPU one launch, reads and writes the used bytes once. No host sync.
    """
    rows, lengths = encoded.payload, encoded.nbytes.to(torch.int64)
    offsets = torch.zeros(len(encoded) + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    buffer = torch.empty(rows.numel(), dtype=torch.uint8, device=rows.device)
    if rows.is_cuda:
        from kvcodec.kernels import _gather_triton

        _gather_triton.gather(rows, offsets, buffer)
    else:
        for row, begin, end in zip(rows, offsets.tolist(), offsets.tolist()[1:], strict=False):
            buffer[begin:end] = row[: end - begin]
    return buffer, offsets
