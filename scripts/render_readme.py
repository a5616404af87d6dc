"""Render the README's tables from committed result files; `--check` only compares.

A section `<!-- table: FILE -->` ... `<!-- end -->` is replaced by the table of
`benchmarks/results/FILE`, so no figure in the README is typed.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SECTION = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def eval_table(data: dict[str, Any]) -> str:
    """Markdown of `kvcodec eval --json`."""
    lines = [
        "| codec | bits/element | ratio | perplexity | difference | KL mean | KL 99 % | top-1 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in data["rows"]:
        exact = row["kl_mean"] == 0 and row["delta_ppl"] == 0
        delta = f"{row['delta_ppl']:+.3f} ± {row['delta_ppl_stderr']:.3f}"
        kl = f"{row['kl_mean']:.5f} ± {row['kl_stderr']:.5f}"
        lines.append(
            f"| `{row['codec']}` | {row['bits_per_element']:.2f} | {row['ratio']:.2f} "
            f"| {row['ppl']:.3f} | {'0 (exact)' if exact else delta} | {'0' if exact else kl} "
            f"| {row['kl_p99']:.3f} | {row['top1']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def render(text: str) -> str:
    """README text with every table section brought up to date."""

    def section(match: re.Match[str]) -> str:
        data = json.loads((ROOT / "benchmarks" / "results" / match[2]).read_text())
        return match[1] + eval_table(data) + match[3]

    return SECTION.sub(section, text)


def main() -> None:
    """Rewrite README.md, or exit 1 if `--check` finds it out of date."""
    readme = ROOT / "README.md"
    old = readme.read_text()
    new = render(old)
    if "--check" in sys.argv[1:]:
        sys.exit(None if new == old else "README.md is out of date: run scripts/render_readme.py")
    readme.write_text(new)


if __name__ == "__main__":
    main()
