"""What quantizers share: rows of a fixed size, and the same rows entropy-coded (`entropy=rans`)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import torch

from kvcodec import registry, stack
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.checks import check_out
from kvcodec.codec import Codec
from kvcodec.errors import CorruptDataError, InvalidInputError
from kvcodec.row import Section, row_layout

ENTROPY = ("none", "rans")
Q = TypeVar("Q", bound="Quantizer")


class Quantizer(Codec):
    """A codec whose plain rows all have the size that `parts` gives. formats/stack.md.

    A subclass is a frozen dataclass with the field `entropy: str = "none"`, which it names in
    `later` and checks with `check_entropy`; it says how each part is coded (`Section.coding`,
    `Section.tokens`). Its kernels see plain codecs only: `registry.load_kernel` puts the stack
    around them.
    """

    __slots__ = ()
    entropy: str

    parts_split_heads: ClassVar[bool] = False  # kvcodec.heads can cut heads out of a plain row

    @abstractmethod
    def parts(self, spec: BlockSpec) -> tuple[Section, ...]:
        """Parts of a plain row, each of a static size."""

    @abstractmethod
    def quantize(
        self,
        blocks: torch.Tensor,
        num_valid: torch.Tensor,
        out: EncodedBlocks,
        positions: torch.Tensor | None = None,
    ) -> None:
        """Reference encoder of plain rows; arguments as `Codec.encode`."""

    @abstractmethod
    def dequantize(
        self, encoded: EncodedBlocks, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Reference decoder of plain rows; arguments as `Codec.decode`."""

    def check_entropy(self) -> None:
        """Raise InvalidInputError unless `entropy` is known; for `__post_init__`."""
        if self.entropy not in ENTROPY:
            known = " or ".join(ENTROPY)
            raise InvalidInputError(f"{self.name}: entropy is {self.entropy!r}, wanted {known}")

    @property
    def stacked(self) -> bool:
        """Whether rows may be entropy-coded."""
        return self.entropy != "none"

    @property
    def plain(self: Q) -> Q:
        """The same quantizer without entropy coding."""
        without: dict[str, Any] = {"entropy": "none"}
        return replace(self, **without) if self.stacked else self

    @property
    def fixed_size(self) -> bool:
        """Plain rows are."""
        return not self.stacked

    @property
    def head_splittable(self) -> bool:
        """A coder's lanes run over all heads."""
        return self.parts_split_heads and not self.stacked

    def sections(self, spec: BlockSpec, mode: int) -> tuple[Section, ...]:
        """Mode 0: the quantizer's own parts; mode 1, for `entropy=rans`: those of the stack."""
        if mode == stack.PLAIN:
            return self.parts(spec)
        if mode == stack.CODED and self.stacked:
            return stack.coded_sections(spec)
        wanted = "0 or 1" if self.stacked else "0"
        raise CorruptDataError(f"{self.name}: mode {mode}, wanted {wanted}")

    def max_nbytes(self, spec: BlockSpec) -> int:
        """A plain row: a coded one is kept only if it is shorter."""
        return row_layout(self.parts(spec), {})[1]

    def encode(
        self,
        blocks: torch.Tensor,
        num_valid: torch.Tensor,
        out: EncodedBlocks,
        positions: torch.Tensor | None = None,
    ) -> None:
        """Quantize; then code the rows, if asked for."""
        if not self.stacked:
            self.quantize(blocks, num_valid, out, positions)
            return
        plain = EncodedBlocks.empty(self.plain, out.spec, len(out))
        self.plain.quantize(blocks, num_valid, plain, positions)
        stack.encode_rows(plain, out)

    def decode(self, encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Inverse of encode."""
        if not self.stacked:
            return self.dequantize(encoded, positions)
        plain = EncodedBlocks.empty(self.plain, encoded.spec, len(encoded))
        stack.decode_rows(encoded, plain)
        return self.plain.dequantize(plain, positions)


def transcode(
    encoded: EncodedBlocks,
    codec: Codec,
    *,
    out: EncodedBlocks | None = None,
    impl: str = "auto",
    num_threads: int | None = None,
) -> EncodedBlocks:
    """Rows of a quantizer with entropy coding put on or taken off; elements are not touched.

    The result equals compressing the same blocks with `codec`, except that the -0 which
    `entropy=rans` gave up in E2M1 codes does not come back. On a GPU no host sync.

    Args:
        encoded: rows of `codec`, or of `codec` with another `entropy`.
        out: rows to reuse; allocated when None.
        impl, num_threads: as in `Codec.compress`.

    Raises:
        InvalidInputError: the codecs differ in more than `entropy`.
        CorruptDataError: a row is malformed (host implementations).
    """
    source, spec, device = encoded.codec, encoded.spec, encoded.payload.device
    if not (isinstance(codec, Quantizer) and isinstance(source, Quantizer)):
        raise InvalidInputError(f"transcode: {source} to {codec}; both must be quantizers")
    if codec.plain != source.plain:
        raise InvalidInputError(
            f"transcode: {source} to {codec}; only entropy may differ, decompress and compress"
        )
    check_out(encoded, source, spec, len(encoded), device)
    if out is None:
        out = EncodedBlocks.empty(codec, spec, len(encoded), device)
    check_out(out, codec, spec, len(encoded), device)
    if codec == source:
        out.payload.copy_(encoded.payload)
        out.nbytes.copy_(encoded.nbytes)
    elif len(encoded):
        coder = registry.find_coder(impl, device)
        convert = coder.encode_rows if codec.stacked else coder.decode_rows
        convert(encoded, out, workspace=None, num_threads=num_threads)
    return out
