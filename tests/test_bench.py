"""`kvcodec bench`: verified before timed, rows with what they are of, errors in one line."""

import json
import math
import sys
import time
from dataclasses import dataclass, replace

import pytest
import torch
from safetensors.torch import save_file

from kvcodec import BlockSpec, EncodedBlocks, get_codec, registry
from kvcodec.bench import device, host, run
from kvcodec.bench.data import load_file, synthetic
from kvcodec.bench.device import check_device
from kvcodec.bench.report import Report, noise
from kvcodec.bench.timing import ROUNDS, Work, summarize, time_host
from kvcodec.cli import main
from kvcodec.codecs.raw import Raw
from kvcodec.errors import InvalidInputError

CPU = torch.device("cpu")
BRIEF = run.Effort(0.0, 0.001)


@pytest.fixture
def bench(monkeypatch, capsys):
    """Call `kvcodec bench` in this process: (exit code, stdout, stderr)."""

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(run, "QUICK", BRIEF)
        monkeypatch.setattr(sys, "argv", ["kvcodec", "bench", "--quick", *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return stopped.value.code or 0, out, err

    return call


@pytest.fixture
def captured(tmp_path):
    path = tmp_path / "cache.safetensors"
    tensors = {
        f"layers.{i}.{kind}": torch.full((50, 2, 32), i + 0.5 * (kind == "value")).bfloat16()
        for i in range(3)
        for kind in ("key", "value")
    }
    save_file(tensors, path)
    return path


def test_rows_say_what_was_measured(bench, tmp_path):
    code, out, err = bench(
        "--codec", "raw", "--codec", "fp8:scale=head", "--batch-mib", 1, "--json", tmp_path / "o"
    )  # fmt: skip
    assert (code, err) == (0, "")
    data = json.loads((tmp_path / "o").read_text())
    rows = {(row["codec"], row["op"]): row for row in data["rows"]}
    assert set(rows) == {
        ("copy (buffer)", "copy"), ("copy (per block)", "copy"),
        ("raw", "encode"), ("raw", "decode"),
        ("fp8:scale=head", "encode"), ("fp8:scale=head", "decode"),
    }  # fmt: skip
    for row in rows.values():
        assert (row["block_nbytes"], row["threads"], row["dataset"]) == (65536, 1, "synthetic")
        raw = row["num_blocks"] * row["block_nbytes"]
        assert row["gbps"] == pytest.approx(raw / 1e9 / row["p50_seconds"])
        assert row["p20_seconds"] <= row["p50_seconds"] <= row["p80_seconds"]
        assert row["repeats"] >= 5
    assert rows["raw", "encode"]["ratio"] == 65536 / (65536 + 16)
    assert rows["raw", "encode"]["sqnr_db"] is None
    assert rows["fp8:scale=head", "decode"]["sqnr_db"] > 25
    assert (data["threads"], data["failed"], data["versions"]["torch"]) == (
        1,
        {},
        torch.__version__,
    )
    assert "raw" in out
    assert "copy (buffer)" in out


def test_without_codecs_all_that_can_run_do(bench, tmp_path):
    assert bench("--batch-mib", 1, "--block-nbytes", 4096, "--json", tmp_path / "o")[0] == 0
    data = json.loads((tmp_path / "o").read_text())
    ran = {get_codec(row["codec"]).name for row in data["rows"] if row["op"] == "encode"}
    assert ran | set(data["skipped"]) == set(registry.codec_names())
    assert {"raw", "split", "zstd"} <= ran
    assert {row["block_nbytes"] for row in data["rows"]} == {4096}


def test_a_captured_cache_gives_keys_and_values(bench, captured, tmp_path):
    code, _, _ = bench(
        "--data", captured, "--block-nbytes", 2048, "--codec", "split", "--json", tmp_path / "o"
    )
    assert code == 0
    rows = json.loads((tmp_path / "o").read_text())["rows"]
    assert {row["dataset"] for row in rows} == {"cache key", "cache value"}
    assert {(row["block"], row["block_nbytes"]) for row in rows} == {("16 x 2 x 32", 2048)}


def test_blocks_of_a_captured_cache_are_whole_and_know_their_place(captured):
    keys, values = load_file(captured, 2100, 1 << 20)
    assert keys.blocks.shape == (9, 16, 2, 32)
    assert keys.positions.tolist() == [0, 16, 32] * 3
    assert keys.blocks[:, 0, 0, 0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert values.blocks[:, -1, -1, -1].tolist() == [0.5] * 3 + [1.5] * 3 + [2.5] * 3
    few = load_file(captured, 2048, 3 * 2048)[0]
    assert few.blocks[:, 0, 0, 0].tolist() == [0, 1, 2]
    late = load_file(captured, 2048, 1 << 20, begin=20, layers=[2])[0]
    assert late.positions.tolist() == [20]
    assert late.blocks[:, 0, 0, 0].tolist() == [2]


def test_synthetic_blocks_are_the_same_every_time():
    a, b = synthetic(65536, 1 << 20), synthetic(65536, 1 << 20)
    assert a.blocks.shape == (16, 32, 8, 128)
    assert torch.equal(a.blocks, b.blocks)
    spread = a.blocks.float().std((0, 1))
    assert 0.4 < spread.log().std() < 0.6  # a lasting scale for every channel


@dataclass(frozen=True, slots=True)
class Forgets(Raw):
    """Claims to be lossless, and drops the last token."""

    name = "bench-test-forgets"
    examples = ("bench-test-forgets",)

    def decode(self, encoded, positions=None):
        blocks = Raw.decode(self, encoded)
        blocks[:, -1] = 0
        return blocks


@dataclass(frozen=True, slots=True)
class Explodes(Raw):
    """Lossy beyond use."""

    name = "bench-test-explodes"
    examples = ("bench-test-explodes",)
    lossless = False

    def decode(self, encoded, positions=None):
        return Raw.decode(self, encoded) * -3


@pytest.mark.parametrize("cls", [Forgets, Explodes])
def test_a_wrong_result_has_no_figure(bench, monkeypatch, tmp_path, cls):
    monkeypatch.setitem(registry._CODECS, (cls.name, 1), cls)
    code, out, err = bench(
        "--codec", "raw", "--codec", cls.name, "--batch-mib", 1, "--json", tmp_path / "o"
    )
    assert code == 2
    assert f"wrong results have no figures: {cls.name}" in err
    assert cls.name not in out
    data = json.loads((tmp_path / "o").read_text())
    assert list(data["failed"]) == [f"{cls.name}, synthetic"]
    assert cls.name not in {row["codec"] for row in data["rows"]}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--codec", "nope"), "unknown codec 'nope'"),
        (("--codec", "zstd", "--impl", "triton"), "host tier only"),
        (("--impl", "fast"), "--impl is 'fast', wanted auto or one of"),
        (("--block-nbytes", 0), "--block-nbytes is 0"),
        (("--block-nbytes", 2047), "is less than a token of 2048 bytes"),
        (("--threads", 0), "--threads is 0"),
        (("--batch-mib", 0), "--batch-mib is 0"),
        (("--data", "nowhere.safetensors"), "'nowhere.safetensors' cannot be read"),
        (("--data", __file__), "cannot be read"),
        (("--json", "no/where"), "cannot write 'no/where'"),
        (("--device", "cuda:99"), "device 'cuda:99'"),
        (("--device", "meta"), "device 'meta'"),
    ],
)
def test_bad_input_is_refused_in_one_line(bench, args, message):
    code, out, err = bench(*args)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_tensors_of_another_layout_are_refused(tmp_path):
    for tensors in (
        {"k": torch.zeros(4, 1, 8)},
        {"layers.0.key": torch.zeros(4, 1, 8)},
        {"layers.0.key": torch.zeros(4, 1, 8), "layers.0.value": torch.zeros(4, 2, 8)},
        {"layers.0.key": torch.zeros(4, 8), "layers.0.value": torch.zeros(4, 8)},
    ):
        save_file(tensors, tmp_path / "x")
        with pytest.raises(InvalidInputError, match="wanted"):
            load_file(tmp_path / "x", 64, 1024)
    good = {f"layers.0.{kind}": torch.zeros(4, 1, 8).bfloat16() for kind in ("key", "value")}
    save_file(good, tmp_path / "x")
    with pytest.raises(InvalidInputError, match="do not fill a block"):
        load_file(tmp_path / "x", 1024, 1024)


def test_a_codec_too_slow_for_the_batch_gets_fewer_blocks():
    data = synthetic(65536, 1 << 20)
    jobs = host.codec_jobs(
        get_codec("raw"), data, impl="reference", threads=1, call_seconds=1e-9
    )  # fmt: skip
    assert not isinstance(jobs, str)
    rows = host.measure(jobs, 0.0)
    assert {(row.impl, row.num_blocks) for row in rows} == {("reference", 1)}


def test_a_codec_that_holds_tables_is_named_without_their_hash():
    held = f"tables={'0' * 64}"
    for parameters in (f"model=profile,{held}", f"{held},model=profile"):
        assert host.label(get_codec(f"split:{parameters}")) == "split:model=profile"
    assert host.label(get_codec("nvfp4:entropy=rans")) == "nvfp4:entropy=rans"


def test_times_are_of_every_call():
    calls, readied = [], []
    works = [
        Work(lambda: calls.append("a"), lambda: readied.append(0)),
        Work(lambda: calls.append("b")),
    ]
    timings = time_host(works, 0.0)
    assert [timing.repeats for timing in timings] == [ROUNDS, ROUNDS]
    assert calls == ["a", "b"] * (ROUNDS + 1)  # in turns
    assert len(readied) == ROUNDS + 1
    assert summarize([1.0, 2.0, 3.0, 4.0, 100.0]).p50 == 3.0
    assert math.isclose(summarize([1.0, 2.0]).best, 1.0)


def test_waiting_for_a_core_is_said():
    data = synthetic(2048, 4096)
    rows = host.measure(host.copy_jobs(data, 1), 0.0)
    alone = [replace(row, p50_seconds=1.0, p50_cpu_seconds=0.99) for row in rows]
    shared = [replace(row, p50_seconds=1.0, p50_cpu_seconds=0.25) for row in rows]
    assert noise(alone) == noise([]) == ""
    assert "its core 25% of the time" in noise(shared)


def test_torch_gets_its_threads_back():
    before = torch.get_num_threads()
    report = Report({})
    data = [synthetic(2048, 4096)]
    run.run([], data, impl="auto", device=CPU, threads=before + 1, effort=BRIEF, report=report)
    assert torch.get_num_threads() == before
    assert [row.threads for row in report.rows] == [before + 1] * 2


class FakeEvent:
    """Stands for an event of a stream that is always done."""

    def __init__(self, enable_timing):
        self.at = 0.0

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


@pytest.fixture
def no_gpu(monkeypatch):
    """The GPU path on the host: its arithmetic and its checks, not its clock."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(device, "num_batches", lambda nbytes, where: 3)


def on_device(codec):
    data = synthetic(2048, 8192)
    return device.bench_codec(
        codec, data, impl="auto", device=CPU, seconds=0.0
    )  # fmt: skip


def test_links_make_effective_rates(no_gpu):
    rows = on_device(get_codec("split"))
    found = {row.op: row for row in rows if row.link_gbps is None}
    assert set(found) == {"encode", "gather", "decode"}
    encode, gather, decode = (1 / found[op].gbps for op in ("encode", "gather", "decode"))
    ratio = found["encode"].ratio
    for row in rows:
        if row.link_gbps is None:
            continue
        link = 1 / (ratio * row.link_gbps)
        spent = {"store": encode + gather + link, "restore": link + decode}[row.op]
        assert row.gbps == pytest.approx(1 / spent)
        slowest = (1 - 1 / ratio) / (encode + gather + decode)
        assert row.break_even_gbps == pytest.approx(slowest)
    assert len(rows) == 3 + 2 * 3


def test_a_gpu_row_that_is_not_the_references_has_no_figure(no_gpu, monkeypatch):
    assert "larger than the values" in on_device(Explodes())
    monkeypatch.setattr(device, "judge", lambda *_: (None, ""))
    monkeypatch.setattr(Raw, "compress", lambda self, cache, ids, **o: other_rows(cache, **o))
    assert on_device(Raw()) == "row 0 is not the reference's"


def other_rows(cache, *, impl, out=None, **options):
    """Rows of another mode from the implementation under test, right ones from the reference."""
    rows = EncodedBlocks.empty(Raw(), BlockSpec.of(cache), len(cache)) if out is None else out
    Raw().encode(cache, torch.full((len(cache),), cache.shape[1], dtype=torch.int32), rows)
    if impl != "reference":
        rows.payload[:, 20] ^= 1
    return rows


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said():
    with pytest.raises(InvalidInputError, match="device 'cuda'"):
        check_device("cuda")
