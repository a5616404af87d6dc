"""What the contract runs over: every registered codec x every implementation this machine has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from profiles import bound
from strategies import make_cache

from kvcodec import BlockSpec, Codec, EncodedBlocks, codec_names, get_codec
from kvcodec.bits import FORMATS, int_view
from kvcodec.registry import IMPLEMENTATIONS, codec_class, why_unavailable

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = ((4, 2, 64), (16, 2, 64), (32, 1, 128), (128, 1, 128))  # the first a codec supports
SMALLEST = ((2, 2, 32), *SHAPES)  # for the interpreter
FEW = ("normal", "random_bits", "wild_channels")


@dataclass(frozen=True)
class Case:
    """One codec under one implementation."""

    codec: Codec
    impl: str
    first: bool = True  # of the codec's examples

    def __str__(self) -> str:
        return f"{self.codec}-{self.impl}"

    @property
    def slow(self) -> bool:
        """The interpreter takes about 0.2 ms an operation, and a coder's loop has thousands."""
        return self.impl == "triton" and DEVICE.type == "cpu"

    @property
    def centred(self) -> bool:
        """Errors are relative to the distance from a profile's means, not to zero."""
        return getattr(self.codec, "centred", False)

    def codec_for(self, spec: BlockSpec) -> Codec:
        """The codec; one that needs a profile is bound to a made-up one of that spec."""
        return bound(self.codec, spec)

    def spec(self, dtype: torch.dtype | None = None) -> BlockSpec:
        """A small spec that the codec supports, of one element type if it is named."""
        found = [spec for spec in self.specs() if dtype in (None, spec.dtype)]
        assert found, f"{self.codec} supports none of {SHAPES} in {dtype or 'any type'}"
        return found[0]

    def specs(self) -> list[BlockSpec]:
        """A small spec for every element type that the codec supports."""
        found = []
        for dtype in FORMATS:
            shapes = SMALLEST if self.slow else SHAPES
            shapes = [s for s in shapes if self.codec.supports(BlockSpec(*s, dtype)) is None]
            found += [BlockSpec(*shape, dtype) for shape in shapes[:1]]
        return found

    def compress(
        self, cache: torch.Tensor, block_ids: Sequence[int] | None = None, **options: Any
    ) -> EncodedBlocks:
        """Rows of some blocks, or of all."""
        ids = range(len(cache)) if block_ids is None else block_ids
        if self.codec.needs_positions:
            options.setdefault("positions", torch.zeros(len(ids), dtype=torch.int64))
        codec = self.codec_for(BlockSpec.of(cache))
        return codec.compress(cache, list(ids), impl=self.impl, **options)

    def decompress(
        self,
        rows: EncodedBlocks,
        cache: torch.Tensor,
        block_ids: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        """Decode into some blocks, or into all, and wait."""
        ids = range(len(cache)) if block_ids is None else block_ids
        if self.codec.needs_positions:
            options.setdefault("positions", torch.zeros(len(ids), dtype=torch.int64))
        codec = self.codec_for(BlockSpec.of(cache))
        done = codec.decompress(rows, cache, list(ids), impl=self.impl, **options)
        if done is not None:
            done.synchronize()

    def decode(self, rows: EncodedBlocks) -> torch.Tensor:
        """The rows' blocks in a fresh cache."""
        cache = torch.empty(len(rows), *rows.spec.shape, dtype=rows.spec.dtype, device=DEVICE)
        self.decompress(rows, cache)
        return cache

    @property
    def reference(self) -> Case:
        """The same codec under its definition."""
        return replace(self, impl="reference")


def cache_of(spec: BlockSpec, kinds: tuple[str, ...] = FEW, seed: int = 0) -> torch.Tensor:
    """A cache on the test device with one block of each kind."""
    return make_cache(spec, kinds, seed, str(DEVICE))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the bit patterns, on the host."""
    return int_view(tensor.detach()).clone(memory_format=torch.contiguous_format).cpu()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shapes, types and bits; NaN payloads and -0.0 count."""
    return a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def used(rows: EncodedBlocks) -> list[bytes]:
    """The bytes that mean something, row by row."""
    payload, sizes = rows.payload.cpu().numpy(), rows.nbytes.tolist()
    return [payload[i, :size].tobytes() for i, size in enumerate(sizes)]


def all_cases(wanted: Callable[[Case], bool] = lambda case: True) -> list[Case]:
    """Every example of every codec under every implementation available here."""
    cases = []
    for name in codec_names():
        for i, text in enumerate(codec_class(name).examples):
            cases += [Case(get_codec(text), impl, first=i == 0) for impl in IMPLEMENTATIONS]
    return [
        case
        for case in cases
        if why_unavailable(case.codec, case.impl, DEVICE) is None and wanted(case)
    ]
