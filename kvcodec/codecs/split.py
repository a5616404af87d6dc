"""split: exponents by rANS, sign and mantissa as they are. Lossless, after ZipNN and DietGPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from kvcodec import centring, contexts, rans
from kvcodec.bits import (
    U8,
    FloatFormat,
    UInt,
    from_bits,
    join_fields,
    pack_plane,
    plane_widths,
    split_fields,
    to_bits,
    unpack_plane,
)
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.calibrated import Calibrated
from kvcodec.errors import CorruptDataError, InvalidInputError
from kvcodec.registry import register
from kvcodec.row import Row, Section, align, read_rows, row_layout, write_row
from kvcodec.tables import Tables

RAW, CODED, CENTRED, PROFILE, CONTEXT = range(5)
MODES = {  # that a model's rows may have
    "plain": (RAW, CODED),
    "centred": (RAW, CODED, CENTRED),
    "profile": (RAW, CODED, CENTRED, PROFILE),
    "context": (RAW, CODED, CENTRED, CONTEXT),
}
TABLED = {"profile": PROFILE, "context": CONTEXT}
Coded = tuple[int, Mapping[str, UInt]]  # mode and parts of a row


@register
@dataclass(frozen=True, slots=True)
class Split(Calibrated):
    """Entropy-code the exponents of a block, keep sign and mantissa.

    Exponents of a KV cache cluster in a dozen values: about 2.8 of 8 bits in bf16. Signs and
    mantissas are noise, so they are stored as they are. One sparse table per block. A block that
    would grow is kept raw.

    Args:
        model: what predicts the exponents. "plain": one table for the block as it is. "centred":
            each channel's own scale is measured, stored in 3 bits and taken off first, in blocks
            where that pays. "profile": calibrated tables of each channel's class also code signs
            and leading mantissa bits. "context": and the channel's tokens before choose the table.
            Both write what "centred" would where that is smaller.
        tables: see Calibrated.

    Cost: about 10.8 bits per bf16 element, centred 10.6, profile 10.4, context 10.2.
    Source: ZipNN, arXiv:2411.05239; interleaved lanes and 16-bit words after DietGPU; differs: raw
    payload seeds the states, channels are centred. Format: formats/split.md.
    """

    name = "split"
    lossless = True
    stream_ordered = True
    idempotent = True
    source = "ZipNN, arXiv:2411.05239; DietGPU"
    examples = (
        "split",
        "split:model=centred",
        "split:model=profile",
        "split:model=context",
    )
    later = ("model", "tables")

    model: str = "plain"

    def __post_init__(self) -> None:
        if self.model not in MODES:
            known = " or ".join(MODES)
            raise InvalidInputError(f"split: model is {self.model!r}, wanted {known}")
        Calibrated.__post_init__(self)

    def table_names(self) -> tuple[str, ...]:
        """All tables of `kvcodec.contexts` for the models of a profile."""
        return contexts.NAMES if self.model in TABLED else ()

    def lacks(self, impl: str) -> str | None:
        """Contexts have no Triton kernels."""
        if self.model == "context" and impl == "triton":
            return f"split: model={self.model} has no {impl} implementation"
        return None

    def supports(self, spec: BlockSpec) -> str | None:
        """Every type with an exponent field."""
        if spec.format.exponent_bits == 0:
            return f"{spec.format.name} elements have no exponent field; choose raw"
        return self.misfit(spec)

    def sections(self, spec: BlockSpec, mode: int) -> tuple[Section, ...]:
        """Raw: the valid tokens' bytes. Coded: table, lane states, words, sign and mantissa.

        Centred: as coded, with the centres after the table. With a profile: as coded, without the
        table.
        """
        if mode not in MODES[self.model]:
            known = " or ".join(map(str, MODES[self.model]))
            raise CorruptDataError(f"split: mode {mode}, wanted {known}")
        if mode == RAW:
            return (Section("elements", "u1"),)
        table, *rest = (
            Section("table", "u1"),
            Section("states", "<u4", (rans.num_lanes(spec.nbytes),)),
            Section("words", "<u2"),
            Section("raw", "u1"),
        )
        if mode == CENTRED:
            rest.insert(0, Section("centres", "u1", (centring.part_nbytes(spec.token_numel),)))
        return tuple(rest) if mode in TABLED.values() else (table, *rest)

    def max_nbytes(self, spec: BlockSpec) -> int:
        """A raw row: 16 bytes of prefix and the block, padded."""
        return row_layout(self.sections(spec, RAW), {"elements": spec.nbytes})[1]

    def encode(
        self,
        blocks: torch.Tensor,
        num_valid: torch.Tensor,
        out: EncodedBlocks,
        positions: torch.Tensor | None = None,
    ) -> None:
        """The coded mode that the model expects to be smaller; raw unless that is smaller yet.

        With a profile, its mode if that is smaller than all this.
        """
        payload, spec = out.payload.numpy(), out.spec
        for i, valid in enumerate(num_valid.tolist()):
            bits = to_bits(blocks[i])[:valid].reshape(-1)
            row: Coded = (RAW, {"elements": bits.view(np.uint8)})
            if bits.size:
                exponent, _ = split_fields(bits, spec.format)
                centres = measure(exponent, spec) if self.model != "plain" else None
                coded = encode_parts(bits, spec, centres)
                wanted = CODED if centres is None else CENTRED
                row = self.smaller(spec, row, wanted, coded)
                if self.model in TABLED:
                    tabled = TABLED[self.model]
                    found = encode_with_tables(bits, spec, self.held(), tabled)
                    row = self.smaller(spec, row, tabled, found)
            mode, parts = row
            out.nbytes[i] = write_row(payload[i], self.sections(spec, mode), mode, valid, parts)

    def decode(self, encoded: EncodedBlocks, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Inverse of encode."""
        spec = encoded.spec
        blocks = np.zeros((len(encoded), spec.numel), f"u{spec.dtype.itemsize}")
        for block, row in zip(blocks, read_rows(encoded), strict=True):
            n = row.num_valid * spec.token_numel
            if row.mode in TABLED.values():
                block[:n] = decode_with_tables(row, spec, self.held())
            elif row.mode != RAW:
                block[:n] = decode_parts(row, spec)
            elif row.parts["elements"].size == n * spec.dtype.itemsize:
                block[:n] = row.parts["elements"].view(blocks.dtype)
            else:
                raise CorruptDataError(f"split: raw part does not hold {n} elements")
        return from_bits(blocks.reshape(-1, *spec.shape), spec.dtype)

    def smaller(
        self, spec: BlockSpec, row: Coded, mode: int, parts: Mapping[str, UInt] | None
    ) -> Coded:
        """The row, or another mode's parts if they make a smaller one."""
        if parts is None:
            return row
        other, sizes = (mode, parts), []
        for of, these in (row, other):
            counts = {name: part.size for name, part in these.items()}
            sizes.append(row_layout(self.sections(spec, of), counts)[1])
        return row if sizes[0] <= sizes[1] else other


