"""Specs, rows and batches: what is written is read again, and nothing else is accepted."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import make_cache

from kvcodec import BlockSpec, EncodedBlocks, Section, concat, gather_rows, get_codec
from kvcodec.bits import DTYPES, FORMATS
from kvcodec.errors import CorruptDataError, InvalidInputError
from kvcodec.kernels import _gather_triton
from kvcodec.row import align, prefix_nbytes, read_row, read_rows, row_layout, write_row

SPEC = BlockSpec(4, 2, 64, torch.bfloat16)


def test_a_spec_knows_its_sizes():
    spec = BlockSpec(16, 8, 100, torch.float8_e5m2)
    assert (spec.shape, spec.token_numel, spec.numel) == ((16, 8, 100), 800, 12800)
    assert spec.nbytes == 12800
    assert replace(spec, dtype=torch.float32).nbytes == 4 * 12800
    assert spec.format.name == "e5m2"


def test_a_spec_is_read_off_a_cache():
    assert BlockSpec.of(torch.zeros(9, 4, 2, 64, dtype=torch.bfloat16)) == SPEC
    with pytest.raises(InvalidInputError, match=r"3 axes \(4, 2, 64\).*see kvcodec.layout"):
        BlockSpec.of(torch.zeros(4, 2, 64))


@pytest.mark.parametrize("dtype", FORMATS, ids=[f.name for f in FORMATS.values()])
def test_a_spec_survives_json_under_the_name_of_its_encoding(dtype):
    spec = replace(SPEC, dtype=dtype)
    text = json.dumps(spec.to_json())
    assert BlockSpec.from_json(json.loads(text)) == spec
    assert DTYPES[spec.to_json()["encoding"]] == dtype


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"block_size": 4, "num_kv_heads": 2, "head_dim": 64},
        {"block_size": 4, "num_kv_heads": 2, "head_dim": 64, "encoding": "bfloat16"},
        {"block_size": 4, "num_kv_heads": 2, "head_dim": 64, "encoding": ["bf16"]},
        {"block_size": 4, "num_kv_heads": 2, "head_dim": 64, "encoding": "bf16", "x": 1},
        {"block_size": "4", "num_kv_heads": 2, "head_dim": 64, "encoding": "bf16"},
        {"block_size": True, "num_kv_heads": 2, "head_dim": 64, "encoding": "bf16"},
        {"block_size": 4.0, "num_kv_heads": 2, "head_dim": 64, "encoding": "bf16"},
        {"block_size": 0, "num_kv_heads": 2, "head_dim": 64, "encoding": "bf16"},
    ],
)
def test_malformed_specs_are_refused(data):
    with pytest.raises(InvalidInputError, match="BlockSpec"):
        BlockSpec.from_json(data)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 2, 64), "block_size is 0"),
        ((4, -1, 64), "num_kv_heads is -1"),
        ((4, 2, 64.0), "head_dim is 64.0"),
        ((65536, 1, 1), "block_size 65536 is over 65535"),
        ((65535, 2, 129), "elements in a block, at most 16777216"),
    ],
)
def test_sizes_that_no_row_can_hold_are_refused(sizes, message):
    with pytest.raises(InvalidInputError, match=message):
        BlockSpec(*sizes, torch.bfloat16)


def test_element_types_without_bits_of_their_own_are_refused():
    with pytest.raises(InvalidInputError, match=r"dtype torch\.int32 is not one of bf16, fp16"):
        BlockSpec(4, 2, 64, torch.int32)


FIXED = Section("scales", "<f4", (2, 3))
WORDS = Section("words", "<u2")
BYTES = Section("bytes", "u1")


def test_a_row_has_the_bytes_the_format_page_says():
    out = np.full(200, 0xA5, np.uint8)
    parts = {
        "words": np.array([0x0102, 0x0304, 0x0506], np.uint16),
        "scales": np.arange(6, dtype=np.float32).reshape(2, 3),
        "bytes": np.array([7, 8], np.uint8),
    }
    nbytes = write_row(out, (WORDS, FIXED, BYTES), 3, 0x0201, parts)
    expected = bytes([3, 0, 1, 2, 3, 0, 0, 0, 2, 0, 0, 0]) + bytes(4)
    expected += bytes([2, 1, 4, 3, 6, 5]) + bytes(10)
    expected += np.arange(6, dtype="<f4").tobytes() + bytes(8)
    expected += bytes([7, 8]) + bytes(14)
    assert out[:nbytes].tobytes() == expected
    assert (out[nbytes:] == 0xA5).all()


def test_prefixes_hold_three_counts_and_grow_in_units_of_16():
    assert [prefix_nbytes((BYTES,) * n) for n in range(9)] == [16] * 4 + [32] * 4 + [48]
    assert [align(n) for n in (0, 1, 15, 16, 17)] == [0, 16, 16, 16, 32]


@given(
    st.lists(st.tuples(st.sampled_from(["u1", "<u2", "<u4", "<f4"]), st.booleans()), max_size=9),
    st.integers(0, 255),
    st.integers(0, 20),
    st.data(),
)
def test_rows_return_what_was_written_and_tile(kinds, mode, num_valid, data):
    sections, parts = [], {}
    for i, (dtype, variable) in enumerate(kinds):
        size = data.draw(st.integers(0, 40))
        shape = None if variable else (size, 2)
        sections.append(Section(f"part{i}", dtype, shape))
        part = (np.arange(size * (1 if variable else 2)) * 37 % 251).astype(dtype)
        parts[f"part{i}"] = part if variable else part.reshape(size, 2)
    sections = tuple(sections)
    counts = {s.name: parts[s.name].size for s in sections if s.shape is None}
    _, total = row_layout(sections, counts)
    out = np.full(total + 32, 0xA5, np.uint8)
    assert write_row(out, sections, mode, num_valid, parts) == total
    assert (out[total:] == 0xA5).all()
    row = read_row(out[:total], sections, block_size=20)
    assert (row.mode, row.num_valid) == (mode, num_valid)
    for name, part in parts.items():
        assert row.parts[name].shape == part.shape
        assert row.parts[name].tobytes() == part.tobytes()
    covered = np.zeros(total, bool)
    covered[: prefix_nbytes(sections)] = True
    for section, offset in zip(sections, row_layout(sections, counts)[0].values(), strict=True):
        length = align(section.nbytes(counts.get(section.name, 0)))
        assert not covered[offset : offset + length].any()
        covered[offset : offset + length] = True
    assert covered.all()


def test_rows_that_do_not_tile_are_refused_before_a_part_is_touched():
    sections = (WORDS, FIXED)
    out = np.zeros(64, np.uint8)
    parts = {"words": np.zeros(3, "<u2"), "scales": np.zeros((2, 3), "<f4")}
    nbytes = write_row(out, sections, 0, 4, parts)
    good = out[:nbytes]
    assert read_row(good, sections, 4).num_valid == 4
    with pytest.raises(CorruptDataError, match="shorter than its 16-byte prefix"):
        read_row(good[:15], sections, 4)
    for size in range(16, nbytes):
        with pytest.raises(CorruptDataError, match=f"take {nbytes} bytes, it has {size}"):
            read_row(good[:size], sections, 4)
    for at, value, message in [
        (1, 1, "reserved byte is 1"),
        (2, 5, "num_valid 5 is over the block size 4"),
        (4, 9, "its parts take"),
        (7, 255, "its parts take"),
    ]:
        bad = good.copy()
        bad[at] = value
        with pytest.raises(CorruptDataError, match=message):
            read_row(bad, sections, 4)


@pytest.mark.parametrize("nbytes", [-16, 0, 15, 1 << 30])
def test_sizes_that_leave_their_slot_are_refused(nbytes):
    rows = encoded(3)
    rows.nbytes[1] = nbytes
    with pytest.raises(CorruptDataError, match=f"row of {nbytes} bytes in a slot of"):
        read_rows(rows)


def encoded(n, kinds=("normal", "random_bits", "zeros"), codec="split"):
    """n rows of different lengths."""
    cache = make_cache(SPEC, (kinds * 3)[: max(n, 1)])
    return get_codec(codec).compress(cache, list(range(n)), impl="reference")


def test_the_length_of_a_batch_is_its_number_of_rows():
    rows = encoded(4)
    assert len(rows) == 4
    assert len(set(rows.nbytes.tolist())) == 3
    assert rows.total_nbytes() == sum(rows.nbytes.tolist())


def test_a_slice_of_a_batch_is_a_view():
    rows = encoded(4)
    part = rows[1:3]
    assert len(part) == 2
    assert part.payload.data_ptr() == rows.payload[1].data_ptr()
    assert part.nbytes.tolist() == rows.nbytes.tolist()[1:3]


def test_totals_do_not_overflow_32_bits():
    rows = encoded(3)
    huge = replace(rows, nbytes=torch.full((3,), 0x7FFFFFF0, dtype=torch.int32))
    assert huge.total_nbytes() == 3 * 0x7FFFFFF0


def check_gathered(rows, buffer, offsets):
    sizes = rows.nbytes.tolist()
    assert offsets.dtype == torch.int64
    assert offsets.tolist() == [0, *np.cumsum(sizes).tolist()]
    for i, size in enumerate(sizes):
        assert torch.equal(buffer[offsets[i] : offsets[i + 1]], rows.payload[i, :size])


@pytest.mark.parametrize("n", [0, 1, 7])
def test_gathered_rows_hold_the_used_bytes_in_order(n):
    rows = encoded(n)
    buffer, offsets = gather_rows(rows)
    check_gathered(rows, buffer, offsets)
    assert buffer.numel() == rows.payload.numel()


def test_gathering_takes_rows_out_of_a_wider_buffer():
    rows = encoded(3)
    wide = torch.zeros(3, rows.payload.shape[1] + 64, dtype=torch.uint8)
    wide[:, 16:-48] = rows.payload
    wider = replace(rows, payload=wide[:, 16:-48])
    buffer, offsets = gather_rows(wider)
    check_gathered(rows, buffer, offsets)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_the_gather_kernel_equals_the_host(n):
    """Rows of several tiles and rows that end inside one; not a byte outside the used ones."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    spec = BlockSpec(20, 8, 64, torch.float16)
    kinds = ("normal", "random_bits", "zeros", "constant")
    cache = make_cache(spec, kinds * 2)
    rows = get_codec("split").compress(cache, list(range(n)), impl="reference").to(device)
    expected, offsets = gather_rows(rows.to("cpu"))
    used, end = int(offsets[-1]), rows.payload.numel()
    buffer = torch.full((end + 32,), 0x5C, dtype=torch.uint8, device=device)
    _gather_triton.gather(rows.payload, offsets.to(device), buffer[:end])
    assert torch.equal(buffer[:used].cpu(), expected[:used])
    assert (buffer[used:] == 0x5C).all()


