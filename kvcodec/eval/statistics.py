"""Perplexity, paired differences and their standard errors. docs/evaluation.md has the formulas."""

from __future__ import annotations

import math

import numpy as np

from kvcodec.eval.score import F64

BLOCK = 64  # neighbouring tokens err together; sums over blocks are nearly independent


def mean_stderr(values: F64) -> float:
    """Standard error of the mean of a series, from blocks of 64 values; NaN with one block.

    With b blocks of s_i values that sum to x_i, n values in all and mean m:
    sqrt(b / (b - 1) * sum (x_i - s_i m)^2) / n. The last block may be short.
    """
    begins = np.arange(0, values.size, BLOCK)
    if begins.size < 2:
        return math.nan
    sizes = np.diff(np.append(begins, values.size))
    residuals = np.add.reduceat(values, begins) - sizes * values.mean()
    factor = begins.size / (begins.size - 1)
    return math.sqrt(factor * float(np.square(residuals).sum())) / values.size


def perplexity(nll: F64) -> float:
    """exp of the mean negative log-likelihood; infinite where that overflows."""
    with np.errstate(over="ignore"):
        return float(np.exp(nll.mean()))


def perplexity_difference(nll: F64, baseline: F64) -> tuple[float, float]:
    """Perplexity minus the baseline's, and the paired standard error by the delta method.

    To first order the difference moves with the mean of `ppl * nll - ppl_0 * nll_0`, token by
    token, so what both runs find hard cancels before the error is taken.
    """
    ppl, ppl_0 = perplexity(nll), perplexity(baseline)
    return ppl - ppl_0, mean_stderr(ppl * nll - ppl_0 * baseline)


def quantile(values: F64, q: float) -> float:
    """Quantile of a series, interpolated between neighbours; NaN when a value is NaN."""
    return float(np.quantile(values, q))