def measure(exponent: U8, spec: BlockSpec) -> U8 | None:
    """The centres part of a block's exponents [n]; None if they look as small without."""
    tokens = exponent.reshape(-1, spec.token_numel)
    part = centring.measure(tokens, spec.format.exponent_bits)
    centred = centring.estimate(count(symbols_of(exponent, part, spec)))
    return part if centred + align(part.size) < centring.estimate(count(exponent)) else None


def count(symbols: U8) -> rans.Ints:
    """Occurrences of every symbol, [256]."""
    return np.bincount(symbols.reshape(-1), minlength=256)


def symbols_of(exponent: U8, part: U8, spec: BlockSpec) -> U8:
    """Centred symbols of exponents [n], under a centres part."""
    symbols = exponent.reshape(-1, spec.token_numel) - centring.origins(part, spec.token_numel)
    return symbols.reshape(-1) & np.uint8((1 << spec.format.exponent_bits) - 1)


def encode_parts(bits: UInt, spec: BlockSpec, centres: U8 | None = None) -> dict[str, UInt]:
    """Parts of a coded row from the bit patterns [n] of its elements, n > 0."""
    lanes = rans.num_lanes(spec.nbytes)
    symbols, raw = split_fields(bits, spec.format)
    side: dict[str, UInt] = {}
    if centres is not None:
        side["centres"] = centres
        symbols = symbols_of(symbols, centres, spec)
    freqs = rans.normalize(count(symbols))
    grid = rans.to_grid(symbols, lanes, fill=-1)
    live = grid >= 0
    seeds, raw_part = pack_raw(raw, spec.format, lanes)
    states, words = rans.encode(
        np.where(live, freqs[grid], 0), np.where(live, rans.starts(freqs)[grid], 0), seeds
    )
    return {
        "table": rans.pack_table(freqs),
        **side,
        "states": states.astype("<u4"),
        "words": words.astype("<u2"),
        "raw": raw_part,
    }


