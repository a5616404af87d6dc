"""Golden files: what was written once is read for ever, and written the same way again."""

from __future__ import annotations

import json
from pathlib import Path

import golden
import golden_rans
import numpy as np
import pytest
import torch

from kvcodec import BlockSpec, EncodedBlocks, Profile, codec_names, get_codec, rans
from kvcodec.bits import DTYPES, UInt, from_bits, int_view
from kvcodec.frame import Frame, FrameRow, dumps, loads
from kvcodec.identity import Identity
from kvcodec.registry import IMPLEMENTATIONS, codec_class, why_unavailable

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FRAMES = sorted(str(path.relative_to(golden.ROOT)) for path in golden.ROOT.glob("*/v*/*.kvc"))
VECTORS = sorted(
    set(golden.ROOT.glob("rans/v1/*.json")) - {golden.ROOT / "rans/v1/frequencies.json"}
)
BUILT_IN = [n for n in codec_names() if codec_class(n).__module__.startswith("kvcodec.codecs.")]
INTERPRETER_LIMIT = 2000  # elements of a frame: Triton's interpreter takes 0.2 ms an operation


def implementations(frame: Frame) -> list[str]:
    """What this machine has for every codec of a frame."""
    found = []
    for impl in IMPLEMENTATIONS:
        slow = impl == "triton" and DEVICE.type == "cpu"
        if slow and sum(row.spec.numel for row in frame.rows) > INTERPRETER_LIMIT:
            continue
        if all(why_unavailable(row.codec, impl, DEVICE) is None for row in frame.rows):
            found.append(impl)
    return found


def read(name: str) -> bytes:
    return (golden.ROOT / name).read_bytes()


def load(name: str) -> Frame:
    """A frame, with the profile beside it if there is one."""
    path = (golden.ROOT / name).with_suffix(".profile")
    return loads(read(name), profiles=[Profile.load(path)] if path.exists() else [])


RUNS = [(name, impl) for name in FRAMES for impl in implementations(load(name))]


def cut(data: bytes, frame: Frame) -> list[torch.Tensor]:
    """Blocks of a .in or .out file, in row order."""
    blocks, at = [], 0
    for row in frame.rows:
        bits = np.frombuffer(data, f"<u{row.spec.dtype.itemsize}", row.spec.numel, at)
        native = bits.astype(bits.dtype.newbyteorder("=")).reshape(row.spec.shape)
        blocks.append(from_bits(native, row.spec.dtype))
        at += row.spec.nbytes
    assert at == len(data)
    return blocks


def num_valid(row: FrameRow) -> int:
    return int.from_bytes(row.data[2:4], "little")


@pytest.mark.parametrize(("name", "impl"), RUNS)
def test_golden_frames_decode_to_their_values(name, impl):
    frame = load(name)
    lossless = all(row.codec.lossless for row in frame.rows)
    wanted = cut(read(name[:-4] + (".in" if lossless else ".out")), frame)
    for indices, rows in frame.batches():
        cache = torch.zeros(len(rows), *rows.spec.shape, dtype=rows.spec.dtype, device=DEVICE)
        int_view(cache).fill_(0x5A)
        rows.codec.decompress(rows.to(DEVICE), cache, range(len(rows)), impl=impl)
        for i, block in zip(indices, cache.cpu(), strict=True):
            valid = num_valid(frame.rows[i])
            assert torch.equal(int_view(block)[:valid], int_view(wanted[i])[:valid])
            assert not int_view(block)[valid:].any()


@pytest.mark.parametrize(
    ("name", "impl"), [run for run in RUNS if run[0] not in golden.DECODE_ONLY]
)
def test_golden_inputs_encode_to_their_frames(name, impl):
    frame = load(name)
    blocks = cut(read(name[:-4] + ".in"), frame)
    batches: list[EncodedBlocks] = []
    start = 0
    while start < len(blocks):  # one call for each run of rows of a codec and spec
        first = frame.rows[start]
        run = [i for i in range(start, len(blocks)) if all_like(frame.rows[start : i + 1], first)]
        batches.append(
            first.codec.compress(
                torch.stack([blocks[i] for i in run]).to(DEVICE),
                range(len(run)),
                num_valid=[num_valid(frame.rows[i]) for i in run],
                impl=impl,
            )
        )
        start += len(run)
    assert dumps(batches, frame.identity) == read(name)


def all_like(rows: tuple[FrameRow, ...], first: FrameRow) -> bool:
    return all((row.codec, row.spec) == (first.codec, first.spec) for row in rows)


def test_only_codecs_that_say_so_are_excused_from_writing_their_frames_again():
    for name in FRAMES:
        portable = all(row.codec.portable_bytes for row in load(name).rows)
        assert (name in golden.DECODE_ONLY) is not portable


def test_lossy_outputs_are_zero_past_the_valid_tokens():
    for name in FRAMES:
        frame = load(name)
        if not all(row.codec.lossless for row in frame.rows):
            for row, block in zip(frame.rows, cut(read(name[:-4] + ".out"), frame), strict=True):
                assert not int_view(block)[num_valid(row) :].any()


