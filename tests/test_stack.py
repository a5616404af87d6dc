"""Rows of the stack: read by a reader written from formats/stack.md alone, and transcoded."""

import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance.cases import DEVICE, used
from stack_rows import SPEC, WIDE, AllCodings, plain_rows
from strategies import make_cache

from kvcodec import BlockSpec, EncodedBlocks, get_codec, stack
from kvcodec.errors import (
    CorruptDataError,
    ImplementationUnavailableError,
    InvalidInputError,
)
from kvcodec.kernels import _native_call
from kvcodec.kernels._stack import load_coder
from kvcodec.kernels._stack_native import NativeCoder
from kvcodec.quantizer import transcode
from kvcodec.registry import IMPLEMENTATIONS, load_kernel
from kvcodec.row import row_layout

PLAIN = AllCodings()
RANS = AllCodings(entropy="rans")
WIDTHS = {"e4m3fn": (4, 3), "e5m2": (5, 2), "fp16": (5, 10), "bf16": (8, 7), "fp32": (8, 23)}
RAW_PLANES = {"e4m3fn": (4,), "e5m2": (2, 1), "fp16": (8, 2, 1), "bf16": (8,), "fp32": (8, 8, 8)}


def can_code(impl):
    """Whether the stack has this implementation here."""
    try:
        return load_coder(impl).unavailable(torch.device("cpu")) is None
    except ImplementationUnavailableError:
        return False


KINDS = ("skewed", "constant", "noise")
IMPLS = [i for i in IMPLEMENTATIONS if can_code(i)]
ISAS = _native_call.extension().isas() if _native_call._native else []
HOSTS = [i for i in IMPLS if i != "triton"]


def align(n):
    return (n + 15) // 16 * 16


