"""The evaluation on a small model: what is exact, what is counted, what shows."""

import json
import math
from dataclasses import dataclass

import pytest
import torch

import kvcodec
from kvcodec.codecs.fp8 import Fp8
from kvcodec.codecs.raw import Raw
from kvcodec.errors import InvalidInputError, UnsupportedSpecError
from kvcodec.eval.model import LoadedModel
from kvcodec.eval.passages import Cut, cut_passages
from kvcodec.eval.plot import figure, png
from kvcodec.eval.replay import record
from kvcodec.eval.run import evaluate
from kvcodec.eval.table import heading, table
from kvcodec.eval.text import Text
from kvcodec.plan import Plan

CUT = Cut(window=96, prefix=64, block_size=16)
SPECS = ("raw", "split", "fp8", "fp8:scale=block", "key=split,value=fp8", "fp8,first_blocks=1")


@dataclass(frozen=True, slots=True)
class Zeros(Raw):
    """Claims to keep everything and returns zeros."""

    name = "eval-test-zeros"

    def decode(self, encoded, positions=None):
        return torch.zeros_like(Raw.decode(self, encoded, positions))


@dataclass(frozen=True, slots=True)
class OnlyHalf(Fp8):
    """Takes fp16 alone."""

    name = "eval-test-half"

    def supports(self, spec):
        return None if spec.dtype == torch.float16 else f"{spec.format.name} is not fp16"


def as_text(content: str) -> Text:
    return Text("sample", "drawn from the model", "0" * 64, content)


def plans_of(*specs: str) -> dict[str, Plan]:
    return {spec: Plan.parse(spec) for spec in specs}


@pytest.fixture(scope="module")
def report(tiny, sample):
    plans = plans_of(*SPECS) | {"zeros": Plan(Zeros(), Zeros())}
    return evaluate(tiny, as_text(sample), plans, CUT)


@pytest.fixture(scope="module")
def rows(report):
    return {row.codec: row for row in report.rows}


@pytest.mark.parametrize("spec", ["raw", "split"])
def test_a_lossless_codec_differs_by_exactly_nothing(rows, report, spec):
    row = rows[spec]
    assert (row.delta_ppl, row.delta_ppl_stderr) == (0, 0)
    assert (row.kl_mean, row.kl_stderr, row.kl_p99) == (0, 0, 0)
    assert row.top1 == 1
    assert row.ppl == report.ppl
    assert row.bit_equal
    assert row.lossless


def test_a_lossy_codec_differs_and_says_so(rows):
    row = rows["fp8"]
    assert row.kl_mean > 0
    assert not row.bit_equal
    assert not row.lossless


def test_exact_keys_leave_less_divergence_than_none(rows):
    assert 0 < rows["key=split,value=fp8"].kl_mean < rows["fp8"].kl_mean


def test_a_broken_codec_raises_perplexity_and_divergence(rows, report):
    broken, fp8 = rows["zeros"], rows["fp8"]
    assert broken.kl_mean > 100 * fp8.kl_mean
    assert broken.delta_ppl > 3 * broken.delta_ppl_stderr
    assert broken.ppl > 1.5 * report.ppl
    assert broken.top1 < 0.9
    assert not broken.bit_equal


def test_each_token_after_the_first_prefix_is_counted(report, rows, sample):
    # The first prefix is a BOS and 63 characters; one more is fed, unscored; then all are scored.
    assert report.tokens == len(sample) - 63 - 1
    assert {row.tokens for row in rows.values()} == {report.tokens}


def test_bits_are_the_bytes_of_the_rows_of_the_prefix(tiny, sample, rows):
    passages = cut_passages(tiny.tokenize(sample), tiny.bos, CUT)
    for spec in SPECS:
        plan, numel, nbytes = Plan.parse(spec), 0, 0
        for passage in passages:
            with torch.inference_mode():
                states = record(tiny.model, passage.prefix)
            for layer, planes in states.items():
                for kind, plane in zip(("key", "value"), planes, strict=True):
                    blocks = plane[0].transpose(0, 1).unflatten(0, (-1, CUT.block_size))
                    for index in range(len(blocks)):
                        codec = plan.codec(layer, kind, index)
                        nbytes += kvcodec.compress(blocks, [index], codec).total_nbytes()
                    numel += blocks.numel()
        assert rows[spec].bits_per_element == 8 * nbytes / numel
        assert rows[spec].ratio == 2 * numel / nbytes


WHOLE = Cut(window=88, prefix=0, block_size=16)  # the last block of a window is half full


@pytest.fixture(scope="module")
def whole(tiny, sample):
    specs = ("raw", "split", "fp8", "fp8:scale=block", "fp8,first_blocks=9")
    return evaluate(tiny, as_text(sample), plans_of(*specs), WHOLE)


def test_a_whole_sequence_without_loss_differs_by_exactly_nothing(whole):
    for row in (*whole.rows[:2], whole.rows[4]):  # the last one keeps every block exact
        assert (row.delta_ppl, row.kl_mean, row.top1, row.bit_equal) == (0, 0, 1, True)


