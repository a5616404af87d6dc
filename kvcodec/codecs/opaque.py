"""opaque: bytes nobody described, entropy-coded. Lossless."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.raw import Raw
from kvcodec.errors import InvalidInputError
from kvcodec.quantizer import Quantizer
from kvcodec.registry import register
from kvcodec.row import Section

CODINGS = ("bytes", "nibbles", "bf16", "fp16", "e4m3fn", "e5m2")


@register
@dataclass(frozen=True, slots=True)
class Opaque(Quantizer):
    """Code the bytes of a block as symbols, or as the floats that they are known to be.

    For an engine's pages of uint8, packed e2m1 codes and UE8M0 scales. `detect` says which coding
    suits a sample. A block that would grow is kept as it is.

    Args:
        coding: "bytes"; "nibbles", for e2m1 pairs; or a float type, of which exponents are coded.
        entropy: "rans", or "none" for the block as it is.

    Cost: the entropy of the symbols; bf16 coded as bytes gains nothing. Format: formats/opaque.md.
    """

    name = "opaque"
    lossless = True
    parts_split_heads = True
    stream_ordered = True
    idempotent = True
    examples = ("opaque", "opaque:coding=nibbles", "opaque:entropy=none")

    coding: str = "bytes"
    entropy: str = "rans"

    def __post_init__(self) -> None:
        self.check_entropy()
        if self.coding not in CODINGS:
            known = ", ".join(CODINGS)
            raise InvalidInputError(f"opaque: coding is {self.coding!r}, wanted one of {known}")

    def supports(self, spec: BlockSpec) -> str | None:
        """uint8; whole elements of the coding in a head."""
        if spec.dtype != torch.uint8:
            return f"{spec.format.name} elements have fields; choose split"
        if self.coding in ("bf16", "fp16") and spec.head_dim % 2:
            return f"a head of {spec.head_dim} bytes does not hold {self.coding}; choose bytes"
        return None

    def parts(self, spec: BlockSpec) -> tuple[Section, ...]:
        """The block's bytes; the plain row is that of `raw`."""
        return (Section("elements", "u1", spec.shape, head_axis=1, coding=self.coding, tokens=1),)

    def quantize(
        self,
        blocks: torch.Tensor,
        num_valid: torch.Tensor,
        out: EncodedBlocks,
        positions: torch.Tensor | None = None,
    ) -> None:
        """A copy."""
        raw = EncodedBlocks(Raw(), out.spec, out.payload, out.nbytes)
        raw.codec.encode(blocks, num_valid, raw)

    def dequantize(
        self, encoded: EncodedBlocks, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The copy back."""
        raw = EncodedBlocks(Raw(), encoded.spec, encoded.payload, encoded.nbytes)
        return raw.codec.decode(raw)


def detect(sample: torch.Tensor) -> Opaque:
    """The coding that makes a sample of blocks smallest.

    sample: uint8 [n, block_size, num_kv_heads, head_dim] on the host; a few full blocks suffice.
    Cost: encodes the sample once for every coding.
    """
    sizes = {}
    for coding in CODINGS:
        codec = Opaque(coding)
        if codec.supports(BlockSpec.of(sample)) is None:
            sizes[codec] = codec.compress(sample, range(len(sample))).total_nbytes()
    return min(sizes, key=sizes.__getitem__)
