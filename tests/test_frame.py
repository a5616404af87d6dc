"""Frames: they hold what was put in, and whatever else the bytes are, they are refused."""

from __future__ import annotations

import functools
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hostile import frames as own
from hostile.attacks import CORRUPT, UNKNOWN
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import bound, make_profile
from strategies import KINDS, make_block, make_cache

from kvcodec import BlockSpec, EncodedBlocks, codec_names, compress, decompress, get_codec
from kvcodec.bits import FORMATS, int_view
from kvcodec.codecs.raw import Raw
from kvcodec.errors import (
    CorruptDataError,
    InvalidInputError,
    KVCodecError,
    UnknownCodecError,
)
from kvcodec.frame import Frame, _gathered_rows, dumps, loads
from kvcodec.identity import Identity
from kvcodec.registry import codec_class

EXAMPLES = [
    spec
    for name in codec_names()
    if codec_class(name).__module__.startswith("kvcodec.codecs.")
    for spec in codec_class(name).examples
]
SMALL = BlockSpec(4, 1, 8, torch.bfloat16)
LIMIT = 1 << 20  # fuzzed frames may name larger blocks than a test wants to decode


@functools.cache
def small_frame() -> bytes:
    """Three codecs, partly filled blocks, an identity with text."""
    cache = make_cache(SMALL, ("normal", "random_bits"))
    codecs = ("raw", "split", "fp8:scale=head,given=0.5")
    batches = [compress(cache, [0, 1], codec, num_valid=[4, 3]) for codec in codecs]
    return dumps(batches, Identity(model="m", layer=2, kind="key", block_key="5f"))


@functools.cache
def coded_frame() -> bytes:
    """Rows in which split wins, so that tables, states and words are there to be damaged."""
    spec = BlockSpec(16, 2, 32, torch.bfloat16)
    cache = make_cache(spec, ("normal", "two_symbols"))
    rows = compress(cache, [0, 1], "split", num_valid=[16, 9])
    assert [int(row[0]) for row in rows.payload] == [1, 1]
    return dumps([rows, compress(cache, [0], "fp8")])


def decoded(frame: Frame) -> list[torch.Tensor]:
    """Every block of a frame, in row order."""
    blocks: list[torch.Tensor] = [torch.zeros(0)] * frame.num_rows
    for indices, rows in frame.batches():
        cache = torch.zeros(len(rows), *rows.spec.shape, dtype=rows.spec.dtype)
        decompress(rows, cache, range(len(rows)))
        for i, block in zip(indices, cache, strict=True):
            blocks[i] = block
    return blocks


# of [tokens, heads, dim]; the last ones for codecs that need so many tokens, or just this width
SHAPES = ((4, 3, 64), (16, 1, 64), (4, 1, 128))


