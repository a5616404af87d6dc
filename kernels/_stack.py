"""`entropy=rans` for every quantizer: its own kernel for plain rows, then a coder of rows."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvcodec import stack
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.errors import ImplementationUnavailableError, InvalidInputError
from kvcodec.quantizer import Quantizer
from kvcodec.registry import IMPLEMENTATIONS, Coder, Kernel
from kvcodec.row import align

Convert = Callable[[EncodedBlocks, EncodedBlocks], None]


@dataclass(frozen=True, slots=True)
class StackedKernel:
    """A quantizer's kernel and a coder, with plain rows in the workspace between them."""

    kernel: Kernel
    coder: Coder

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
        plain, rest = self._plain_rows(out, workspace)
        self.kernel.compress(
            cache, block_ids, num_valid, plain,
            positions=positions, workspace=rest, num_threads=num_threads,
        )  # fmt: skip
        self.coder.encode_rows(plain, out, workspace=rest, num_threads=num_threads)

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
        """See `Codec.decompress`; a coder of the host raises before the kernel runs."""
        plain, rest = self._plain_rows(encoded, workspace)
        self.coder.decode_rows(encoded, plain, workspace=rest, num_threads=num_threads)
        self.kernel.decompress(
            plain, cache, block_ids, positions=positions, workspace=rest, num_threads=num_threads
        )

    def workspace_nbytes(self, codec: Codec, spec: BlockSpec, num_blocks: int) -> int:
        """Plain rows and their sizes, then what the kernel or the coder needs."""
        plain = plain_of(codec)
        rest = max(
            self.kernel.workspace_nbytes(plain, spec, num_blocks),
            self.coder.workspace_nbytes(plain, spec, num_blocks),
        )
        return num_blocks * plain.max_nbytes(spec) + align(4 * num_blocks) + align(rest)

    def unavailable(self, device: torch.device) -> str | None:
        """Both must run."""
        return self.kernel.unavailable(device) or self.coder.unavailable(device)

    def _plain_rows(
        self, rows: EncodedBlocks, workspace: torch.Tensor | None
    ) -> tuple[EncodedBlocks, torch.Tensor]:
        """Plain rows for those of a stacked codec, at the start of a workspace, and its rest."""
        spec, n = rows.spec, len(rows)
        codec, width = plain_rows_of(rows.codec, spec)
        if workspace is None:
            needed = self.workspace_nbytes(codec, spec, n)
            workspace = torch.empty(needed, dtype=torch.uint8, device=rows.payload.device)
        payload, rest = workspace[: n * width], workspace[n * width :]
        sizes = rest[: 4 * n].view(torch.int32)
        return EncodedBlocks(codec, spec, payload.view(n, width), sizes), rest[align(4 * n) :]


@dataclass(frozen=True, slots=True)
class HostCoder:
    """A coder made of two functions on host rows; rows of a GPU go through the host."""

    encode: Convert
    decode: Convert

    def encode_rows(
        self,
        plain: EncodedBlocks,
        out: EncodedBlocks,
        *,
        workspace: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """See `kvcodec.stack.encode_rows`."""
        on_host(self.encode, plain, out)

    def decode_rows(
        self,
        encoded: EncodedBlocks,
        plain: EncodedBlocks,
        *,
        workspace: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """See `kvcodec.stack.decode_rows`."""
        on_host(self.decode, encoded, plain)

    def workspace_nbytes(self, codec: Quantizer, spec: BlockSpec, num_blocks: int) -> int:
        """Host scratch is numpy's own."""
        return 0

    def unavailable(self, device: torch.device) -> str | None:
        """Runs everywhere."""
        return None


def on_host(convert: Convert, rows: EncodedBlocks, out: EncodedBlocks) -> None:
    """Convert rows, through host memory if they are elsewhere."""
    if not out.payload.is_cuda:
        convert(rows, out)
        return
    host = EncodedBlocks.empty(out.codec, out.spec, len(out))
    convert(rows.to("cpu"), host)
    out.payload[:, : host.payload.shape[1]] = host.payload.to(out.payload.device)
    out.nbytes.copy_(host.nbytes)


def plain_of(codec: Codec) -> Quantizer:
    """The quantizer that a stacked kernel's own kernel sees."""
    if not isinstance(codec, Quantizer):
        raise TypeError(f"a stacked kernel got a {type(codec).__name__} codec")
    return codec.plain


@functools.lru_cache(maxsize=64)
def plain_rows_of(codec: Codec, spec: BlockSpec) -> tuple[Quantizer, int]:
    """That quantizer and the size of its rows, worked out once: a call of few blocks is short."""
    plain = plain_of(codec)
    return plain, plain.max_nbytes(spec)


def stacked(kernel: Kernel, impl: str) -> StackedKernel:
    """The stack of an implementation around its kernel; raises as `load_coder`."""
    coder = load_coder(impl)
    if impl == "native":
        from kvcodec.kernels._stack_native import around

        return around(kernel)
    return StackedKernel(kernel, coder)


@functools.cache
def load_coder(impl: str) -> Coder:
    """The stack's coder of an implementation; raises if it does not exist or cannot be loaded."""
    if impl not in IMPLEMENTATIONS:
        known = ", ".join(IMPLEMENTATIONS)
        raise InvalidInputError(f"impl is {impl!r}, wanted auto or one of {known}")
    if impl == "reference":
        return HostCoder(stack.encode_rows, stack.decode_rows)
    module = f"kvcodec.kernels._stack_{impl}"
    if importlib.util.find_spec(module) is None:
        raise ImplementationUnavailableError(f"entropy=rans has no {impl} implementation")
    try:
        coder: Coder = importlib.import_module(module).CODER
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kvcodec"):
            raise
        raise ImplementationUnavailableError(f"it needs the package {error.name!r}") from error
    return coder