def decode_parts(row: Row, spec: BlockSpec) -> UInt:
    """Bit patterns of the valid elements of a coded row."""
    fmt, n = spec.format, row.num_valid * spec.token_numel
    if n == 0:
        raise CorruptDataError("split: a coded row without valid tokens")
    parts = row.parts
    lanes = parts["states"].size
    freqs = rans.unpack_table(parts["table"])
    decoder = rans.Decoder(parts["states"], parts["words"])
    live = rans.to_grid(np.ones(n, np.int64), lanes, fill=0) == 1
    grid = np.stack([decoder.step(freqs, step) for step in live])
    symbols = rans.from_grid(grid, n)
    if symbols.max() >> fmt.exponent_bits:
        raise CorruptDataError(f"split: exponent {symbols.max()} has over {fmt.exponent_bits} bits")
    if row.mode == CENTRED:
        origins = centring.origins(parts["centres"], spec.token_numel)
        symbols = symbols.reshape(row.num_valid, -1) + origins
        symbols = symbols.reshape(-1) & ((1 << fmt.exponent_bits) - 1)
    raw = unpack_raw(parts["raw"], decoder.finish(), n, fmt)
    return join_fields(symbols.astype(np.uint8), raw, fmt)


def encode_with_tables(
    bits: UInt, spec: BlockSpec, tables: Tables, mode: int
) -> dict[str, UInt] | None:
    """Parts of a row of mode PROFILE or CONTEXT; None if a channel without a class is not zero."""
    lanes, model = rans.num_lanes(spec.nbytes), contexts.Model(tables, spec.format)
    block = bits.reshape(-1, spec.token_numel)
    live = block[:, model.channels]
    if np.count_nonzero(block) != np.count_nonzero(live):
        return None
    steps, low = contexts.code(live, model, history=mode == CONTEXT)
    seeds, raw = np.zeros(lanes, np.int64), low[:0].view(np.uint8).reshape(-1)
    if contexts.low_bits(spec.format):
        seeds, raw = pack_raw(low.reshape(-1), contexts.low_format(spec.format), lanes)
    freqs, begins = (contexts.to_lanes(part, lanes) for part in steps)
    states, words = rans.encode(freqs, begins, seeds)
    return {"states": states.astype("<u4"), "words": words.astype("<u2"), "raw": raw}


