"""The command line: what it prints, what it refuses, with which exit code."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from eval.tiny import ALPHABET, char_tokenizer, tiny_config
from transformers import LlamaForCausalLM

import kvcodec
from kvcodec import frame, registry
from kvcodec.cli import eval_, main
from kvcodec.codecs.raw import Raw
from kvcodec.plan import Plan

FRAME_NBYTES = 2 * (16 + 16 * 2 * 64 * 2)  # two raw rows: prefix, bf16 elements


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Tensors here are small; a second thread would only spin beside the other workers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command line in this process: (exit code, stdout, stderr)."""

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kvcodec", *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            main()
        code = stopped.value.code
        out, err = capsys.readouterr()
        return (0 if code is None else code), out, err

    return call


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny-llama")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LlamaForCausalLM(tiny_config()).bfloat16().save_pretrained(path)
    char_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(ALPHABET * 6)  # 174 tokens
    return path


@pytest.fixture
def frame_file(tmp_path):
    cache = torch.randn(2, 16, 2, 64).bfloat16()
    path = tmp_path / "blocks.kvc"
    path.write_bytes(frame.dumps(kvcodec.compress(cache, [0, 1], "raw")))
    return path


SMALL = ("--window", 96, "--prefix", 64, "--block-size", 16, "--device", "cpu")


def one_line(err: str) -> str:
    """The line of an error message; there is exactly one."""
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert err.startswith("kvcodec: ")
    return err


def test_version(run):
    assert run("--version") == (0, f"kvcodec {kvcodec.__version__}\n", "")


def test_the_package_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "kvcodec", "inspect", "nowhere.kvc"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such file" in one_line(done.stderr)


COMMANDS = [(), ("bench",), ("calibrate",), ("eval",), ("list",), ("inspect",)]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples(run, command):
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert "Usage: kvcodec" in out
    examples = out.split("Examples:")[1]
    assert "\n    kvcodec " in examples


@pytest.mark.parametrize("args", [("unknown",), ("eval", "--window", "many"), ("list", "--nope")])
def test_a_usage_error_is_exit_code_2(run, args):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert "Error: " in err


def test_list_shows_every_codec_and_preset(run):
    code, out, err = run("list")
    assert (code, err) == (0, "")
    for name in kvcodec.codec_names():
        assert any(line.startswith(name) for line in out.splitlines())
    assert "preset balanced  key=split,value=fp8" in out
    assert "ZipNN" in out


def test_list_says_why_an_implementation_does_not_run(run):
    _, out, _ = run("list", "--json")
    for codec in json.loads(out)["codecs"]:
        assert set(codec["implementations"]) == set(registry.IMPLEMENTATIONS)
        assert codec["implementations"]["reference"] is None
        assert all(reason is None or reason for reason in codec["implementations"].values())


def test_list_as_json_has_bits_of_whole_rows(run):
    _, out, _ = run("list", "--json")
    codecs = {codec["codec"]: codec for codec in json.loads(out)["codecs"]}
    numel = 64 * 8 * 128
    assert codecs["raw"]["bits_per_element"] == {"raw": 16 + 8 * 16 / numel}
    fp8 = codecs["fp8"]["bits_per_element"]
    assert fp8["fp8"] == 8 + (8 * 16 + 64 * 8 * 32) / numel
    assert 8 < codecs["split"]["bits_per_element"]["split"] < 11
    assert codecs["split"]["lossless"]
    assert not codecs["fp8"]["lossless"]
    assert codecs["fp8"]["dtypes"] == ["bf16", "fp16", "fp32"]
    assert "u8" in codecs["raw"]["dtypes"]
    assert codecs["fp8"]["summary"].startswith("Round to 8-bit floats")


@dataclass(frozen=True, slots=True)
class Bytes(Raw):
    """Takes opaque bytes alone."""

    name = "cli-test-bytes"
    examples = ("cli-test-bytes",)

    def supports(self, spec):
        return None if spec.dtype == torch.uint8 else "bytes only"


@dataclass(frozen=True, slots=True)
class Calibrated(Raw):
    """Cannot run without a profile."""

    name = "cli-test-calibrated"
    examples = ("cli-test-calibrated",)
    needs_profile = True


