"""Render tables of README.md and docs/ from committed result files; `--check` only compares.

A section `<!-- table: FILE -->` ... `<!-- end -->` is replaced by the table of
`benchmarks/results/FILE`, so no figure is typed: JSON of `kvcodec eval`, CSV of benchmarks/run.py.
`<!-- table: FILE#PART -->` takes a part of a CSV: "main", the default, "positions" or "threads".
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SECTION = re.compile(r"(<!-- table: ([^\s#]+)(?:#(\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)
PAGES = ("README.md", "docs/benchmarks.md", "docs/evaluation.md")


def eval_table(data: dict[str, Any]) -> str:
    """Markdown of `kvcodec eval --json`."""
    lines = [
        "| codec | bits/element | ratio | perplexity | difference | KL mean | KL 99 % | top-1 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in data["rows"]:
        exact = row["kl_mean"] == 0 and row["delta_ppl"] == 0
        delta = f"{row['delta_ppl']:+.3f} ± {row['delta_ppl_stderr']:.3f}"
        if data["mode"] == "whole-sequence":  # as papers give it
            percent = 100 / data["baseline"]["ppl"]
            delta = f"{percent * row['delta_ppl']:+.2f} % ± {percent * row['delta_ppl_stderr']:.2f}"
        kl = f"{row['kl_mean']:.5f} ± {row['kl_stderr']:.5f}"
        lines.append(
            f"| `{row['codec']}` | {row['bits_per_element']:.2f} | {row['ratio']:.2f} "
            f"| {row['ppl']:.3f} | {'0 (exact)' if exact else delta} | {'0' if exact else kl} "
            f"| {row['kl_p99']:.3f} | {row['top1']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def bench_table(rows: list[dict[str, str]], part: str = "main") -> str:
    """Markdown of a CSV of benchmarks/run.py: a line a codec, and what is missing."""
    if part == "threads":
        return threads_table(rows)
    if part not in ("main", "positions"):
        raise ValueError(f"part is {part!r}, wanted main, positions or threads")
    rows = [
        row
        for row in rows
        if row["threads"] in ("", "0", "1") and ("," in row["dataset"]) == (part == "positions")
    ]
    first = rows[0]
    datasets = list(dict.fromkeys(row["dataset"] for row in rows if row["dataset"]))
    wanted = "keys, layer" if part == "positions" else "keys"
    timed = next((name for name in datasets if wanted in name), datasets[0])
    found: dict[tuple[str, str], dict[tuple[str, str], dict[str, str]]] = {}
    for row in rows:
        if row["gbps"] and not row["link_gbps"]:
            unit = row["impl"] if row["impl"] in ("blocks", "buffer") else "batch"
            found.setdefault((row["codec"], unit), {})[row["dataset"], row["op"]] = row
    load = f"; {first['load']}" if first["load"] else ""
    lines = [
        f"{first['gpu'] or first['cpu']} ({first['native']}), {first['date']}{load}.",
        "",
        "| codec | unit | SQNR | " + " | ".join(f"ratio, {name}" for name in datasets)
        + " | encode GB/s | decode GB/s |",
        "|---" * (5 + len(datasets)) + "|",
    ]  # fmt: skip
    order = [codec for codec, _ in found]  # as measured; copies first, blocks before buffer
    ranks = {key: ("copy" not in key[0], order.index(key[0]), key[1]) for key in found}
    for (codec, unit), cells in sorted(found.items(), key=lambda item: ranks[item[0]]):
        ratios = []
        for name in datasets:
            row = cells.get((name, "encode"))
            ratios.append(f"{float(row['ratio']):.3f}" if row else "")
        copy = _gbps(cells.get((timed, "copy")))
        speeds = [_gbps(cells.get((timed, op))) or copy for op in ("encode", "decode")]
        noise = next(iter(cells.values()))["sqnr_db"]
        error = f"{float(noise):.0f} dB" if noise else "exact"
        lines.append(f"| {codec} | {unit} | {' | '.join([error, *ratios, *speeds])} |")
    for row in rows:
        if row["op"] in ("missing", "failed"):
            empty = " |" * (4 + len(datasets))
            lines.append(f"| {row['codec']} ({row['op']}) |{empty}")
    return "\n".join(lines) + "\n"


def threads_table(rows: list[dict[str, str]]) -> str:
    """One thread against several, by the wall clock, on the dataset that was measured with both."""
    found: dict[str, dict[tuple[str, str], float]] = {}
    several = max(int(row["threads"] or 0) for row in rows)
    dataset = next(row["dataset"] for row in rows if row["threads"] == str(several))
    for row in rows:
        if row["dataset"] == dataset and row["impl"] not in ("blocks", "buffer") and row["gbps"]:
            found.setdefault(row["codec"], {})[row["op"], row["threads"]] = float(row["gbps"])
    lines = [
        f"{dataset}; GB/s by the wall clock.",
        "",
        "| codec | "
        + " | ".join(f"{op}, 1 | {op}, {several} | factor" for op in ("encode", "decode"))
        + " |",
        "|---|---|---|---|---|---|---|",
    ]
    for codec, cells in found.items():
        line = []
        for op in ("encode", "decode"):
            one, more = cells.get((op, "1")), cells.get((op, str(several)))
            if one and more:
                line += [f"{one:.2f}", f"{more:.2f}", f"{more / one:.2f}"]
        if len(line) == 6:
            lines.append(f"| {codec} | {' | '.join(line)} |")
    return "\n".join(lines) + "\n"


def _gbps(row: dict[str, str] | None) -> str:
    """Raw bytes per second of processor time, where there is one."""
    return f"{float(row['gbps_cpu'] or row['gbps']):.2f}" if row else ""


def render(text: str) -> str:
    """A page with every table section brought up to date."""

    def section(match: re.Match[str]) -> str:
        data = (ROOT / "benchmarks" / "results" / match[2]).read_text()
        if match[2].endswith(".csv"):
            rows = list(csv.DictReader(io.StringIO(data)))
            return match[1] + bench_table(rows, match[3] or "main") + match[4]
        return match[1] + eval_table(json.loads(data)) + match[4]

    return SECTION.sub(section, text)


def main() -> None:
    """Rewrite the pages, or exit 1 if `--check` finds one out of date."""
    stale = []
    for name in PAGES:
        page = ROOT / name
        old = page.read_text()
        if (new := render(old)) == old:
            continue
        stale.append(name)
        if "--check" not in sys.argv[1:]:
            page.write_text(new)
    if stale and "--check" in sys.argv[1:]:
        sys.exit(f"{', '.join(stale)} out of date: run scripts/render_readme.py")


if __name__ == "__main__":
    main()
