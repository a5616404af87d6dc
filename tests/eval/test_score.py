"""Divergence and its statistics against values worked out by hand."""

import math

import numpy as np
import pytest
import torch

from kvcodec.eval import score
from kvcodec.eval.statistics import mean_stderr, perplexity, perplexity_difference, quantile

LOG_HALF = math.log(0.5)
# log_softmax in fp32 is right to a few units in the last place of numbers near 1
FP32 = 4 * 2.0**-23


def logits(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def test_scores_are_those_of_two_coins():
    # KL of (1/2, 1/2) to (1/4, 3/4) is log 2 - log(3) / 2
    got = score.compare(logits(0.5, 0.5), logits(0.25, 0.75), torch.tensor([1]))
    assert got.nll[0] == pytest.approx(-math.log(0.75), abs=FP32)
    assert got.kl[0] == pytest.approx(math.log(2) - math.log(3) / 2, abs=FP32)


def test_divergence_is_from_the_baseline_to_the_codec():
    got = score.compare(logits(0.25, 0.75), logits(0.5, 0.5), torch.tensor([0]))
    assert got.kl[0] == pytest.approx(0.25 * LOG_HALF + 0.75 * math.log(1.5), abs=FP32)
    assert got.nll[0] == pytest.approx(-LOG_HALF, abs=FP32)


def test_equal_logits_score_exactly_equal():
    x = torch.randn(300, 50) * 9
    targets = torch.randint(50, (300,))
    got = score.compare(x, x.clone(), targets)
    assert (got.kl == 0).all()
    assert (got.same_top == 1).all()
    assert (got.nll == score.compare(x + torch.randn(300, 50), x, targets).nll).all()


def test_scores_do_not_depend_on_the_chunk(monkeypatch):
    x, y, targets = torch.randn(10, 50), torch.randn(10, 50), torch.randint(50, (10,))
    whole = score.compare(x, y, targets)
    monkeypatch.setattr(score, "ROWS", 3)
    parts = score.compare(x, y, targets)
    for name in ("nll", "kl", "same_top"):
        assert getattr(whole, name).shape == (10,)
        assert (getattr(whole, name) == getattr(parts, name)).all()


def test_logits_of_16_bits_are_widened_before_anything_else():
    x, y, targets = torch.randn(5, 50).bfloat16(), torch.randn(5, 50).bfloat16(), torch.arange(5)
    got, wide = score.compare(x, y, targets), score.compare(x.float(), y.float(), targets)
    assert (got.kl == wide.kl).all()


def test_top_tokens_agree_or_not():
    x = torch.tensor([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0]])
    y = torch.tensor([[0.0, 5.0, 4.0], [3.0, 2.0, 0.0]])
    assert score.compare(x, y, torch.tensor([0, 0])).same_top.tolist() == [1, 0]


def test_tokens_that_the_model_rules_out_add_nothing():
    x = torch.tensor([[0.0, 0.0, -torch.inf]])
    got = score.compare(x, torch.tensor([[0.0, 0.0, -torch.inf]]), torch.tensor([0]))
    assert got.kl[0] == 0
    ruled_out = score.compare(torch.zeros(1, 3), x, torch.tensor([0]))
    assert ruled_out.kl[0] == math.inf


def test_a_run_that_gives_nan_is_not_hidden():
    got = score.compare(torch.zeros(1, 3), torch.full((1, 3), torch.nan), torch.tensor([0]))
    assert math.isnan(got.kl[0])
    assert math.isnan(got.nll[0])


def test_passages_are_joined_in_order():
    first = score.TokenScores(np.array([1.0]), np.array([2.0]), np.array([3.0]))
    second = score.TokenScores(np.array([4.0]), np.array([5.0]), np.array([6.0]))
    joined = score.concat_scores([first, second])
    assert [joined.nll.tolist(), joined.kl.tolist(), joined.same_top.tolist()] == [
        [1, 4], [2, 5], [3, 6],
    ]  # fmt: skip


def test_stderr_of_two_blocks():
    # sums 0 and 64, mean 1/2: sqrt(2 / 1 * (32^2 + 32^2)) / 128
    assert mean_stderr(np.repeat([0.0, 1.0], 64)) == 0.5


def test_stderr_comes_from_blocks_and_not_from_tokens():
    assert mean_stderr(np.tile([0.0, 1.0], 128)) == 0.0


def test_stderr_weighs_a_short_last_block_by_its_tokens():
    # 64 zeros and 32 ones, mean 1/3: residuals -64/3 and 32 - 32/3
    values = np.repeat([0.0, 1.0], [64, 32])
    assert mean_stderr(values) == pytest.approx(math.sqrt(2 * 2 * (64 / 3) ** 2) / 96, rel=1e-15)


def test_stderr_of_one_block_is_unknown():
    assert math.isnan(mean_stderr(np.arange(64.0)))


def test_perplexity_is_the_exponential_of_the_mean():
    assert perplexity(np.array([0.0, 2 * math.log(3)])) == pytest.approx(3, rel=1e-15)
    assert perplexity(np.array([1e4])) == math.inf


def test_a_perplexity_difference_of_nothing_is_exactly_nothing():
    nll = np.abs(np.random.default_rng(0).normal(size=500))
    assert perplexity_difference(nll.copy(), nll) == (0.0, 0.0)


def test_a_perplexity_difference_moves_as_its_derivative_says():
    nll = np.abs(np.random.default_rng(0).normal(size=512))
    delta, stderr = perplexity_difference(nll + 0.5, nll)
    base = perplexity(nll)
    assert delta == pytest.approx(base * (math.exp(0.5) - 1), rel=1e-12)
    # d(ppl_0 e^0.5 - ppl_0) / d mean = delta, and the shift itself has no error
    assert stderr == pytest.approx(delta * mean_stderr(nll), rel=1e-12)


def test_what_both_runs_find_hard_cancels():
    rng = np.random.default_rng(0)
    hard, change = np.repeat(rng.normal(size=8), 64), rng.normal(size=512) * 1e-3
    _, stderr = perplexity_difference(2 + hard + change, 2 + hard)
    alone = perplexity(2 + hard) * mean_stderr(hard)
    assert stderr < alone / 100


def test_quantile_of_hundred_steps():
    assert quantile(np.arange(101.0), 0.99) == 99
