"""What a model said about every token of a passage, and how far two runs of it are apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

F64 = npt.NDArray[np.float64]
ROWS = 128  # tokens whose probabilities are in memory more than once


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Per scored token, [n] each.

    nll: negative log-likelihood in nats.
    kl: sum over the vocabulary of p log(p / q), in nats; p is the baseline's prediction.
    same_top: 1 where both predictions have the same most likely token, else 0.
    """

    nll: F64
    kl: F64
    same_top: F64


def compare(baseline: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor) -> TokenScores:
    """Scores of a run against the baseline, from fp32 log-probabilities over the vocabulary.

    baseline, logits: [n, vocab]; targets: int64 [n]. Both runs go through the same operations, so
    equal logits score exactly equal.
    """
    nll, kl, same = [], [], []
    for begin in range(0, len(targets), ROWS):
        rows = slice(begin, begin + ROWS)
        log_p, log_q = (x[rows].float().log_softmax(-1) for x in (baseline, logits))
        nll.append(-log_q.gather(1, targets[rows, None])[:, 0])
        p = log_p.exp()
        # A token of probability 0 adds nothing, though its log-probability may be -inf.
        kl.append(torch.where(p > 0, p * (log_p - log_q), 0).sum(-1))
        same.append(log_p.argmax(-1) == log_q.argmax(-1))
    return TokenScores(*(torch.cat(part).double().cpu().numpy() for part in (nll, kl, same)))


def concat_scores(parts: list[TokenScores]) -> TokenScores:
    """Scores of several passages, in text order."""
    return TokenScores(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in ("nll", "kl", "same_top"))
    )
