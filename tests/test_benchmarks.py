"""benchmarks/: peers are verified or listed as missing, and the README's table comes of the CSV."""

import csv
import importlib
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kvcodec.bench.data import load_file, synthetic
from kvcodec.bench.host import measure
from kvcodec.bench.report import Report
from kvcodec.bits import to_bits
from kvcodec.eval.model import LoadedModel

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
run, peers = importlib.import_module("run"), importlib.import_module("peers")
capture = importlib.import_module("capture")
claim = importlib.import_module("claim_2503_18869")

HERE = [p for p in peers.PEERS if p.package in ("zstandard", "constriction")]
ABSENT = peers.Peer("absent", "no_such_package_at_all", lambda module: None)


def render_module():
    spec = importlib.util.spec_from_file_location("render", ROOT / "scripts/render_readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bits(num_blocks=4):
    return to_bits(synthetic(8192, num_blocks * 8192).blocks)


@pytest.mark.parametrize("peer", HERE, ids=lambda peer: peer.name)
def test_a_peer_gives_every_bit_back_and_counts_what_it_keeps(peer):
    codec, x = peer.load(), bits()[0].reshape(-1)
    blob = codec.compress(x)
    assert np.array_equal(codec.decompress(blob), x)
    assert 0.6 * x.nbytes < codec.size(blob) < x.nbytes
    specials = np.arange(1 << 16, dtype=np.uint16)
    assert np.array_equal(codec.decompress(codec.compress(specials)), specials)


def test_a_missing_peer_is_listed_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr(peers, "PEERS", (HERE[0], ABSENT))
    report = Report({})
    rows = measure(run.all_peer_jobs(synthetic(8192, 32768), report, 0.01), 0.0)
    assert "requirements/peers.txt" in report.skipped["absent"]
    assert HERE[0].name in {row.codec for row in rows}


def test_a_peer_that_overwrites_its_input_gets_a_copy_and_one_that_lies_no_figure():
    def destroy(x):
        kept = x.tobytes()
        x[:] = 0
        return kept

    back = lambda blob: np.frombuffer(blob, np.uint16)  # noqa: E731
    data, inputs = synthetic(8192, 16384), list(bits(2).reshape(2, -1))
    before = [x.copy() for x in inputs]
    codec = peers.Codec(destroy, back, clone=True)
    rows = measure(run.peer_jobs("x", codec, inputs, data, "blocks"), 0.0)
    assert [row.op for row in rows] == ["encode", "decode"]
    assert {(row.ratio, row.num_blocks) for row in rows} == {(1.0, 2)}
    assert all(np.array_equal(x, y) for x, y in zip(inputs, before, strict=True))
    liar = peers.Codec(lambda x: x.tobytes(), lambda blob: back(blob)[::-1])
    assert "bit for bit" in run.peer_jobs("x", liar, inputs, data, "blocks")


def test_centring_moves_exponents_and_can_be_undone():
    x = bits()
    moved = peers.centred(x)
    assert np.array_equal(moved & 0x807F, x & 0x807F)
    shift = (moved >> 7 & 0xFF).astype(int) - (x >> 7 & 0xFF).astype(int)
    assert (shift % 256 == shift[:, :1] % 256).all()  # one for each channel of a block


@pytest.mark.parametrize("how", ["none", "min", "mode"])
def test_the_claims_transform_inverts(how):
    group = np.random.default_rng(0).integers(0, 1 << 16, (64, 24)).astype(np.uint16)
    planes, base = claim.forward(group, how)
    assert planes.shape == (16, 64 * 24 // 8)
    assert np.array_equal(claim.inverse(planes, base, group.shape), group)


def test_a_run_writes_a_csv_that_renders(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(peers, "PEERS", (HERE[0], HERE[1], ABSENT))
    arguments = ["run.py", "--texts", "--mib", "1", "--seconds", "0", "--call-seconds", "0.01"]
    arguments += ["--codec", "raw", "--codec", "split", "--load", "a test", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        run.main()
    assert stopped.value.code == 0
    [path] = tmp_path.glob("*.csv")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {"raw", "split", "numpy copy", "copy (buffer)", HERE[0].name} <= {
        row["codec"] for row in rows
    }
    timed = [row for row in rows if row["gbps"]]
    assert all(float(row["copy_percent"]) > 0 for row in timed if row["op"] != "copy")
    assert {(row["date"], row["load"]) for row in rows} == {(rows[0]["date"], "a test")}
    table = render_module().bench_table(rows)
    assert "| split | batch |" in table
    assert "| absent (missing) |" in table
    assert "absent" in capsys.readouterr().out


def test_a_captured_cache_is_made_once_and_read_back(monkeypatch, tmp_path):
    def full(value):
        return torch.full((1, 2, 32, 4), value, dtype=torch.bfloat16)

    states = {i: (full(i), full(-i)) for i in range(2)}
    model = LoadedModel("tiny", "no revision", None, SimpleNamespace(bos_token_id=0))
    monkeypatch.setattr(LoadedModel, "tokenize", lambda self, text: list(range(len(text))))
    monkeypatch.setattr(capture, "load_model", lambda *_: model)
    monkeypatch.setattr(capture, "record", lambda model, ids: states)
    path = capture.capture("reviews", 32, tmp_path)
    keys, values = load_file(path, 2 * 4 * 2 * 16, 1 << 20)
    assert keys.blocks.shape == (4, 16, 2, 4)
    assert keys.blocks[:, 0, 0, 0].tolist() == [0, 0, 1, 1]
    assert values.blocks[:, 0, 0, 0].tolist() == [0, 0, -1, -1]
    monkeypatch.setattr(capture, "load_model", None)
    assert capture.capture("reviews", 32, tmp_path) == path


def test_every_peer_is_pinned():
    text = (ROOT / "requirements/peers.txt").read_text()
    for peer in peers.PEERS:
        assert f"\n{peer.package.partition('.')[0]}==" in text
