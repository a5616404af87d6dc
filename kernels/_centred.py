"""`center=profile` for every quantizer: blocks less their means in scratch, then its own kernel."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.centred import Centred, mean_of
from kvcodec.codec import Codec
from kvcodec.errors import ImplementationUnavailableError
from kvcodec.registry import Kernel
from kvcodec.row import align
from kvcodec.tables import Tables


class Shifter(Protocol):
    """One implementation of the shift: `SHIFTER` of `kvcodec.kernels._centred_<impl>`.

    staged: [n, *spec.shape], contiguous. rows: of the centred codec, whose means are meant.
    """

    def take_off(
        self,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        rows: EncodedBlocks,
        staged: torch.Tensor,
        num_threads: int | None,
    ) -> None:
        """staged = cache[block_ids] - means; unused slots may hold anything."""

    def put_back(
        self,
        staged: torch.Tensor,
        rows: EncodedBlocks,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        num_threads: int | None,
    ) -> None:
        """cache[block_ids] = staged + means, zeros past each row's num_valid; staged is scratch."""


@dataclass(frozen=True, slots=True)
class CentredKernel:
    """A quantizer's kernel, stacked or plain, and a shifter, with dense blocks between them."""

    kernel: Kernel
    shifter: Shifter

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
        codec = centred_of(out.codec)
        staged, ids, rest = self._stage(out, workspace)
        self.shifter.take_off(cache, block_ids, out, staged, num_threads)
        self.kernel.compress(
            staged, ids, num_valid, replace(out, codec=codec.uncentred),
            positions=positions, workspace=rest, num_threads=num_threads,
        )  # fmt: skip

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
        """See `Codec.decompress`; a kernel of the host raises before the cache is written."""
        codec = centred_of(encoded.codec)
        staged, ids, rest = self._stage(encoded, workspace)
        self.kernel.decompress(
            replace(encoded, codec=codec.uncentred), staged, ids,
            positions=positions, workspace=rest, num_threads=num_threads,
        )  # fmt: skip
        self.shifter.put_back(staged, encoded, cache, block_ids, num_threads)

    def workspace_nbytes(self, codec: Codec, spec: BlockSpec, num_blocks: int) -> int:
        """The blocks, their ids 0, 1, ..., then what the kernel needs."""
        rest = self.kernel.workspace_nbytes(centred_of(codec).uncentred, spec, num_blocks)
        return align(num_blocks * spec.nbytes) + align(8 * num_blocks) + align(rest)

    def unavailable(self, device: torch.device) -> str | None:
        """Where the kernel runs, so does the shifter."""
        return self.kernel.unavailable(device)

    def _stage(
        self, rows: EncodedBlocks, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Room for the blocks of rows at the start of a workspace, their ids, and its rest."""
        spec, n = rows.spec, len(rows)
        if workspace is None:
            needed = self.workspace_nbytes(rows.codec, spec, n)
            workspace = torch.empty(needed, dtype=torch.uint8, device=rows.payload.device)
        begin = align(n * spec.nbytes)
        staged = workspace[: n * spec.nbytes].view(spec.dtype).view(n, *spec.shape)
        ids = workspace[begin : begin + 8 * n].view(torch.int64)
        torch.arange(n, out=ids)
        return staged, ids, workspace[begin + align(8 * n) :]


def centred_of(codec: Codec) -> Centred:
    """The codec, which is centred."""
    if not isinstance(codec, Centred):
        raise TypeError(f"a centred kernel got a {type(codec).__name__} codec")
    return codec


def means(rows: EncodedBlocks) -> torch.Tensor:
    """Means of the rows' codec on their device, fp32 [num_kv_heads, head_dim]."""
    return mean_on(centred_of(rows.codec), rows.payload.device)


def mean_on(codec: Centred, device: torch.device) -> torch.Tensor:
    """Means of a codec, fp32 [num_kv_heads, head_dim]; the copy, which waits, happens once."""
    return _copy(codec.held(), device)


@functools.lru_cache(maxsize=1024)
def _copy(tables: Tables, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(mean_of(tables)).to(device)


@functools.cache
def load_shifter(impl: str) -> Shifter:
    """The shifter of an implementation; raises if it does not exist or cannot be loaded."""
    module = f"kvcodec.kernels._centred_{impl}"
    if importlib.util.find_spec(module) is None:
        raise ImplementationUnavailableError(f"center=profile has no {impl} implementation")
    shifter: Shifter = importlib.import_module(module).SHIFTER
    return shifter
