"""An evaluation as a table for people."""

from __future__ import annotations

from rich.table import Table

from kvcodec.eval.report import Report, Row

METHODS = {
    "cached-prefix": "the prefix goes through encode and decode in blocks of {} tokens, the "
    "continuation is scored through it",
    "whole-sequence": "every key and value goes through encode and decode in blocks of {} tokens "
    "while the model runs",
}


def heading(report: Report) -> str:
    """What was run, in lines."""
    cut, text, noise = report.cut, report.text, report.noise
    bos = "one BOS in front of each" if report.bos else "no BOS (the tokenizer defines none)"
    return "\n".join(
        [
            f"model     {report.model} ({report.revision}), {report.dtype} on {report.device}",
            f"text      {text.name} ({text.source}, sha256 {text.sha256[:12]})",
            f"mode      {cut.mode}: {METHODS[cut.mode].format(cut.block_size)}",
            f"scored    {report.tokens} tokens, each once, in {report.passages} windows of "
            f"{cut.window}{'' if cut.whole else f' with a prefix of {cut.prefix}'}; {bos}",
            f"baseline  perplexity {report.ppl:.4f}; run again, {noise.tokens} tokens: "
            f"KL {noise.kl_mean:.2g}, largest difference of a log-likelihood "
            f"{noise.max_nll_difference:.2g}",
        ]
    )


def table(report: Report) -> Table:
    """A row per codec; `±` is one standard error."""
    made = Table(box=None, padding=(0, 1), pad_edge=False)
    made.add_column("codec", overflow="fold")
    made.add_column("cache")
    for name in (
        "bits", "ratio", "perplexity", "difference", "KL mean", "KL 99 %", "top-1",
        "enc GB/s", "dec GB/s",
    ):  # fmt: skip
        made.add_column(name, justify="right", no_wrap=True)
    for row in report.rows:
        made.add_row(*cells(row))
    return made


def cells(row: Row) -> list[str]:
    """A row's figures as the table shows them; exact zeros are written 0."""
    same = row.delta_ppl == 0 and row.kl_mean == 0
    return [
        row.codec,
        "bit-equal" if row.bit_equal else "changed",
        f"{row.bits_per_element:.3f}",
        f"{row.ratio:.3f}",
        f"{row.ppl:.4f}",
        "0" if same else f"{row.delta_ppl:+.4f} ±{row.delta_ppl_stderr:.4f}",
        "0" if same else f"{row.kl_mean:.5f} ±{row.kl_stderr:.5f}",
        "0" if same else f"{row.kl_p99:.4f}",
        f"{row.top1:.4f}",
        f"{row.encode_gbps:.3f}",
        f"{row.decode_gbps:.3f}",
    ]
