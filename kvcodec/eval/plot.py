"""Bits per element against divergence, one point per codec."""

from __future__ import annotations

import io
from typing import Any

from kvcodec.errors import MissingExtraError
from kvcodec.eval.report import Report


def require_matplotlib() -> None:
    """Raise MissingExtraError unless a plot can be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "a plot needs matplotlib: pip install 'kvcodec-paged[plot]'"
        ) from error


def figure(report: Report) -> Any:
    """A matplotlib figure. Codecs without divergence stand a decade below the others, hollow."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(7, 5), layout="constrained")
    axes = made.add_subplot()
    positive = [row.kl_mean for row in report.rows if row.kl_mean > 0]
    floor = min(positive, default=1e-6) / 10
    for row in report.rows:
        exact = row.kl_mean == 0
        axes.errorbar(
            row.bits_per_element,
            floor if exact else row.kl_mean,
            yerr=0 if exact else row.kl_stderr,
            fmt="o",
            color="C0",
            fillstyle="none" if exact else "full",
            capsize=2,
        )
        axes.annotate(
            f"{row.codec} (KL 0)" if exact else row.codec,
            (row.bits_per_element, floor if exact else row.kl_mean),
            xytext=(4, 4),
            textcoords="offset points",
            fontsize="small",
        )
    axes.set_yscale("log")
    axes.set_xlabel("bits per element, all side information")
    axes.set_ylabel("KL divergence to the uncompressed run, nats per token")
    axes.set_title(f"{report.model}, {report.tokens} tokens of {report.text.name}")
    return made


def png(report: Report) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure(report).savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