@pytest.mark.parametrize("example", EXAMPLES)
def test_rows_come_back_from_a_frame(example):
    codec = get_codec(example)
    shapes = [BlockSpec(*shape, dtype) for shape in SHAPES for dtype in FORMATS]
    batches = []
    for spec in (s for s in shapes if codec.supports(s) is None):
        cache = make_cache(spec)
        valid = [spec.block_size, 3, 0, 1] * (len(cache) // 4) + [2] * (len(cache) % 4)
        holding = bound(codec, spec)
        batches.append(compress(cache, range(len(cache)), holding, num_valid=valid))
    profiles = [make_profile(batch.spec) for batch in batches if batch.codec.needs_profile]
    frame = loads(dumps(batches), profiles=profiles)
    assert frame.num_rows == sum(map(len, batches)) > 0
    start = 0
    for batch, (indices, rows) in zip(batches, frame.batches(), strict=True):
        assert indices == list(range(start, start + len(batch)))
        assert (rows.codec, rows.spec) == (batch.codec, batch.spec)
        assert torch.equal(rows.nbytes, batch.nbytes)
        assert rows.payload.shape[1] == codec.max_nbytes(batch.spec)
        for got, wanted, nbytes in zip(rows.payload, batch.payload, batch.nbytes, strict=True):
            assert torch.equal(got[:nbytes], wanted[:nbytes])
            assert not got[nbytes:].any()
        start += len(batch)


def test_a_frame_mixes_codecs_and_head_sizes_in_row_order():
    local, full = BlockSpec(16, 2, 32, torch.bfloat16), BlockSpec(16, 1, 64, torch.bfloat16)
    blocks = [make_block("normal", spec, i) for i, spec in enumerate((local, full, local, local))]
    codecs = ["split", "fp8", "fp8", "split"]
    batches = [compress(b[None], [0], c) for b, c in zip(blocks, codecs, strict=True)]
    frame = loads(dumps(batches))
    assert [(str(row.codec), row.spec) for row in frame.rows] == [
        ("split", local), ("fp8", full), ("fp8", local), ("split", local)
    ]  # fmt: skip
    assert [indices for indices, _ in frame.batches()] == [[0, 3], [1], [2]]
    for block, back, batch in zip(blocks, decoded(frame), batches, strict=True):
        alone = torch.zeros_like(block[None])
        decompress(batch, alone, [0])
        assert torch.equal(int_view(back), int_view(alone[0]))
        assert not batch.codec.lossless or torch.equal(int_view(back), int_view(block))


def test_sizes_of_a_frame_add_up():
    data = small_frame()
    frame = loads(data)
    assert (frame.nbytes, frame.num_rows) == (len(data), 6)
    assert frame.rows_nbytes == sum(len(row.data) for row in frame.rows)
    assert frame.raw_nbytes == 6 * SMALL.nbytes
    batches = [rows for _, rows in frame.batches()]
    assert frame.batches_nbytes == sum(rows.payload.numel() for rows in batches)
    assert frame.rows_nbytes == sum(rows.total_nbytes() for rows in batches)


def test_rows_are_read_only_views_of_the_frame():
    data = small_frame()
    for row in loads(data).rows:
        assert row.data.obj is data
        assert row.data.readonly
    writable = bytearray(data)
    assert all(row.data.readonly for row in loads(memoryview(writable)).rows)


def test_a_frame_without_rows_round_trips():
    frame = loads(dumps([], Identity(model="m")))
    assert (frame.num_rows, frame.rows_nbytes, list(frame.batches())) == (0, 0, [])
    assert frame.identity == Identity(model="m", exact=True)
    none = compress(make_cache(SMALL, ("normal",)), [], "fp8")
    assert loads(dumps(none)).num_rows == 0


def test_equal_input_gives_equal_bytes():
    assert small_frame.__wrapped__() == small_frame.__wrapped__()


def test_an_independent_writer_gives_the_same_bytes():
    bits = torch.frombuffer(bytearray(range(16)), dtype=torch.int16).view(torch.bfloat16)
    rows = compress(bits.view(1, 2, 1, 4), [0], "raw")
    assert dumps(rows) == own.build()
    assert own.seal(small_frame()) == small_frame()


def test_every_changed_byte_is_an_error():
    data = small_frame()
    for at in range(len(data)):
        for mask in (1 << at % 8, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= mask
            with pytest.raises(KVCodecError):
                loads(bytes(damaged))


def test_a_frame_cut_at_any_length_is_an_error():
    data = small_frame()
    for length in range(len(data)):
        with pytest.raises(CorruptDataError):
            loads(data[:length])


@pytest.mark.parametrize("tail", [b"\0", bytes(16), b"x"])
def test_bytes_after_a_frame_are_an_error(tail):
    with pytest.raises(CorruptDataError, match="extended"):
        loads(small_frame() + tail)


def test_two_rows_swapped_are_an_error():
    frame = loads(small_frame())
    first, second = frame.rows[0].data, frame.rows[1].data
    assert len(first) == len(second)
    front = small_frame()[: -frame.rows_nbytes]
    rows = [second, first, *(row.data for row in frame.rows[2:])]
    with pytest.raises(CorruptDataError, match="row 0: checksum"):
        loads(front + b"".join(rows))


def test_the_error_names_the_damaged_row():
    data = bytearray(small_frame())
    data[-1] ^= 1
    with pytest.raises(CorruptDataError, match="row 5: checksum"):
        loads(bytes(data))


@pytest.mark.parametrize("name", CORRUPT)
def test_a_lying_frame_is_corrupt(name):
    data, piece = CORRUPT[name]
    with pytest.raises(CorruptDataError) as caught:
        loads(data)
    assert piece in str(caught.value)


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_codec_unknown_here_is_named(name):
    data, piece = UNKNOWN[name]
    with pytest.raises(UnknownCodecError) as caught:
        loads(data)
    assert piece in str(caught.value)


def test_claimed_sizes_are_refused_before_they_are_allocated():
    for data, _ in (*CORRUPT.values(), *UNKNOWN.values()):
        tracemalloc.start()
        try:
            with pytest.raises(KVCodecError):
                loads(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # a header of 64 KiB may become text, a value of one-character strings, and text again
        assert peak < 4 << 20


def test_a_block_of_the_largest_size_is_named_without_allocating_it():
    large = {**own.SPEC, "block_size": 1 << 14, "head_dim": 1 << 10}
    row = own.ROW[:16]
    data = own.build({**own.HEADER, "specs": [large]}, own.entry(row) * 100, row * 100)
    tracemalloc.start()
    try:
        frame = loads(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert frame.batches_nbytes > 3 << 30
    assert peak < 1 << 20


def survive(data: bytes) -> None:
    """Load and decode bytes: KVCodecError, or values in the blocks asked for and nowhere else."""
    try:
        frame = loads(data)
    except KVCodecError:
        return
    if frame.batches_nbytes > LIMIT or frame.raw_nbytes > LIMIT:
        return
    for _, rows in frame.batches():
        n = len(rows)
        cache = torch.zeros(n + 2, *rows.spec.shape, dtype=rows.spec.dtype)
        int_view(cache).fill_(0x5A)
        before = int_view(cache).clone()
        try:
            decompress(rows, cache, range(1, n + 1))
        except KVCodecError:
            assert torch.equal(int_view(cache), before)
        assert torch.equal(int_view(cache)[[0, n + 1]], before[[0, n + 1]])


changes = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), min_size=1, max_size=6)


@settings(max_examples=300)
@given(changes=changes)
def test_mutated_frames_with_right_checksums_are_refused_or_decoded(changes):
    data = bytearray(small_frame())
    for at, mask in changes:
        data[at % len(data)] ^= mask
    survive(own.seal(bytes(data)))


@settings(max_examples=300)
@given(changes=changes)
def test_mutated_rows_are_refused_or_decoded(changes):
    frame = loads(coded_frame())
    begin = frame.nbytes - frame.rows_nbytes
    data = bytearray(coded_frame())
    for at, mask in changes:
        data[begin + at % frame.rows_nbytes] ^= mask
    sealed = own.seal(bytes(data))
    assert loads(sealed).num_rows == frame.num_rows
    survive(sealed)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


@settings(max_examples=300)
@given(data=st.data())
def test_a_header_with_any_value_anywhere_is_refused_or_decoded(data):
    header = {
        "codecs": [{**own.FP8, "params": dict(own.FP8["params"])}],
        "identity": {"exact": False, "model": "m", "layer": 1, "rope_scaling": "{}"},
        "profiles": [],
        "specs": [dict(own.SPEC)],
    }
    places = [header, header["codecs"][0], header["codecs"][0]["params"], header["specs"][0]]
    place = data.draw(st.sampled_from([*places, header["identity"]]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(values)
    try:
        body = own.text(header)
    except UnicodeEncodeError:
        body = own.json.dumps(header).encode()
    survive(own.build(body))


@given(st.binary(max_size=200))
def test_random_bytes_are_not_a_frame(data):
    with pytest.raises(CorruptDataError):
        loads(data)
    with pytest.raises(KVCodecError):
        loads(own.build(data))


def test_only_contiguous_bytes_are_read():
    strided = memoryview(np.zeros(200, np.uint8))[::2]
    for data in ("text", strided, None):
        with pytest.raises(InvalidInputError, match="contiguous bytes"):
            loads(data)


def test_rows_gathered_for_one_copy_are_the_rows():
    cache = make_cache(SMALL).to("cuda" if torch.cuda.is_available() else "cpu")
    rows = compress(cache, range(len(cache)), "split")
    host = rows.to("cpu")
    wanted = [bytes(row[:n].numpy()) for row, n in zip(host.payload, host.nbytes, strict=True)]
    assert [bytes(row) for row in _gathered_rows(rows)] == wanted
    assert [bytes(row.data) for row in loads(dumps(rows)).rows] == wanted


def test_impossible_row_sizes_are_not_written():
    rows = compress(make_cache(SMALL, ("normal",)), [0], "raw")
    for nbytes in (0, -16, 24, 96, 1 << 30):
        broken = EncodedBlocks(rows.codec, SMALL, rows.payload, torch.tensor([nbytes]).int())
        with pytest.raises(InvalidInputError, match=f"row 0 has {nbytes} bytes"):
            dumps(broken)


def test_codecs_that_no_reader_could_find_are_not_written():
    @dataclass(frozen=True, slots=True)
    class Private(Raw):
        name = "private"

    @dataclass(frozen=True, slots=True)
    class Impostor(Raw):
        pass

    for codec in (Private(), Impostor()):
        rows = compress(make_cache(SMALL, ("normal",)), [0], codec)
        with pytest.raises(UnknownCodecError):
            dumps(rows)


def test_a_header_over_64_kib_is_not_written():
    rows = compress(make_cache(SMALL, ("normal",)), [0], "raw")
    assert loads(dumps(rows, Identity(salt="x" * 65000))).num_rows == 1
    with pytest.raises(InvalidInputError, match="at most 65536"):
        dumps(rows, Identity(salt="x" * 66000))


def test_all_kinds_of_blocks_survive_a_frame_bit_for_bit():
    spec = BlockSpec(16, 2, 64, torch.float32)
    cache = make_cache(spec)
    frame = loads(dumps(compress(cache, range(len(KINDS)), "split")))
    assert torch.equal(int_view(torch.stack(decoded(frame))), int_view(cache))
