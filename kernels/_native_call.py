"""The Python side of every native kernel: tensors to integers, threads, scratch, errors."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import torch

from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.errors import CorruptDataError, InvalidInputError

_native: ModuleType | None
try:
    from kvcodec.kernels import _native
except ImportError as error:
    _native, _missing = None, str(error)

# Order of `Format` in native/common.h; the fnuz types have the fields of their fn twins.
FORMATS = {
    torch.bfloat16: 0,
    torch.float16: 1,
    torch.float32: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e4m3fnuz: 3,
    torch.float8_e5m2: 4,
    torch.float8_e5m2fnuz: 4,
}

# Order of `Fault` in native/common.h, from 1.
FAULTS = (
    "its length leaves its slot or is shorter than a prefix",
    "its mode does not exist",
    "its reserved byte is not 0",
    "num_valid is over the block size",
    "its parts do not tile it",
    "its raw part does not hold the valid tokens",
    "it is coded, without valid tokens",
    "its symbol table does not ascend or does not sum to 4096",
    "a rANS state is below 2^16",
    "its rANS words do not end where its states do",
    "an exponent is wider than its field",
    "its sign and mantissa part has the wrong size",
    "it has a scale that is not a number or out of range",
    "its bit planes have the wrong size",
    "the ends of its tiles do not ascend to its counts",
    "its escapes do not ascend, or lie outside the valid elements",
    "the second codes of a tile do not fill its words",
)
BEST = -1  # instruction set: the best this machine has
THREAD_NBYTES = 256 * 1024  # raw bytes that are worth starting a thread for, about 50 us


def extension() -> ModuleType:
    """The compiled module; callers have asked `unavailable` before."""
    if _native is None:
        raise ImportError(_missing)
    return _native


def num_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_threads(num_threads: int | None, num_blocks: int, spec: BlockSpec) -> int:
    """Threads of a call: as many as asked for, or as the work is worth; at most one per block."""
    if num_threads is not None and num_threads < 1:
        raise InvalidInputError(f"num_threads is {num_threads}, wanted at least 1, or None for all")
    wanted = num_threads or 1 + num_blocks * spec.nbytes // THREAD_NBYTES
    return max(1, min(wanted, num_cores(), num_blocks))


@dataclass(frozen=True, slots=True)
class NativeKernel(ABC):
    """Kernel of one codec: functions `<name>_compress` and `<name>_decompress` of the extension.

    isa: index of an instruction set in `extension().isas()`; tests force each.
    """

    name: ClassVar[str]
    isa: int = BEST

    @abstractmethod
    def scratch_nbytes(self, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """Scratch that either call of so many blocks and threads needs."""

    def scratch_for(self, codec: Codec, spec: BlockSpec, num_blocks: int, num_threads: int) -> int:
        """The same under a codec, where its parameters count."""
        return self.scratch_nbytes(spec, num_blocks, num_threads)

    @abstractmethod
    def extra(self, codec: Codec, spec: BlockSpec) -> tuple[int | torch.Tensor, ...]:
        """The codec's own arguments; a tensor stands for its address."""

    def compress(
        self,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        num_valid: torch.Tensor | None,
        out: EncodedBlocks,
        *,
        positions: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """See `Codec.compress`."""
        call = getattr(extension(), f"{self.name}_compress")
        self._run(call, cache, block_ids, num_valid, out, workspace, num_threads)

    def decompress(
        self,
        encoded: EncodedBlocks,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        *,
        positions: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """See `Codec.decompress`; nothing is written unless every row is sound."""
        call = getattr(extension(), f"{self.name}_decompress")
        damage = self._run(call, cache, block_ids, None, encoded, workspace, num_threads)
        if damage >= 0:
            raise damaged(encoded, self.name, damage)

    def _run(
        self,
        call: object,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        num_valid: torch.Tensor | None,
        rows: EncodedBlocks,
        workspace: torch.Tensor | None,
        num_threads: int | None,
    ) -> int:
        spec, n = rows.spec, len(block_ids)
        threads = choose_threads(num_threads, n, spec)
        needed = self.scratch_for(rows.codec, spec, n, threads)
        scratch = scratch_of(workspace, needed)
        # named, so that they live as long as their addresses are used
        extra = self.extra(rows.codec, spec)
        ids = block_ids.contiguous()
        valid = None if num_valid is None else num_valid.contiguous()
        result: int = call(  # type: ignore[operator]
            self.isa, threads,
            cache.data_ptr(), cache.shape[0], *spec.shape, *cache.stride(), cache.element_size(),
            ids.data_ptr(), n, 0 if valid is None else valid.data_ptr(),
            rows.payload.data_ptr(), rows.payload.stride(0), rows.payload.shape[1],
            rows.nbytes.data_ptr(), rows.nbytes.stride(0),
            scratch.data_ptr(), scratch.numel(),
            *(e.data_ptr() if isinstance(e, torch.Tensor) else e for e in extra),
        )  # fmt: skip
        return result

    def workspace_nbytes(self, codec: Codec, spec: BlockSpec, num_blocks: int) -> int:
        """Scratch of either call with any number of threads."""
        most = max(1, min(num_cores(), num_blocks))
        return self.scratch_for(codec, spec, num_blocks, most)

    def unavailable(self, device: torch.device) -> str | None:
        """Host tensors only, and only where the extension was built."""
        return availability(device)


def scratch_of(workspace: torch.Tensor | None, needed: int) -> torch.Tensor:
    """The caller's workspace, or memory of that many bytes.

    Raises:
        InvalidInputError: the workspace is of another kind, or too small.
    """
    scratch = torch.empty(needed, dtype=torch.uint8) if workspace is None else workspace
    if scratch.dtype != torch.uint8 or not scratch.is_contiguous() or scratch.is_cuda:
        raise InvalidInputError(
            f"workspace is {scratch.dtype} on {scratch.device}, wanted contiguous uint8 on cpu"
        )
    if scratch.numel() < needed:
        raise InvalidInputError(
            f"workspace has {scratch.numel()} bytes, wanted {needed}; see workspace_nbytes"
        )
    return scratch


def damaged(rows: EncodedBlocks, what: str, damage: int) -> CorruptDataError:
    """The error of rows for damage as the extension returns it."""
    row, fault = damage >> 8, damage & 255
    return CorruptDataError(
        f"{what}: row {row} of {rows.nbytes[row]} bytes, mode {rows.payload[row, 0]}: "
        f"{FAULTS[fault - 1]}"
    )


def availability(device: torch.device) -> str | None:
    """None, or why native kernels cannot run on tensors of `device`."""
    if device.type != "cpu":
        return f"native kernels run on cpu tensors, not on {device.type}"
    if _native is None:
        return (
            f"the compiled extension kvcodec.kernels._native is missing ({_missing}); "
            "install with a C++17 compiler at hand, or run 'python setup.py build_ext "
            "--inplace' in a checkout"
        )
    return None