@pytest.mark.parametrize("cls", [Bytes, Calibrated])
def test_list_leaves_bits_open_where_there_are_none_to_measure(run, monkeypatch, cls):
    monkeypatch.setitem(registry._CODECS, (cls.name, 1), cls)
    _, out, _ = run("list")
    [row] = [line for line in out.splitlines() if line.startswith(cls.name)]
    assert " - " in row
    _, out, _ = run("list", "--json")
    codecs = {codec["codec"]: codec for codec in json.loads(out)["codecs"]}
    assert codecs[cls.name]["bits_per_element"] == {cls.name: None}


def test_inspect_shows_sizes_checks_and_rows(run, frame_file):
    code, out, err = run("inspect", frame_file)
    assert (code, err) == (0, "")
    assert f"{FRAME_NBYTES} in 2 rows" in out
    assert out.count("passed") == 4
    assert f"elements {16 * 2 * 64 * 2}" in out
    assert "16 x 2 x 64 x bf16" in out


def test_inspect_as_json(run, frame_file):
    code, out, _ = run("inspect", frame_file, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["passed"]
    assert found["nbytes"] == frame_file.stat().st_size


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_inspect_of_a_damaged_frame_shows_what_is_left_and_fails(run, frame_file, options):
    data = bytearray(frame_file.read_bytes())
    data[-20] ^= 1  # in the last row
    frame_file.write_bytes(data)
    code, out, err = run("inspect", frame_file, *options)
    assert code == 2
    assert "elements" in out
    assert f"{frame_file} is damaged: rows: 1 of 2 rows fail" in one_line(err)


def test_inspect_of_something_else_fails(run, text_file):
    code, out, err = run("inspect", text_file)
    assert code == 2
    assert "FAILED" in out
    assert "is damaged: sizes" in one_line(err)


def test_eval_prints_a_row_per_codec_and_writes_json_and_plot(run, model_dir, text_file, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"key": "split", "value": "fp8", "layers": {"0": "raw"}}))
    codecs = ["raw", f"@{plan}", '{"key": "raw", "value": "fp8"}', "balanced"]
    code, out, err = run(
        "eval", "--model", model_dir, "--text", text_file, *SMALL,
        *(arg for codec in codecs for arg in ("--codec", codec)),
        "--json", tmp_path / "out.json", "--plot", tmp_path / "out.png",
    )  # fmt: skip
    assert (code, err) == (0, "")
    data = json.loads((tmp_path / "out.json").read_text())
    assert [row["codec"] for row in data["rows"]] == codecs
    assert data["rows"][3]["plan"] == "key=split,value=fp8"
    assert (data["model"], data["tokens"]) == (str(model_dir), 174 - 64)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    for codec in codecs:
        assert any(line.startswith(codec[:20]) for line in out.splitlines())
    assert str(text_file) in out


def test_eval_without_codecs_takes_the_default_ones(run, model_dir, text_file, monkeypatch):
    assert all(Plan.parse(codec) for codec in eval_.DEFAULT_CODECS)
    monkeypatch.setattr(eval_, "DEFAULT_CODECS", ("raw", "fp8:scale=head", "key=split,value=fp8"))
    code, out, _ = run("eval", "--model", model_dir, "--text", text_file, *SMALL, "--tokens", 1)
    assert code == 0
    assert "scored    1 tokens" in out
    for codec in eval_.DEFAULT_CODECS:
        assert any(line.startswith(f"{codec} ") for line in out.splitlines())


def test_eval_of_0_tokens_means_the_whole_text(run, model_dir, text_file):
    args = ("--model", model_dir, "--text", text_file, *SMALL, "--codec", "raw", "--tokens", 0)
    assert f"scored    {174 - 64} tokens" in run("eval", *args)[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--model", "./nowhere"), "model './nowhere' is not smollm2-135m, not a directory"),
        (("--text", "nowhere.txt"), "text 'nowhere.txt' cannot be read: No such file"),
        (("--window", 250), "the text has 174 tokens, a window of 250 needs 250"),
        (("--window", 512), "window 512 is over the 256 tokens"),
        (("--codec", "fp9"), "unknown codec 'fp9'; known: "),
        (("--codec", "fp8:bits=3"), "'bits=3' is not a new key=value"),
        (("--codec", "fp8:scale=head,given=1.0/2.0/3.0"), "3 given scales for 2 heads"),
        (("--codec", "@nowhere.json"), "plan '@nowhere.json' cannot be read"),
        (("--codec", "{}"), "plan: got {}"),
        (("--prefix", 100), "prefix 100 is not a multiple of the block size 16"),
        (("--prefix", 96), "prefix 96 is not below window 96"),
        (("--tokens", -1), "tokens is -1"),
        (("--device", "cuda:99"), "device 'cuda:99'"),
        (("--json", "missing/out.json"), "cannot write 'missing/out.json': No such file"),
        (("--plot", "."), "cannot write '.': "),
    ],
)
def test_eval_refuses_bad_input_in_one_line(
    run, monkeypatch, model_dir, text_file, tmp_path, args, message
):
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(tmp_path))
    code, out, err = run("eval", "--model", model_dir, "--text", text_file, *SMALL, *args)
    assert (code, out) == (2, "")
    assert message in one_line(err)
    assert sorted(os.listdir(tmp_path)) == before


