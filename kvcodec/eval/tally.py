"""What one plan did to keys and values over the passages of an evaluation."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from kvcodec.eval.score import TokenScores


@dataclass(slots=True)
class Tally:
    """Sums so far. Bytes are whole rows; `numel` counts the elements of valid tokens."""

    scores: list[TokenScores] = field(default_factory=list)
    numel: int = 0
    raw_nbytes: int = 0
    encoded_nbytes: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    bit_equal: bool = True


def now(device: torch.device) -> float:
    """Seconds, after the device has finished what was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
