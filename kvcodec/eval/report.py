"""What an evaluation found, and its JSON form."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from kvcodec.eval.passages import Cut
from kvcodec.eval.provenance import provenance
from kvcodec.eval.text import Text


@dataclass(frozen=True, slots=True)
class Row:
    """One plan. Differences are to the baseline, `_stderr` their standard errors; KL in nats.

    bit_equal: whether every fetched prefix had the very bits that were stored.
    """

    codec: str
    plan: str
    lossless: bool
    bits_per_element: float
    ratio: float
    ppl: float
    delta_ppl: float
    delta_ppl_stderr: float
    kl_mean: float
    kl_stderr: float
    kl_p99: float
    top1: float
    tokens: int
    encode_gbps: float
    decode_gbps: float
    bit_equal: bool


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The baseline's first passage against itself, run again."""

    tokens: int
    kl_mean: float
    max_nll_difference: float


@dataclass(frozen=True, slots=True)
class Report:
    """Rows, what they were measured on, and the uncompressed run (`ppl`)."""

    model: str
    revision: str
    dtype: str
    device: str
    text: Text
    cut: Cut
    bos: bool
    passages: int
    tokens: int
    ppl: float
    noise: NoiseFloor
    seed: int
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: a figure that is not finite becomes null."""
        text = {k: v for k, v in asdict(self.text).items() if k != "content"}
        data = {
            "mode": self.cut.mode,
            "model": self.model,
            "revision": self.revision,
            "dtype": self.dtype,
            "device": self.device,
            "text": text,
            "window": self.cut.window,
            "prefix": self.cut.prefix,
            "block_size": self.cut.block_size,
            "bos": self.bos,
            "passages": self.passages,
            "tokens": self.tokens,
            "seed": self.seed,
            "baseline": {"ppl": self.ppl, "tokens": self.tokens},
            "noise_floor": asdict(self.noise),
            "rows": [asdict(row) for row in self.rows],
            **provenance(),
        }
        return {key: _finite(value) for key, value in data.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
