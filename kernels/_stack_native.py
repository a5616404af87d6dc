"""The stack on the host in C++: rows over threads, the loops of split over their parts."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from kvcodec import rans, stack
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.kernels._native_call import (
    BEST,
    FORMATS,
    NativeKernel,
    availability,
    choose_threads,
    damaged,
    extension,
    num_cores,
    scratch_of,
)
from kvcodec.kernels._stack import StackedKernel, plain_rows_of
from kvcodec.quantizer import Quantizer
from kvcodec.registry import Kernel
from kvcodec.row import align, row_layout

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
        scratch = scratch_of(workspace, needed)
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
            raise damaged(source, str(source.codec), damage)

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


@dataclass(frozen=True, slots=True)
class Whole:
    """What a call from blocks needs of a codec and a spec besides its tensors.

    scratch: bytes of a thread; width: of a plain row. stack, quantizer: integers of the
    extension, whose addresses are of tensors in `held`.
    """

    width: int
    scratch: int
    stack: tuple[int, ...]
    quantizer: tuple[int, ...]
    held: tuple[torch.Tensor, ...]


@functools.lru_cache(maxsize=64)
def whole_call(kernel: NativeKernel, codec: Codec, spec: BlockSpec) -> Whole:
    """Worked out once: a call of few blocks is short."""
    plain, width = plain_rows_of(codec, spec)
    parts, _ = describe(plain, spec)
    extra = kernel.extra(plain, spec)
    held = tuple(e for e in extra if isinstance(e, torch.Tensor))
    numbers = [e.data_ptr() if isinstance(e, torch.Tensor) else int(e) for e in extra]
    coder: int = extension().stack_scratch(*integers(plain, spec, None), spec.block_size, 1)
    return Whole(
        width,
        max(coder, kernel.scratch_for(plain, spec, 1, 1)),
        (parts.data_ptr(), len(parts), width, rans.num_lanes(spec.nbytes)),
        (extension().quantizers().index(kernel.name), *numbers),
        (parts, *held),
    )


@dataclass(frozen=True, slots=True)
class NativeStackedKernel(StackedKernel):
    """A native kernel and the native coder in one call: a block is coded right after it was
    quantized, while its plain row lies in the nearest cache.
    """

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
        self._run(True, cache, block_ids, num_valid, out, workspace, num_threads)

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
        self._run(False, cache, block_ids, None, encoded, workspace, num_threads)

    def _run(
        self,
        encodes: bool,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        num_valid: torch.Tensor | None,
        rows: EncodedBlocks,
        workspace: torch.Tensor | None,
        num_threads: int | None,
    ) -> None:
        spec, n, kernel = rows.spec, len(block_ids), self.kernel
        if not isinstance(kernel, NativeKernel):
            raise TypeError(f"the native stack got a {type(kernel).__name__}")
        whole = whole_call(kernel, rows.codec, spec)
        threads = choose_threads(num_threads, n, spec)
        sizes = n * whole.width  # where those of plain rows begin
        begin = sizes + align(4 * n)
        needed = begin + threads * whole.scratch
        scratch = scratch_of(workspace, needed)
        # named, so that they live as long as their addresses are used
        ids, memory = block_ids.contiguous(), scratch.data_ptr()
        valid = None if num_valid is None else num_valid.contiguous()
        payload, nbytes = rows.payload, rows.nbytes
        call = extension().stack_compress if encodes else extension().stack_decompress
        damage: int = call(
            kernel.isa, threads,
            cache.data_ptr(), cache.shape[0], *spec.shape, *cache.stride(), cache.element_size(),
            ids.data_ptr(), n, 0 if valid is None else valid.data_ptr(),
            payload.data_ptr(), payload.stride(0), payload.shape[1],
            nbytes.data_ptr(), nbytes.stride(0),
            memory + begin, scratch.numel() - begin,
            memory, whole.width, whole.width, memory + sizes, 1, *whole.stack,
            *whole.quantizer,
        )  # fmt: skip
        if damage >= 0:
            raise damaged(rows, str(rows.codec), damage)
        if damage < -1:
            plain, width = plain_rows_of(rows.codec, spec)
            between = EncodedBlocks(
                plain, spec, scratch[:sizes].view(n, width), scratch[sizes:begin].view(torch.int32)
            )
            raise damaged(between, kernel.name, -2 - damage)


def around(kernel: Kernel) -> StackedKernel:
    """The stack around a kernel; one call, if the extension knows the kernel's rows."""
    known = isinstance(kernel, NativeKernel) and availability(torch.device("cpu")) is None
    if known and kernel.name in extension().quantizers():  # type: ignore[attr-defined]
        return NativeStackedKernel(kernel, CODER)
    return StackedKernel(kernel, CODER)


CODER = NativeCoder()
