"""The contract of a codec: what a subclass declares, and the paged calls it inherits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

import torch

from kvcodec import registry
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.checks import (
    check_block_ids,
    check_cache,
    check_num_valid,
    check_out,
    check_workspace,
)
from kvcodec.errors import InvalidInputError, UnsupportedSpecError
from kvcodec.profile import Kind as Kind
from kvcodec.profile import Profile
from kvcodec.row import Section

IntArray = Sequence[int] | torch.Tensor
B = TypeVar("B", bound="Codec")


def parameters(codec: Codec | type[Codec]) -> tuple[Field[Any], ...]:
    """Fields that are parameters: all but those whose metadata says `{"parameter": False}`.

    A codec's own come first, then those of the classes it builds on, which are keyword-only.
    """
    found = (f for f in fields(codec) if f.metadata.get("parameter", True))
    return tuple(sorted(found, key=lambda f: bool(f.kw_only)))


@dataclass(frozen=True, slots=True)
class Codec(ABC):
    """One way of turning a block into fewer bytes. Subclasses are frozen dataclasses.

    The dataclass fields are the parameters, and the only thing besides the block (and a profile's
    tables or positions, where declared) that a row may depend on. Class attributes are
    capabilities, with defaults that never promise too much; where parameters decide, they are
    properties.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    lossless: ClassVar[bool]
    source: ClassVar[str] = ""  # paper or project the algorithm comes from
    examples: ClassVar[tuple[str, ...]] = ()  # spec strings the contract suite runs
    kernels: ClassVar[str] = "kvcodec.kernels"  # package that holds <name>_<impl>.py
    later: ClassVar[tuple[str, ...]] = ()  # parameters younger than this version's frozen frames

    stream_ordered: ClassVar[bool] = False  # compress never waits for the host on a GPU
    portable_bytes: ClassVar[bool] = True  # False: a library's version decides a row's bytes
    host_tier_only: ClassVar[bool] = False  # no GPU kernel, none planned: for rows in DRAM, on disk
    needs_positions: ClassVar[bool] = False

    @property
    def needs_profile(self) -> bool:
        """Whether the codec must be bound to a profile's tables before it works."""
        return False

    @property
    def fixed_size(self) -> bool:
        """Whether every row of a spec has max_nbytes bytes."""
        return False

    @property
    def idempotent(self) -> bool:
        """Whether decoding a row and encoding again gives the same row."""
        return False

    @property
    def head_splittable(self) -> bool:
        """Whether kvcodec.heads can cut heads out of a row."""
        return False

    @abstractmethod
    def supports(self, spec: BlockSpec) -> str | None:
        """None, or the reason why blocks of this spec cannot be encoded."""

    @abstractmethod
    def sections(self, spec: BlockSpec, mode: int) -> tuple[Section, ...]:
        """Parts of a row in this mode; CorruptDataError for a mode that does not exist."""

    @abstractmethod
    def max_nbytes(self, spec: BlockSpec) -> int:
        """Proven upper bound of a row's bytes, a multiple of 16."""

    @abstractmethod
    def encode(
        self,
        blocks: torch.Tensor,
        num_valid: torch.Tensor,
        out: EncodedBlocks,
        positions: torch.Tensor | None = None,
    ) -> None:
        """Reference encoder, the definition of the bytes.

        blocks: [n, block_size, num_kv_heads, head_dim] on the CPU, contiguous.
        num_valid: int32 [n]; tokens at and past it are not looked at.
        """

    @abstractmethod
    def decode(self, encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Reference decoder: [n, block_size, num_kv_heads, head_dim], zeros past num_valid."""

    def workspace_nbytes(self, spec: BlockSpec, num_blocks: int, impl: str) -> int:
        """Scratch bytes that compress and decompress of `num_blocks` blocks need on the device."""
        self.require(spec)
        kernel = registry.load_kernel(self, impl)
        return kernel.workspace_nbytes(self, spec, num_blocks)

    def bind(self: B, profile: Profile, layer: int, kind: Kind) -> B:
        """Copy that holds its tables of a plane; a codec that needs no profile returns itself."""
        return self

    def lacks(self, impl: str) -> str | None:
        """None, or why an implementation that the codec has does not serve these parameters."""
        return None

    def head_params(self) -> tuple[str, ...]:
        """Parameters that are tuples with one entry per head; `kvcodec.heads` cuts them too."""
        return ()

    def require(self, spec: BlockSpec) -> None:
        """Raise UnsupportedSpecError unless `supports(spec)`."""
        reason = self.supports(spec)
        if reason is not None:
            raise UnsupportedSpecError(f"{self.name}: {reason}")

    def config(self) -> dict[str, Any]:
        """`{"name", "version", "params"}`, JSON; `kvcodec.codec_from_config` is the inverse.

        A parameter of `later` at its default is left out, as if it had never been added: frames
        written before it keep their bytes, and writers without it read what does not use it.
        """
        params = {
            f.name: getattr(self, f.name)
            for f in parameters(self)
            if f.name not in self.later or getattr(self, f.name) != f.default
        }
        listed = {k: list(v) if isinstance(v, tuple) else v for k, v in params.items()}
        return {"name": self.name, "version": self.version, "params": listed}

    def __str__(self) -> str:
        return registry.format_spec(self)

    def compress(
        self,
        cache: torch.Tensor,
        block_ids: IntArray,
        *,
        num_valid: IntArray | None = None,
        positions: torch.Tensor | None = None,
        out: EncodedBlocks | None = None,
        workspace: torch.Tensor | None = None,
        impl: str = "auto",
        num_threads: int | None = None,
    ) -> EncodedBlocks:
        """Encode blocks of a plane; the plane is not modified.

        Args:
            cache: [num_blocks, block_size, num_kv_heads, head_dim], any strides.
            block_ids: int64 [n], in range. Not checked on a GPU (would sync).
            num_valid: int [n], tokens that count in each block; all when None.
            positions: int64 [n], position of each block's first token (codecs that declare it).
            out: rows to reuse; allocated when None.
            workspace: uint8 scratch of at least `workspace_nbytes`; allocated when None.
            impl: "auto", "reference", "vector", "native" or "triton".
            num_threads: host threads for native kernels; all cores when None.

        Returns:
            EncodedBlocks of n rows on the cache's device.

        Raises:
            UnsupportedSpecError: the codec cannot take these blocks.
            ImplementationUnavailableError: `impl` was named and cannot run here.
        """
        spec = check_cache(cache)
        self.require(spec)
        ids = check_block_ids(block_ids, cache, distinct=False)
        valid = check_num_valid(num_valid, len(ids), spec, cache.device)
        where = self._check_positions(positions, len(ids), cache.device)
        kernel = registry.find_kernel(self, impl, cache.device)
        if out is None:
            out = EncodedBlocks.empty(self, spec, len(ids), cache.device)
        check_out(out, self, spec, len(ids), cache.device)
        if workspace is not None:
            nbytes = kernel.workspace_nbytes(self, spec, len(ids))
            check_workspace(workspace, nbytes, cache.device)
        if len(ids):
            kernel.compress(
                cache, ids, valid, self._own(out),
                positions=where, workspace=workspace, num_threads=num_threads,
            )  # fmt: skip
        return out

    def decompress(
        self,
        encoded: EncodedBlocks,
        cache: torch.Tensor,
        block_ids: IntArray,
        *,
        positions: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        impl: str = "auto",
        num_threads: int | None = None,
    ) -> torch.cuda.Event | None:
        """Decode rows into `cache[block_ids]`, in place; no other byte of the cache changes.

        Args: as `compress`; block_ids are distinct. Slots past a row's num_valid become zeros.

        Returns:
            An event recorded after the last launch on a GPU; None on a CPU, where the work is done.

        Raises:
            CorruptDataError: a row is malformed (host implementations; the cache is unchanged).
        """
        spec = check_cache(cache)
        if encoded.codec != self or encoded.spec != spec:
            raise InvalidInputError(
                f"decompress: rows are {encoded.codec} of {encoded.spec}, wanted {self} of {spec}"
            )
        self.require(spec)
        ids = check_block_ids(block_ids, cache, distinct=True)
        check_out(encoded, self, spec, len(ids), cache.device)
        where = self._check_positions(positions, len(ids), cache.device)
        kernel = registry.find_kernel(self, impl, cache.device)
        if workspace is not None:
            nbytes = kernel.workspace_nbytes(self, spec, len(ids))
            check_workspace(workspace, nbytes, cache.device)
        if len(ids):
            kernel.decompress(
                self._own(encoded), cache, ids,
                positions=where, workspace=workspace, num_threads=num_threads,
            )  # fmt: skip
        if not cache.is_cuda:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(cache.device))
        return event

    def _own(self, rows: EncodedBlocks) -> EncodedBlocks:
        """The same rows under this codec, which is equal to theirs and also holds its tables."""
        return rows if rows.codec is self else replace(rows, codec=self)

    def _check_positions(
        self, positions: torch.Tensor | None, n: int, device: torch.device
    ) -> torch.Tensor | None:
        if not self.needs_positions:
            return None
        if positions is None or tuple(positions.shape) != (n,):
            got = None if positions is None else tuple(positions.shape)
            raise InvalidInputError(f"{self.name}: positions is {got}, wanted int64 [{n}]")
        return positions.to(device=device, dtype=torch.int64)