class Stream:
    """Lanes and words of formats/rans.md, a symbol at a time."""

    def __init__(self, states, words):
        self.states, self.words = list(states), list(words)

    def plane(self, table, n):
        lanes, symbols = len(self.states), [0] * n
        slots = [(s, f, slot) for s, f in table for slot in range(f)]
        for step in range(4 * -(-n // (4 * lanes))):
            for lane in range(lanes):
                i = 4 * (step // 4 * lanes + lane) + step % 4
                if i < n:
                    x = self.states[lane]
                    symbols[i], f, offset = slots[x % 4096]
                    self.states[lane] = f * (x // 4096) + offset
            for lane in range(lanes):
                if self.states[lane] < 65536:
                    self.states[lane] = self.states[lane] * 65536 + self.words.pop(0)
        return symbols


def read_coded(row, sections, spec):
    """Used bytes of every part of a coded row; sections say what a quantizer's page says."""
    mode, reserved, valid, *counts = struct.unpack_from("<BBHIII", row)
    assert (mode, reserved) == (1, 0)
    lanes = 32 if spec.nbytes < 16384 else 64
    pieces, at = [], 16
    for size in (counts[0], 4 * lanes, 2 * counts[1], counts[2]):
        pieces.append(row[at : at + size])
        assert row[at + size : at + align(size)] == bytes(align(size) - size)
        at += align(size)
    assert at == len(row)
    tables, states, words, raw = pieces
    coded = [s for s in sections if s.coding != "raw"]
    ks, tables = [k + 1 for k in tables[: len(coded)]], tables[len(coded) :]
    stream = Stream(struct.unpack(f"<{lanes}I", states), struct.unpack(f"<{counts[1]}H", words))
    symbols, counted = {}, {}
    for s in sections:
        size = int(np.prod(s.shape)) * int(s.dtype[-1])
        if s.tokens:
            size = size // s.shape[0] * -(-valid // s.tokens)
        counted[s.name] = size
        if s.coding != "raw":
            k = ks.pop(0)
            freqs, tables = struct.unpack(f"<{k}H", tables[: 2 * k]), tables[2 * k :]
            table, tables = list(zip(tables[:k], freqs, strict=True)), tables[k:]
            n = size * 2 if s.coding in ("nibbles", "e2m1") else size // int(s.dtype[-1])
            symbols[s.name] = stream.plane(table, n)
    assert not tables
    assert not stream.words
    raw = b"".join(struct.pack("<H", x - 65536) for x in stream.states) + raw
    found = {}
    for s in sections:
        if s.coding == "raw":
            found[s.name], raw = raw[: counted[s.name]], raw[counted[s.name] :]
        elif s.coding == "bytes":
            found[s.name] = bytes(symbols[s.name])
        elif s.coding in ("nibbles", "e2m1"):
            pairs = zip(symbols[s.name][::2], symbols[s.name][1::2], strict=True)
            found[s.name] = bytes(low + 16 * high for low, high in pairs)
        else:
            e, m = WIDTHS[s.coding]
            fields, shift = [0] * len(symbols[s.name]), 0
            for w in RAW_PLANES[s.coding]:
                for k in range(len(fields)):
                    fields[k] |= (raw[k * w // 8] >> (k * w % 8) & ((1 << w) - 1)) << shift
                raw, shift = raw[(len(fields) * w + 7) // 8 :], shift + w
            values = [
                f >> m << (m + e) | x << m | f & ((1 << m) - 1)
                for f, x in zip(fields, symbols[s.name], strict=True)
            ]
            found[s.name] = b"".join(v.to_bytes(int(s.dtype[-1]), "little") for v in values)
    assert not raw.strip(b"\0") or len(raw) < 2 * lanes
    return found


def without_negative_zeros(data):
    nibbles = [x for byte in data for x in (byte & 15, byte >> 4)]
    nibbles = [0 if x == 8 else x for x in nibbles]
    return bytes(a + 16 * b for a, b in zip(nibbles[::2], nibbles[1::2], strict=True))


@pytest.mark.parametrize("spec", [SPEC, WIDE], ids=["32_lanes", "64_lanes"])
def test_a_reader_written_from_the_page_reads_every_coding(spec):
    sections = PLAIN.parts(spec)
    offsets, _ = row_layout(sections, {})
    for kind in KINDS[:2]:
        plain = plain_rows(RANS, spec, [spec.block_size, 3, 1], kind)
        coded = used(transcode(plain, RANS, impl="reference"))
        for row, source in zip(coded, used(plain), strict=True):
            assert row[0] == 1
            for name, data in read_coded(row, sections, spec).items():
                want = source[offsets[name] : offsets[name] + len(data)]
                assert data == (without_negative_zeros(want) if name == "codes" else want), name


@pytest.mark.parametrize("spec", [SPEC, WIDE], ids=["32_lanes", "64_lanes"])
@pytest.mark.parametrize("kind", KINDS)
def test_plain_rows_come_back_without_their_negative_zeros(spec, kind):
    valid = [spec.block_size, 0, 1, 5, spec.block_size - 1]
    plain = plain_rows(RANS, spec, valid, kind)
    coded = transcode(plain, RANS, impl="reference")
    assert (coded.nbytes <= plain.nbytes).all()
    back = used(transcode(coded, PLAIN, impl="reference"))
    again = transcode(transcode(coded, PLAIN, impl="reference"), RANS, impl="reference")
    assert used(again) == used(coded)
    begin = row_layout(PLAIN.parts(spec), {})[0]["codes"]
    end = begin + PLAIN.parts(spec)[1].nbytes()
    for row, source in zip(back, used(plain), strict=True):
        codes = without_negative_zeros(source[begin:end])
        assert row == source[:begin] + codes + source[end:]


def test_a_row_that_does_not_shrink_stays_plain():
    plain = plain_rows(RANS, SPEC, [30, 0], "noise")
    rows = transcode(plain, RANS, impl="reference")
    assert rows.payload[:, 0].tolist() == [0, 0]
    assert rows.nbytes.tolist() == [RANS.max_nbytes(SPEC)] * 2


@pytest.mark.parametrize("text", ["fp8", "fp8:dtype=e5m2,scale=head", "fp8:scale=block,given=1.0"])
def test_transcoding_equals_compressing_directly(text):
    plain = get_codec(text)
    coded = replace(plain, entropy="rans")
    cache = make_cache(BlockSpec(8, 3, 20, torch.bfloat16), ("normal", "random_bits", "specials"))
    valid = [8, 5, 1]
    rows = {
        c: c.compress(cache, range(3), num_valid=valid, impl="reference") for c in (plain, coded)
    }
    assert used(transcode(rows[plain], coded, impl="reference")) == used(rows[coded])
    assert used(transcode(rows[coded], plain, impl="reference")) == used(rows[plain])
    assert used(transcode(rows[coded], coded)) == used(rows[coded])


def test_only_entropy_may_change():
    rows = plain_rows(RANS, SPEC, [1], "skewed")
    for codec in (get_codec("fp8"), get_codec("split")):
        with pytest.raises(InvalidInputError, match="transcode"):
            transcode(rows, codec)
    with pytest.raises(InvalidInputError, match="wanted none or rans"):
        get_codec("fp8:entropy=huffman")


def test_triton_gives_the_bytes_of_the_reference():
    """A row of every coding; its blocks are few, for the interpreter's sake."""
    plain = plain_rows(RANS, SPEC, [21], "skewed")
    wanted = transcode(plain, RANS, impl="reference")
    assert wanted.payload[0, 0] == 1
    out, back = EncodedBlocks.empty(RANS, SPEC, 1), EncodedBlocks.empty(PLAIN, SPEC, 1)
    for rows in (out, back):
        rows.payload.fill_(0x5C)
    assert used(transcode(plain.to(DEVICE), RANS, impl="triton", out=out.to(DEVICE))) == used(
        wanted
    )
    back = transcode(wanted.to(DEVICE), PLAIN, impl="triton", out=back.to(DEVICE))
    assert used(back) == used(transcode(wanted, PLAIN, impl="reference"))


@pytest.mark.parametrize("impl", HOSTS[1:])
@pytest.mark.parametrize("spec", [SPEC, WIDE], ids=["32_lanes", "64_lanes"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_implementation_gives_the_bytes_of_the_reference(impl, spec, kind):
    """Whatever the rows held before, in both directions and in both modes."""
    b = spec.block_size
    plain = plain_rows(RANS, spec, [b, 0, 1, 5, b - 1, b], kind)
    wanted = transcode(plain, RANS, impl="reference")
    out = EncodedBlocks.empty(RANS, spec, len(plain))
    out.payload.fill_(0x5C)
    assert used(transcode(plain, RANS, impl=impl, out=out)) == used(wanted)
    back = EncodedBlocks.empty(PLAIN, spec, len(plain))
    back.payload.fill_(0x5C)
    transcode(wanted, PLAIN, impl=impl, out=back)
    assert used(back) == used(transcode(wanted, PLAIN, impl="reference"))


@pytest.mark.parametrize("isa", [index for index, _ in ISAS], ids=[name for _, name in ISAS])
def test_every_instruction_set_gives_the_bytes_of_the_reference(isa):
    coder = NativeCoder(isa)
    for spec, kind in ((SPEC, "skewed"), (WIDE, "skewed"), (WIDE, "constant"), (WIDE, "noise")):
        b = spec.block_size
        plain = plain_rows(RANS, spec, [b, 0, 1, 5, b - 1, b], kind)
        wanted = transcode(plain, RANS, impl="reference")
        out, back = EncodedBlocks.empty(RANS, spec, 6), EncodedBlocks.empty(PLAIN, spec, 6)
        coder.encode_rows(plain, out, num_threads=2)
        coder.decode_rows(wanted, back, num_threads=2)
        assert used(out) == used(wanted)
        assert used(back) == used(transcode(wanted, PLAIN, impl="reference"))


def damaged(row):
    """Coded rows, each with one lie of those that the page tells a reader to reject."""
    for at, value in (
        (0, 2),
        (1, 1),
        (2, 0),
        (2, 255),
        (4, 0),
        (8, 1),
        (12, 7),
        (16, 9),
        (17, 255),
    ):
        bad = row.clone()
        bad[at] = value if at != 8 else bad[at] ^ value
        yield bad
    bad = row.clone()
    bad[row.shape[0] - 16 :] = 0xFF
    states = 16 + align(int(row[4:8].view(torch.int32)))
    bad[states : states + 4] = 0
    yield bad


@pytest.mark.parametrize("impl", HOSTS)
def test_damage_is_found(impl):
    rows = transcode(plain_rows(RANS, SPEC, [7], "skewed"), RANS, impl="reference")
    row = rows.payload[0, : int(rows.nbytes[0])]
    for bad in damaged(row):
        batch = EncodedBlocks(RANS, SPEC, rows.payload.clone(), rows.nbytes)
        batch.payload[0, : len(bad)] = bad
        with pytest.raises(CorruptDataError):
            transcode(batch, PLAIN, impl=impl)


def test_a_symbol_out_of_its_alphabet_is_found():
    wrong = stack.encode_parts({"codes": np.full(60, 0x99, np.uint8)}, (PLAIN.parts(SPEC)[1],), 32)
    wrong["tables"][-1] = 16
    with pytest.raises(CorruptDataError, match="alphabet"):
        stack.read_tables(wrong["tables"], (PLAIN.parts(SPEC)[1],))


def test_one_native_call_finds_damage_between_coder_and_quantizer_before_it_writes():
    if not ISAS:
        pytest.skip("the extension was not built")
    codec = get_codec("nvfp4:entropy=rans")
    cache = make_cache(BlockSpec(16, 2, 64, torch.bfloat16), ("normal",) * 3)
    spec, ids = BlockSpec.of(cache), torch.arange(3)
    plain = codec.plain.compress(cache, ids, impl="native")
    scales = row_layout(codec.plain.parts(spec), {})[0]["scales"]
    plain.payload[1, scales] = 255
    coded, back = transcode(plain, codec, impl="native"), torch.ones_like(cache)
    with pytest.raises(CorruptDataError, match=r"nvfp4: row 1 of .* it has a scale"):
        codec.decompress(coded, back, ids, impl="native")
    assert torch.equal(back, torch.ones_like(cache))


@pytest.mark.parametrize("name", ["fp8", "mxfp4", "int4", "turboquant"])
def test_one_native_call_writes_the_rows_of_two(name):
    codec = get_codec(f"{name}:entropy=rans")
    cache = make_cache(WIDE, ("normal",) * 3)
    ids, valid = torch.tensor([2, 0, 1]), torch.tensor([WIDE.block_size, 0, 5], dtype=torch.int32)
    plain = codec.plain.compress(cache, ids, num_valid=valid, impl="reference")
    wanted, back = used(transcode(plain, codec, impl="reference")), []
    for isa, _ in ISAS:
        kernel = load_kernel(codec, "native")
        kernel = replace(kernel, kernel=replace(kernel.kernel, isa=isa), coder=NativeCoder(isa))
        rows = EncodedBlocks.empty(codec, WIDE, 3)
        kernel.compress(cache, ids, valid, rows, num_threads=2)
        assert used(rows) == wanted
        back.append(torch.ones_like(cache))
        kernel.decompress(rows, back[-1], ids, num_threads=2)
        assert torch.equal(back[-1], back[0])
