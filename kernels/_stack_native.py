"""The stack on the host in C++: rows over threads, the loops of split over their parts."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from kvcodec import rans, stack
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.errors import CorruptDataError, InvalidInputError
from kvcodec.kernels._native_call import (
    BEST,
    FAULTS,
    FORMATS,
    availability,
    choose_threads,
    extension,
    num_cores,
)
from kvcodec.quantizer import Quantizer
from kvcodec.row import row_layout

CODINGS = ("raw", "bytes", "nibbles", "e2m1")  # order of `Coding` in native/stack.h


@functools.lru_cache(maxsize=64)
def describe(codec: Quantizer, spec: BlockSpec) -> tuple[torch.Tensor, int]:
    """int64 [parts, 5]: begin, bytes of an entry, entries, tokens of an entry, coding; row size."""
    parts = codec.sections(spec, stack.PLAIN)
    offsets, nbytes = row_layout(parts, {})
    found = []
    for s in parts:
        entries = s.shape[0] if s.shape and s.tokens else 1
        fmt = stack.float_format(s.coding)
        coding = CODINGS.index(s.coding) if fmt is None else len(CODINGS) + FORMATS[fmt.dtype]
        found.append([offsets[s.name], s.nbytes() // entries, entries, s.tokens, coding])
    return torch.tensor(found, dtype=torch.int64).reshape(-1, 5), nbytes


def integers(codec: Quantizer, spec: BlockSpec, rows: EncodedBlocks | None) -> tuple[int, ...]:
    """What the extension wants to know of plain rows."""
    parts, nbytes = describe(codec, spec)
    where = (0, nbytes, nbytes, 0, 1)
    if rows is not None:
        payload, sizes = rows.payload, rows.nbytes
        where = (
            payload.data_ptr(), payload.stride(0), payload.shape[1],
            sizes.data_ptr(), sizes.stride(0),
        )  # fmt: skip
    return *where, parts.data_ptr(), len(parts), nbytes, rans.num_lanes(spec.nbytes)


@dataclass(frozen=True, slots=True)
class NativeCoder:
    """See native/stack.cpp. isa: index of an instruction set; tests force each."""

    isa: int = BEST

    def encode_rows(
        self,
        plain: EncodedBlocks,
        out: EncodedBlocks,
        *,
        workspace: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """See `kvcodec.stack.encode_rows`."""
        self._run(extension().stack_encode, plain, plain, out, workspace, num_threads)

    def decode_rows(
        self,
        encoded: EncodedBlocks,
        plain: EncodedBlocks,
        *,
        workspace: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """See `kvcodec.stack.decode_rows`."""
        self._run(extension().stack_decode, encoded, plain, encoded, workspace, num_threads)

    def _run(
        self,
        call: object,
        source: EncodedBlocks,
        plain: EncodedBlocks,
        coded: EncodedBlocks,
        workspace: torch.Tensor | None,
        num_threads: int | None,
    ) -> None:
        spec, n = plain.spec, len(plain)
        codec = plain.codec
        if not isinstance(codec, Quantizer):
            raise TypeError(f"the stack got rows of a {type(codec).__name__} codec")
        threads = choose_threads(num_threads, n, spec)
        needed = self._scratch(codec, spec, threads)
        scratch = torch.empty(needed, dtype=torch.uint8) if workspace is None else workspace
        if scratch.numel() < needed:
            raise InvalidInputError(
                f"workspace has {scratch.numel()} bytes, wanted {needed}; see workspace_nbytes"
            )
        ids = torch.arange(n)
        damage: int = call(  # type: ignore[operator]
            self.isa, threads,
            0, n, *spec.shape, 0, 0, 0, 0, spec.dtype.itemsize,
            ids.data_ptr(), n, 0,
            coded.payload.data_ptr(), coded.payload.stride(0), coded.payload.shape[1],
            coded.nbytes.data_ptr(), coded.nbytes.stride(0),
            scratch.data_ptr(), scratch.numel(),
            *integers(codec, spec, plain),
        )  # fmt: skip
        if damage >= 0:
            row, fault = damage >> 8, damage & 255
            raise CorruptDataError(
                f"{source.codec}: row {row} of {source.nbytes[row]} bytes, mode "
                f"{source.payload[row, 0]}: {FAULTS[fault - 1]}"
            )

    def _scratch(self, codec: Quantizer, spec: BlockSpec, num_threads: int) -> int:
        known = integers(codec, spec, None)
        size: int = extension().stack_scratch(*known, spec.block_size, num_threads)
        return size

    def workspace_nbytes(self, codec: Quantizer, spec: BlockSpec, num_blocks: int) -> int:
        """Scratch of either call with any number of threads."""
        return self._scratch(codec, spec, max(1, min(num_cores(), num_blocks)))

    def unavailable(self, device: torch.device) -> str | None:
        """As for every native kernel."""
        return availability(device)


CODER = NativeCoder()