def test_a_whole_sequence_is_scored_from_its_first_token_and_counted_whole(whole, sample):
    assert whole.tokens == len(sample)
    assert whole.cut.mode == whole.to_json()["mode"] == "whole-sequence"
    # rows of raw: 16 bytes of prefix and whole blocks of 2 heads of 16 elements, 2 bytes each
    num_rows = sum(-(-n // 16) for n in (88, 88, len(sample) - 176))
    nbytes = num_rows * (16 + 16 * 32 * 2)
    assert whole.rows[0].bits_per_element == 8 * nbytes / (len(sample) * 32)
    assert "every key and value goes through" in heading(whole)


def test_replacing_while_the_model_runs_is_harsher_than_a_cached_prefix(whole, rows):
    assert whole.rows[2].kl_mean > rows["fp8"].kl_mean
    assert not whole.rows[2].bit_equal


def test_speed_is_measured(rows):
    assert all(row.encode_gbps > 0 and row.decode_gbps > 0 for row in rows.values())


def test_the_baseline_is_run_again(report):
    assert report.noise.tokens == CUT.window - CUT.prefix
    assert (report.noise.kl_mean, report.noise.max_nll_difference) == (0, 0)


def test_an_unsteady_model_shows_in_the_noise_floor(tiny, sample):
    class Unsteady(LoadedModel):
        calls = 0

    def jitter(module, inputs, output):
        output.logits[..., Unsteady.calls % output.logits.shape[-1]] += 1
        Unsteady.calls += 1
        return output

    hook = tiny.model.register_forward_hook(jitter)
    try:
        report = evaluate(tiny, as_text(sample), plans_of("raw"), CUT)
    finally:
        hook.remove()
    assert report.noise.kl_mean > 0
    assert report.noise.max_nll_difference > 0


def test_progress_runs_from_nothing_to_all(tiny, sample):
    seen = []
    evaluate(tiny, as_text(sample), plans_of("raw"), CUT, lambda *at: seen.append(at))
    total = seen[0][1]
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert {t for _, t in seen} == {total}
    # again for noise, then a baseline and one codec for each of the 4 passages
    assert [done for done, _ in seen] == list(range(total + 1))
    assert total == 1 + 2 * 4


def test_every_run_gives_the_same_figures(tiny, sample, rows):
    again = evaluate(tiny, as_text(sample), plans_of("fp8"), CUT).rows[0]
    for name in ("bits_per_element", "ppl", "delta_ppl_stderr", "kl_mean", "kl_stderr", "top1"):
        assert getattr(again, name) == getattr(rows["fp8"], name)


def test_an_unsupported_block_is_refused_before_anything_is_scored(tiny, sample):
    seen = []
    plans = plans_of("raw") | {"half": Plan(OnlyHalf(), OnlyHalf())}
    with pytest.raises(UnsupportedSpecError, match=r"'half' on .*eval-test-half: bf16 is not fp16"):
        evaluate(tiny, as_text(sample), plans, CUT, lambda *at: seen.append(at))
    assert seen == []


def test_a_window_past_the_models_context_is_refused(tiny, sample):
    with pytest.raises(InvalidInputError, match="window 512 is over the 256 tokens"):
        evaluate(tiny, as_text(sample * 9), plans_of("raw"), Cut(512, 64, 16))


def test_json_holds_what_a_reader_needs(report):
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert set(data["rows"][0]) >= {
        "codec", "bits_per_element", "ratio", "ppl", "delta_ppl", "delta_ppl_stderr", "kl_mean",
        "kl_stderr", "kl_p99", "top1", "tokens", "encode_gbps", "decode_gbps", "bit_equal",
    }  # fmt: skip
    assert [row["codec"] for row in data["rows"]] == [*SPECS, "zeros"]
    assert data["mode"] == "cached-prefix"
    assert (data["window"], data["prefix"], data["block_size"]) == (96, 64, 16)
    assert (data["tokens"], data["passages"], data["bos"]) == (report.tokens, 4, True)
    assert data["dtype"] == "bfloat16"
    assert data["text"] == {"name": "sample", "source": "drawn from the model", "sha256": "0" * 64}
    assert data["seed"] == 0
    assert data["baseline"] == {"ppl": report.ppl, "tokens": report.tokens}
    assert set(data["noise_floor"]) == {"tokens", "kl_mean", "max_nll_difference"}
    assert set(data["versions"]) == {
        "kvcodec", "python", "torch", "transformers", "triton", "numpy",
    }  # fmt: skip
    assert torch.__version__.startswith(data["versions"]["torch"])
    assert {"platform", "threads", "git_revision", "model", "revision", "device"} <= set(data)


def test_a_figure_that_is_not_finite_is_null_in_json(tiny, sample):
    # One passage of 32 tokens is half a block: its standard error is unknown.
    report = evaluate(tiny, as_text(sample[:96]), plans_of("fp8"), CUT)
    assert math.isnan(report.rows[0].kl_stderr)
    assert report.to_json()["rows"][0]["kl_stderr"] is None
    json.dumps(report.to_json(), allow_nan=False)


def test_the_table_writes_exact_zeros_as_0_and_differences_with_their_error(report):
    cells = {
        codec: rest
        for codec, *rest in zip(*(column._cells for column in table(report).columns), strict=True)
    }
    assert cells["raw"][4:7] == ["0", "0", "0"]
    assert cells["raw"][0] == "bit-equal"
    assert "±" in cells["fp8"][4]
    assert "±" in cells["fp8"][5]
    assert cells["fp8"][0] == "changed"


def test_the_heading_says_what_was_run(report):
    words = heading(report)
    for fact in ("cached-prefix", "one BOS", "drawn from the model", "blocks of 16 tokens"):
        assert fact in words
    assert f"{report.tokens} tokens, each once, in 4 windows of 96 with a prefix of 64" in words
    assert f"{report.ppl:.4f}" in words


def test_the_plot_labels_every_codec(report):
    labels = [note.get_text() for note in figure(report).axes[0].texts]
    assert labels[:3] == ["raw (KL 0)", "split (KL 0)", "fp8"]
    assert len(labels) == len(report.rows)
    assert png(report).startswith(b"\x89PNG")