def decode_with_tables(row: Row, spec: BlockSpec, tables: Tables) -> UInt:
    """Bit patterns of the valid elements of a row of mode PROFILE or CONTEXT."""
    if row.num_valid == 0:
        raise CorruptDataError("split: a coded row without valid tokens")
    fmt, model = spec.format, contexts.Model(tables, spec.format)
    lanes, parts = rans.num_lanes(spec.nbytes), row.parts
    decoder = rans.Decoder(parts["states"], parts["words"])
    fields = contexts.decode(decoder, row.num_valid, model, lanes, history=row.mode == CONTEXT)
    seeds, low = decoder.finish(), np.zeros_like(fields[0])
    if contexts.low_bits(fmt):
        flat = unpack_raw(parts["raw"], seeds, low.size, contexts.low_format(fmt))
        low = flat.reshape(low.shape)
    elif parts["raw"].size:
        raise CorruptDataError(f"split: raw part has {parts['raw'].size} bytes, wanted 0")
    bits = np.zeros((row.num_valid, spec.token_numel), f"u{fmt.itemsize}")
    bits[:, model.channels] = contexts.join(*fields, low, fmt)
    return bits.reshape(-1)


def seeded(fmt: FloatFormat) -> tuple[int, int]:
    """Width of the first raw plane, and how many of a group's 4 fields ride in the seed."""
    width = plane_widths(fmt.raw_bits)[0]
    return width, min(rans.GROUP, 16 // width)


def pack_raw(raw: UInt, fmt: FloatFormat, lanes: int) -> tuple[rans.Ints, U8]:
    """Seeds [lanes] and the raw part from the sign-mantissa fields [n].

    Fields are padded with zeros to whole groups of 4 and cut into planes of 8, 4, 2, 1 bits, low
    bits first. In the first plane, the first fields of each lane's first group go to its seed.
    """
    groups = pad(raw.astype(np.int64), rans.GROUP).reshape(-1, rans.GROUP)
    width, q = seeded(fmt)
    first = groups & ((1 << width) - 1)
    head = min(len(groups), lanes)
    seeds = np.zeros(lanes, np.int64)
    seeds[:head] = (first[:head, :q] << (width * np.arange(q))).sum(1)
    values = [np.concatenate([first[:head, q:].reshape(-1), first[head:].reshape(-1)])]
    shift = width
    for w in plane_widths(fmt.raw_bits)[1:]:
        values.append((groups.reshape(-1) >> shift) & ((1 << w) - 1))
        shift += w
    planes = zip(values, plane_widths(fmt.raw_bits), strict=True)
    return seeds, np.concatenate([pack_plane(pad(v, 8 // w), w) for v, w in planes])


def unpack_raw(part: U8, seeds: rans.Ints, n: int, fmt: FloatFormat) -> UInt:
    """Inverse of `pack_raw`: the fields [n]."""
    num_groups = -(-n // rans.GROUP)
    width, q = seeded(fmt)
    head = min(num_groups, seeds.size)
    sizes = [num_groups * rans.GROUP] * len(plane_widths(fmt.raw_bits))
    sizes[0] -= head * q
    offset, shift = 0, 0
    fields = np.zeros((num_groups, rans.GROUP), np.int64)
    for i, (size, w) in enumerate(zip(sizes, plane_widths(fmt.raw_bits), strict=True)):
        nbytes = -(-size * w // 8)
        if offset + nbytes > part.size:
            raise CorruptDataError(f"split: raw part of {part.size} bytes is too short")
        plane = unpack_plane(part[offset : offset + nbytes], w)[:size].astype(np.int64)
        if i == 0:
            fields[:head, :q] = (seeds[:head, None] >> (width * np.arange(q))) & ((1 << width) - 1)
            fields[:head, q:] = plane[: head * (rans.GROUP - q)].reshape(head, rans.GROUP - q)
            fields[head:] = plane[head * (rans.GROUP - q) :].reshape(-1, rans.GROUP)
        else:
            fields |= plane.reshape(fields.shape) << shift
        offset, shift = offset + nbytes, shift + w
    if offset != part.size:
        raise CorruptDataError(f"split: raw part has {part.size} bytes, wanted {offset}")
    return fields.reshape(-1)[:n].astype(f"u{fmt.itemsize}")


def pad(values: rans.Ints, multiple: int) -> rans.Ints:
    """Zeros appended up to a multiple."""
    return np.pad(values, (0, -values.size % multiple))