def test_concatenated_batches_keep_their_rows():
    a, b = encoded(2), encoded(3)[1:]
    both = concat([a, b])
    assert both.nbytes.tolist() == a.nbytes.tolist() + b.nbytes.tolist()
    assert torch.equal(both.payload, torch.cat([a.payload, b.payload]))
    assert torch.equal(concat([a]).payload, a.payload)


def test_batches_that_differ_in_codec_or_spec_do_not_concatenate():
    rows = encoded(2)
    for other in (
        encoded(2, codec="raw"),
        replace(rows, spec=replace(SPEC, block_size=2)),
        replace(rows, codec=get_codec("fp8:dtype=e5m2")),
    ):
        with pytest.raises(InvalidInputError, match="differs from"):
            concat([rows, other])


def test_no_batches_are_no_batch():
    with pytest.raises(InvalidInputError, match="no batches"):
        concat([])


def test_empty_rows_have_the_shape_a_call_expects():
    rows = EncodedBlocks.empty(get_codec("raw"), SPEC, 5)
    assert rows.payload.shape == (5, 16 + SPEC.nbytes)
    assert (rows.payload.dtype, rows.nbytes.dtype) == (torch.uint8, torch.int32)
    assert rows.nbytes.shape == (5,)


def test_fresh_memory_is_poisoned():
    """The suite's own guard: what nobody wrote is not zero."""
    assert (torch.empty(5, dtype=torch.uint8) == 0xA5).all()
    assert torch.empty(5, dtype=torch.bfloat16).isnan().all()
    assert torch.empty_like(torch.zeros(2, 3)).isnan().all()
    assert torch.zeros(1).new_empty(3).isnan().all()
    assert (np.empty((2, 3), np.uint16).T == 0xA5A5).all()
    assert np.isnan(np.empty_like(np.zeros((2, 3)).T)).all()