def test_every_codec_has_golden_frames_of_each_of_its_types():
    for name in BUILT_IN:
        codec, where = get_codec(name), f"{name}/v{codec_class(name).version}/"
        rows = [row for f in FRAMES if f.startswith(where) for row in load(f).rows]
        types = {row.spec.dtype for row in rows}
        wanted = [DTYPES[t] for t in ("bf16", "fp16", "fp32", "e4m3fn", "e5m2")]
        supported = {t for t in wanted if codec.supports(BlockSpec(4, 3, 64, t)) is None}
        assert types >= supported, f"{name}: golden frames of {types} only; see tests/golden.py"
        assert rows
        assert {row.codec.name for row in rows} == {name}
        assert {row.codec.version for row in rows} == {codec_class(name).version}


def test_split_has_golden_rows_of_both_modes_and_both_lane_counts():
    rows = [row for f in FRAMES if f.startswith("split/") for row in load(f).rows]
    assert {(row.data[0], rans.num_lanes(row.spec.nbytes)) for row in rows} >= {
        (0, 32), (1, 32), (1, 64)
    }  # fmt: skip
    assert any(0 < num_valid(row) < row.spec.block_size for row in rows)


def test_no_golden_file_is_orphaned():
    for path in golden.ROOT.rglob("*"):
        if path.is_dir():
            continue
        folder, version, _ = path.relative_to(golden.ROOT).parts
        if folder == "rans":
            assert (version, path.suffix) == ("v1", ".json")
            continue
        assert path.suffix in (".kvc", ".in", ".out", ".json", ".profile")
        frame = load(str(path.with_suffix(".kvc").relative_to(golden.ROOT)))
        if folder == "frame":
            assert version == "v1"
        else:
            codec_class(folder, int(version.removeprefix("v")))  # raises for an unknown one
        assert path.with_suffix(".in").exists()
        lossless = all(row.codec.lossless for row in frame.rows)
        assert path.with_suffix(".out").exists() is not lossless


def test_the_generator_gives_every_committed_byte():
    for name, content in golden.files():
        if name not in golden.DECODE_ONLY:
            assert (golden.ROOT / name).read_bytes() == content, name


def test_the_generator_writes_what_is_missing_and_overwrites_nothing(tmp_path, monkeypatch):
    made = {"a/v1/x.in": b"1", "a/v1/x.kvc": b"2"}
    monkeypatch.setattr(golden, "files", lambda: iter(made.items()))
    assert golden.write_missing(tmp_path) == (list(made), [])
    assert (tmp_path / "a/v1/x.in").read_bytes() == b"1"
    made["a/v1/x.in"] = b"other"
    (tmp_path / "a/v1/x.kvc").unlink()
    assert golden.write_missing(tmp_path) == (["a/v1/x.kvc"], ["a/v1/x.in"])
    assert (tmp_path / "a/v1/x.in").read_bytes() == b"1"
    monkeypatch.setattr(golden, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="never overwritten"):
        golden.main()


def test_the_integer_generator_never_changes():
    def scrambled(x: int) -> int:
        for multiplier, shift in ((0x9E6D62D06F6A9A9B, 31), (0xD6E8FEB86659FD93, 29)):
            x = x * multiplier % 2**64
            x ^= x >> shift
        return x * 0xA24BAED4963EE407 % 2**64

    made = [scrambled(i + (3 << 32)) ^ 3 for i in range(1, 6)]
    assert golden_rans.integers(3, 5).tolist() == made


def test_golden_files_stay_small():
    assert sum(p.stat().st_size for p in golden.ROOT.rglob("*") if p.is_file()) < 1536 * 1024


def test_an_identity_keeps_its_fields_and_fingerprint():
    for name in ("empty", "mixed"):
        stored = json.loads(read(f"frame/v1/{name}.json"))
        identity = loads(read(f"frame/v1/{name}.kvc")).identity
        assert identity.to_json() == stored["identity"]
        assert Identity.from_json(stored["identity"]).fingerprint() == stored["fingerprint"]


def dense(pairs: list[list[int]]) -> UInt:
    values = np.zeros(256, np.int64)
    for index, value in pairs:
        values[index] = value
    return values


def test_coder_frequencies_are_the_golden_ones():
    vectors = json.loads(read("rans/v1/frequencies.json"))
    assert len(vectors) >= 6
    for vector in vectors.values():
        freqs = rans.normalize(dense(vector["counts"]))
        assert golden_rans.pairs(freqs) == vector["freqs"]
        assert rans.pack_table(freqs).tobytes().hex() == vector["table"]
        table = np.frombuffer(bytes.fromhex(vector["table"]), np.uint8)
        assert golden_rans.pairs(rans.unpack_table(table)) == vector["freqs"]


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_coder_streams_decode_to_their_symbols(path: Path):
    vector = json.loads(path.read_bytes())
    lanes = vector["lanes"]
    assert len(vector["states"]) == len(vector["seeds"]) == lanes
    states = np.array(vector["states"], np.uint32)
    decoder = rans.Decoder(states, np.array(vector["words"], np.uint16))
    for table, symbols in zip(vector["tables"], vector["symbols"], strict=True):
        live = rans.to_grid(np.ones(len(symbols), np.int64), lanes, fill=0) == 1
        grid = np.stack([decoder.step(dense(table), step) for step in live])
        assert rans.from_grid(grid, len(symbols)).tolist() == symbols
    assert decoder.finish().tolist() == vector["seeds"]