def test_what_can_be_refused_is_refused_before_a_model_is_loaded(
    run, monkeypatch, text_file, tmp_path
):
    monkeypatch.chdir(tmp_path)
    for args in (("--codec", "fp9"), ("--json", "no/out"), ("--prefix", 1), ("--text", "no")):
        _, _, err = run("eval", "--model", "./nowhere", *args)
        assert "./nowhere" not in one_line(err)


def test_a_plot_without_matplotlib_names_the_extra(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = run("eval", "--plot", tmp_path / "out.png")
    assert code == 2
    assert "kvcodec-paged[plot]" in one_line(err)


def test_an_evaluation_without_transformers_names_the_extra(run, monkeypatch, text_file):
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, _, err = run("eval", "--text", text_file)
    assert code == 2
    assert "kvcodec-paged[eval]" in one_line(err)


def test_calibrate_writes_a_profile_and_says_what_is_in_it(run, model_dir, text_file, tmp_path):
    path = tmp_path / "a.profile"
    args = ("calibrate", "--model", model_dir, "--text", text_file, "--context", 64, "--out", path)
    code, out, err = run(*args, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    profile = kvcodec.Profile.load(path)
    assert (found["hash"], found["planes"], found["context"]) == (profile.hash, 4, 64)
    assert found["nbytes"] == path.stat().st_size
    code, out, _ = run(*args, "--tokens", 128)
    assert code == 0
    assert any(line.split() == ["windows", "2"] for line in out.splitlines())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--model", "./nowhere"), "model './nowhere' is not smollm2-135m, not a directory"),
        (("--text", "nowhere.txt"), "text 'nowhere.txt' cannot be read: No such file"),
        (("--context", 200), "the text has 174 tokens, a context of 200 needs 199"),
        (("--context", 512), "context 512 is over the 256 tokens"),
        (("--context", -1), "context is -1, wanted 0 or more"),
        (("--tokens", -1), "tokens is -1, wanted 0 or more"),
        (("--device", "cuda:99"), "device 'cuda:99'"),
        (("--out", "missing/a"), "cannot write 'missing/a': No such file"),
    ],
)
def test_calibrate_refuses_bad_input_in_one_line(
    run, monkeypatch, model_dir, text_file, tmp_path, args, message
):
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(tmp_path))
    options = {"--model": model_dir, "--text": text_file, "--context": 64, "--out": "a.profile"}
    options[args[0]] = args[1]
    code, out, err = run("calibrate", *(part for item in options.items() for part in item))
    assert (code, out) == (2, "")
    assert message in one_line(err)
    assert sorted(os.listdir(tmp_path)) == before


def test_eval_binds_codecs_to_a_profile(run, model_dir, text_file, tmp_path):
    path = tmp_path / "a.profile"
    common = ("--model", model_dir, "--text", text_file)
    assert run("calibrate", *common, "--context", 64, "--out", path)[0] == 0
    args = ("eval", *common, *SMALL, "--codec", "split:model=context", "--tokens", 1)
    code, out, _ = run(*args, "--profile", path, "--json", tmp_path / "out.json")
    assert code == 0
    assert "split:model=context  bit-equal" in out
    data = json.loads((tmp_path / "out.json").read_text())
    assert "tables=" in data["rows"][0]["plan"]
    assert data["profile"]["hash"] == kvcodec.Profile.load(path).hash
    assert data["profile"]["context"] == 64
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert "needs tables of a profile and holds none" in one_line(err)
    code, _, err = run(*args, "--profile", text_file)
    assert code == 2
    assert "not safetensors" in one_line(err)
