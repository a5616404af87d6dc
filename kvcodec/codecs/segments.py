"""segments: rows that mix formats, each named segment under a codec of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvcodec.bits import int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.errors import CorruptDataError, ImplementationUnavailableError, InvalidInputError
from kvcodec.registry import get_codec, load_kernel, register
from kvcodec.row import ALIGNMENT, Section, read_rows, row_layout, write_row
from kvcodec.segments import Layout, Segment, cut, join, parse_layout

RAW, CUT = 0, 1

Encode = Callable[[Codec, torch.Tensor, torch.Tensor, EncodedBlocks], None]
Decode = Callable[[EncodedBlocks], torch.Tensor]


@register
@dataclass(frozen=True, slots=True)
class Segments(Codec):
    """Cut a block into the named segments of its layout and encode each with its codec.

    Engines store several formats side by side in one row of bytes: codes, their scales, a RoPE key
    in bf16. One codec over all of it sees noise; each segment by itself is as compressible as ever.
    The row holds one complete row of each segment's codec; a block that would grow is kept raw.

    Args:
        layout: a name (`fp8_ds_mla`, `deepseek_v4`, `nvfp4_ds_mla`, `mla`, `indexer`, ...) or a
            text such as `nope.e4m3x512+scale.fp32x4+rope.bf16x64`; see kvcodec/segments.py.
        codecs: a spec string for each segment; by default all are lossless.

    Blocks are opaque bytes, [block_size, heads, bytes of a token and head] of uint8, or of the type
    that all segments have. In a layout of several runs a token's bytes do not lie together:
    `num_valid` then means the tokens of the layout, wherever their bytes are.

    Cost: the segments' rows, and 16 to 48 bytes. Format: formats/segments.md.
    """

    name = "segments"
    stream_ordered = True
    source = "layouts of vLLM, SGLang and FlashMLA"
    examples = (
        "segments:layout=nope.e4m3x64+scale.fp32x1+rope.bf16x30",
        "segments:layout=nope.bf16x96+rope.bf16x32,codecs=fp8/split",
    )

    layout: str = "fp8_ds_mla"
    codecs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        segments = parse_layout(self.layout).segments
        if not self.codecs:  # written out, so that a stored config does not hang on the defaults
            object.__setattr__(self, "codecs", tuple(map(default_codec, segments)))
        if len(self.codecs) != len(segments):
            raise InvalidInputError(
                f"segments: {len(self.codecs)} codecs for the {len(segments)} segments of "
                f"{self.layout!r}"
            )
        for codec in self.parts:
            if codec.needs_profile or codec.needs_positions:
                raise InvalidInputError(
                    f"segments: {codec} needs more than a block; choose another"
                )

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        """Whether every segment's codec is."""
        return all(codec.lossless for codec in self.parts)

    @property
    def parts(self) -> list[Codec]:
        """The codec of each segment."""
        return [get_codec(spec) for spec in self.codecs]

    def part_specs(self, spec: BlockSpec) -> list[BlockSpec]:
        """The block that each segment's codec sees."""
        segments = parse_layout(self.layout).segments
        return [BlockSpec(*spec.shape[:2], s.numel, s.dtype) for s in segments]

    def lacks(self, impl: str) -> str | None:
        """On a GPU every segment's codec must run there; the host takes what each has."""
        for codec in self.parts if impl == "triton" else ():
            try:
                load_kernel(codec, impl)
            except ImplementationUnavailableError as error:
                return f"segments: {error}"
        return None

    def supports(self, spec: BlockSpec) -> str | None:
        """As many bytes a head as the layout's token, of uint8 or the segments' one type."""
        layout = parse_layout(self.layout)
        types = {segment.dtype for segment in layout.segments}
        if spec.dtype != torch.uint8 and types != {spec.dtype}:
            return f"{self.layout} mixes types: view the cache as uint8, not {spec.format.name}"
        nbytes = spec.head_dim * spec.dtype.itemsize
        if nbytes != layout.token_nbytes:
            return (
                f"{self.layout} has {layout.token_nbytes} bytes a token, "
                f"{spec.head_dim} elements of {spec.format.name} have {nbytes}"
            )
        if spec.num_kv_heads > 1 and len(layout.run_nbytes) > 1:
            return f"{self.layout} has several runs, which take one head, not {spec.num_kv_heads}"
        for segment, codec, part in zip(
            layout.segments, self.parts, self.part_specs(spec), strict=True
        ):
            reason = codec.supports(part)
            if reason is not None:
                return f"segment {segment.name}: {codec.name}: {reason}"
        return None

    def sections(self, spec: BlockSpec, mode: int) -> tuple[Section, ...]:
        """Raw: the block's bytes. Cut: the row of each segment."""
        if mode == RAW:
            return (Section("raw", "u1", (spec.nbytes,)),)
        if mode == CUT:
            return tuple(Section(s.name, "u1") for s in parse_layout(self.layout).segments)
        raise CorruptDataError(f"segments: mode {mode}, wanted 0 or 1")

    def max_nbytes(self, spec: BlockSpec) -> int:
        """A raw row, or the longest row of every segment where one of them is lossy."""
        if self.lossless:
            return row_layout(self.sections(spec, RAW), {})[1]
        sections = self.sections(spec, CUT)
        bounds = [c.max_nbytes(s) for c, s in zip(self.parts, self.part_specs(spec), strict=True)]
        return row_layout(sections, {s.name: n for s, n in zip(sections, bounds, strict=True)})[1]

    def encode(
        self,
        blocks: torch.Tensor,
        num_valid: torch.Tensor,
        out: EncodedBlocks,
        positions: torch.Tensor | None = None,
    ) -> None:
        """Each segment by the reference of its codec."""
        encode_with(lambda codec, *args: codec.encode(*args), blocks, num_valid, out)

    def decode(self, encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Each segment by the reference of its codec."""
        return decode_with(lambda rows: rows.codec.decode(rows), encoded)


def default_codec(segment: Segment) -> str:
    """Lossless: `split` for floats, `opaque` for bytes."""
    if segment.dtype != torch.uint8:
        return "split"
    return "opaque:coding=nibbles" if segment.type == "e2m1x2" else "opaque"


def layout_of(codec: Codec) -> tuple[Segments, Layout]:
    """The codec by its class, and its layout."""
    if not isinstance(codec, Segments):
        raise TypeError(f"segments kernel got a {type(codec).__name__} codec")
    return codec, parse_layout(codec.layout)


def encode_with(
    encode: Encode, blocks: torch.Tensor, num_valid: torch.Tensor, out: EncodedBlocks
) -> None:
    """Rows from the segments' rows; `encode` runs one segment's codec."""
    codec, layout = layout_of(out.codec)
    spec, sections, payload = out.spec, codec.sections(out.spec, CUT), out.payload.numpy()
    rows: list[EncodedBlocks] = []
    cuts = cut(blocks, layout)
    for part, of, inner in zip(cuts, codec.parts, codec.part_specs(spec), strict=True):
        rows.append(EncodedBlocks.empty(of, inner, len(out)))
        encode(of, part, num_valid, rows[-1])
    bound = codec.max_nbytes(spec)
    for i, valid in enumerate(num_valid.tolist()):
        sizes = {s.name: int(r.nbytes[i]) for s, r in zip(sections, rows, strict=True)}
        if codec.lossless and row_layout(sections, sizes)[1] >= bound:
            kept = torch.zeros(1, *spec.shape, dtype=spec.dtype)
            join([used_tokens(part[i : i + 1], valid) for part in cuts], layout, kept)
            raw = {"raw": kept.view(torch.uint8).numpy()}
            out.nbytes[i] = write_row(payload[i], codec.sections(spec, RAW), RAW, valid, raw)
            continue
        parts = {
            s.name: r.payload.numpy()[i, : sizes[s.name]]
            for s, r in zip(sections, rows, strict=True)
        }
        out.nbytes[i] = write_row(payload[i], sections, CUT, valid, parts)


def used_tokens(blocks: torch.Tensor, valid: int) -> torch.Tensor:
    """A copy of one segment's block with zeros in its unused tokens."""
    kept = int_view(blocks).clone()
    kept[:, valid:] = 0
    return kept


def decode_with(decode: Decode, encoded: EncodedBlocks) -> torch.Tensor:
    """Blocks from the segments' rows; `decode` runs one segment's codec."""
    codec, layout = layout_of(encoded.codec)
    spec, rows = encoded.spec, read_rows(encoded)
    blocks = torch.zeros(len(rows), *spec.shape, dtype=spec.dtype)
    coded = [i for i, row in enumerate(rows) if row.mode == CUT]
    found = []
    for segment, of, part in zip(layout.segments, codec.parts, codec.part_specs(spec), strict=True):
        inner = EncodedBlocks.empty(of, part, len(coded))
        for k, i in enumerate(coded):
            data, valid = rows[i].parts[segment.name], rows[i].num_valid
            if data.size % ALIGNMENT or not ALIGNMENT <= data.size <= inner.payload.shape[1]:
                raise CorruptDataError(f"segments: {segment.name} has a row of {data.size} bytes")
            if data[2:4].tobytes() != valid.to_bytes(2, "little"):
                raise CorruptDataError(f"segments: {segment.name} has another num_valid")
            inner.payload.numpy()[k, : data.size] = data
            inner.nbytes[k] = data.size
        found.append(int_view(decode(inner)))
    some = torch.zeros(len(coded), *spec.shape, dtype=spec.dtype)
    join(found, layout, some)
    int_view(blocks)[coded] = int_view(some)
    for i, row in enumerate(rows):
        if row.mode == RAW:
            kept = torch.from_numpy(row.parts["raw"].copy()).view(spec.dtype).view(1, *spec.shape)
            valid_parts = [used_tokens(part, row.num_valid) for part in cut(kept, layout)]
            join(valid_parts, layout, blocks[i : i + 1])
    return blocks
