"""The table on the terminal, and the tables of docs/kernels.md."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from _aot_bound import UNIT_LANES, Bound, h200_bound
from _aot_compile import TARGETS, Row
from kernel_cases import Case
from rich import box
from rich.table import Table

BEGIN = "<!-- begin: python benchmarks/aot.py --markdown -->"
END = "<!-- end -->"


def bound_of(row: Row, case: Case) -> Bound | None:
    """The H200's limit; only code for sm_90 has one."""
    if row.stage or row.target != "sm_90":
        return None
    return h200_bound(row.per_element, case.raw_nbytes, case.moved_nbytes)


def call_gbps(rows: Sequence[Row], cases: Sequence[Case]) -> dict[str, float]:
    """H200 limit of every call of several launches whose rows are all there; their times add up.

    A call is what the names of its launches have in common, before ": ".
    """
    found = {row.case: row for row in rows if row.target == "sm_90"}
    seconds: dict[str, float] = {}  # of 1e9 raw bytes
    for case in cases:
        call, _, step = case.name.partition(": ")
        if step:
            bound = bound_of(found[case.name], case) if case.name in found else None
            seconds[call] = seconds.get(call, 0.0) + (1 / bound.raw_gbps if bound else math.inf)
    return {call: 1 / total for call, total in seconds.items() if total < math.inf}


def table(rows: Sequence[Row], cases: Sequence[Case]) -> Table:
    """One line per row; instructions are thread-instructions per element."""
    by_name = {case.name: case for case in cases}
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    out.add_column("case", no_wrap=True)
    out.add_column("target", no_wrap=True)
    heads = [
        "regs",
        "spill",
        "shared",
        "code",
        "slots",
        *UNIT_LANES,
        "other",
        "moved B",
        "H200 GB/s",
    ]
    for head in heads:
        out.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        if row.stage:
            out.add_row(row.case, row.target, f"fails in {row.stage}")
            continue
        case, units = by_name[row.case], [row.per_element.get(unit, 0.0) for unit in UNIT_LANES]
        bound = bound_of(row, case)
        figures = [row.issue_slots, *units, row.issue_slots - sum(units), case.moved_nbytes]
        out.add_row(
            row.case,
            row.target,
            *map(str, (row.registers, row.spill_nbytes, row.shared_nbytes, row.instructions)),
            *(f"{value:.2f}" for value in figures),
            f"{bound.raw_gbps:.0f} {bound.limiter}" if bound else "",
        )
    return out


def markdown(rows: Sequence[Row], cases: Sequence[Case]) -> str:
    """The H200 estimate of every case, then registers and instructions on every target."""
    found = {(row.case, row.target): row for row in rows}
    known = [row.target for row in rows]
    targets = sorted(set(known), key=[*TARGETS, *known].index)
    lines = [
        "| case | slots | ALU | IMAD | LSU | bytes | GB/s at most | limit | of memory's |",
        "|---|---:|---:|---:|---:|---:|---:|---|---:|",
    ]
    for case in cases:
        row = found[case.name, "sm_90"]
        if bound := bound_of(row, case):
            units = [row.per_element.get(unit, 0.0) for unit in ("ALU", "IMAD", "LSU")]
            figures = " | ".join(f"{value:.2f}" for value in (row.issue_slots, *units))
            lines.append(
                f"| {case.name} | {figures} | {case.moved_nbytes:.2f} | {bound.raw_gbps:.0f} "
                f"| {bound.limiter} | {bound.memory_share:.0%} |"
            )
    for call, gbps in call_gbps(rows, cases).items():
        lines.append(f"| **{call}** | | | | | | **{gbps:.0f}** | | |")
    lines += ["", "Registers per thread and thread-instructions per element:", ""]
    lines.append(f"| case | {' | '.join(targets)} |")
    lines.append("|---|" + "---:|" * len(targets))
    for case in cases:
        cells = [cell(found.get((case.name, target))) for target in targets]
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(row: Row | None) -> str:
    """Registers and issue slots of one compilation; nothing where there is none."""
    if row is None:
        return ""
    return "fails" if row.stage else f"{row.registers} / {row.issue_slots:.1f}"


def replace_section(page: str, body: str) -> str:
    """`page` with everything between the two markers replaced by `body`."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no section between {BEGIN!r} and {END!r}")
    return f"{head}{begin}\n\n{body}\n\n{end}{tail}"


def merge_tables(page: str, body: str) -> str:
    """The section of `page` with the lines of `body`'s tables renewed or appended, in place.

    Tables correspond by their order; lines, by their first cell.
    """
    section = page.partition(BEGIN)[2].partition(END)[0].strip("\n")
    old, new = (re.split(r"(\n\n)", text) for text in (section, body))
    for i, part in enumerate(new):
        if part.startswith("|") and i < len(old) and old[i].startswith("|"):
            lines = {line.split("|")[1]: line for line in old[i].splitlines()}
            rule = lines.pop("---", None)  # the line under the heads
            lines |= {line.split("|")[1]: line for line in part.splitlines() if line[1:4] != "---"}
            kept = list(lines.values())
            old[i] = "\n".join([kept[0], *([rule] if rule else []), *kept[1:]])
    return "".join(old)
