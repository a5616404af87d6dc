"""Compile every Triton kernel for every supported GPU, without one, and hold it to its budget.

Exit code 1 when a kernel does not compile, spills, exceeds its budget, has no case or no budget, or
uses an instruction that may round otherwise on another machine. docs/kernels.md explains the table.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any

import _aot_budget as budget
import triton
from _aot_compile import FIRST_CASES, TARGETS, Job, Row, kernel_name
from _aot_report import call_gbps, markdown, merge_tables, replace_section, table
from kernel_cases import CASES, Case
from rich.console import Console
from rich.progress import Progress
from triton.runtime.jit import JITFunction

import kvcodec.kernels

BUDGETS = Path(__file__).with_name("kernel_budgets")
PAGE = Path(__file__).parents[1] / "docs" / "kernels.md"
PARALLEL = 2
TABLE_WIDTH = 170  # a figure that is cut says nothing; a narrower terminal wraps the lines


def discover(package: ModuleType) -> set[str]:
    """Every kernel of a package: jitted functions named `*_kernel` in modules `*_triton`."""
    found = set()
    for info in pkgutil.iter_modules(package.__path__):
        if info.name.endswith("_triton"):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            found |= {
                kernel_name(value)
                for value in vars(module).values()
                if isinstance(value, JITFunction)
                and value.fn.__module__ == module.__name__
                and value.fn.__name__.endswith("_kernel")
            }
    return found


def mismatches(kernels: set[str], cases: Iterable[Case]) -> list[str]:
    """Kernels without a case, and cases without a kernel."""
    covered = {case.kernel for case in cases}
    return [
        *(f"{name}: no case in benchmarks/kernel_cases" for name in sorted(kernels - covered)),
        *(f"{name}: a case names it, but it does not exist" for name in sorted(covered - kernels)),
    ]


def plan(cases: Sequence[Case], targets: Iterable[str]) -> list[tuple[Case, str]]:
    """What to compile: every kernel for every target, every case for all but FIRST_CASES."""
    first = {case.kernel: case for case in reversed(CASES)}
    return [
        (case, target)
        for case in cases
        for target in targets
        if target not in FIRST_CASES or first.get(case.kernel, case) is case
    ]


def compile_all(jobs: Sequence[tuple[Case, str]]) -> Iterator[Row]:
    """Rows in the order in which they are done; so many children at a time as there are cores."""
    waiting = list(jobs)[::-1]
    running: dict[Any, Job] = {}
    while waiting or running:
        while waiting and len(running) < PARALLEL:
            job = Job.start(*waiting.pop())
            running[job.results] = job
        for ready in wait(list(running)):
            yield running.pop(ready).finish()


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", action="append", choices=TARGETS, help="only this; repeatable")
    parser.add_argument("--kernel", default="", help="only cases whose name or kernel holds this")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--markdown", action="store_true", help=f"renew its lines in {PAGE.name}")
    parser.add_argument("--update-budgets", action="store_true", help=f"renew {BUDGETS.name}")
    args = parser.parse_args(argv)
    if args.markdown and args.target:
        parser.error("--markdown needs every target: drop --target")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args, begin = parse_args(argv), time.monotonic()
    if triton.knobs.runtime.interpret:
        print("aot: TRITON_INTERPRET is set and replaces the compiler; unset it", file=sys.stderr)
        return 2
    targets = args.target or list(TARGETS)
    cases = [case for case in CASES if args.kernel in case.name or args.kernel in case.kernel]
    if not cases:
        print(f"aot: no case and no kernel holds {args.kernel!r}", file=sys.stderr)
        return 2
    failures = mismatches(discover(kvcodec.kernels), CASES)
    names = [case.name for case in CASES]
    if len(set(names)) != len(names):
        failures.append("kernel_cases: a case name occurs twice")

    jobs = plan(cases, targets)
    console, rows = Console(), []
    # refreshed by hand: a refreshing thread must not exist when children fork
    with Progress(console=console, auto_refresh=False, disable=not console.is_terminal) as progress:
        task = progress.add_task("compile", total=len(jobs))
        for row in compile_all(jobs):
            rows.append(row)
            progress.update(task, advance=1, description=f"{row.case} {row.target}", refresh=True)
    order = {(case.name, target): i for i, (case, target) in enumerate(jobs)}
    rows.sort(key=lambda row: order[row.case, row.target])

    budgets, written_with = budget.load(BUDGETS)
    if args.update_budgets:
        budgets, written_with = budget.updated(budgets, rows, names), triton.__version__
        budget.save(BUDGETS, budgets, written_with)
    failures += budget.orphans(budgets, names)
    failures += [
        f"{row.case} {row.target}: {problem}"
        for row in rows
        for problem in budget.problems(row, budgets)
    ]
    console.width = max(console.width, TABLE_WIDTH)
    console.print(table(rows, cases))
    for call, gbps in call_gbps(rows, CASES).items():
        console.print(f"{call}, all launches: at most {gbps:.0f} GB/s", highlight=False)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if args.markdown:
        page, body = PAGE.read_text(), markdown(rows, cases)
        PAGE.write_text(replace_section(page, merge_tables(page, body) if args.kernel else body))
    for failure in failures:
        console.print(f"FAIL {failure}", markup=False, highlight=False, soft_wrap=True)
    if failures and written_with != triton.__version__:
        print(f"The budgets describe triton {written_with}; this is {triton.__version__}.")
    seconds = time.monotonic() - begin
    print(f"{len(rows)} compilations in {seconds:.0f} s, {len(failures)} problems")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
