"""The committed limits of every case and target, and what breaks them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _aot_compile import Row

REGISTER_STEP = 8  # registers are given to a warp in eights, so fewer are no gain
SLACK = 1.03  # of instructions per element

Budgets = dict[str, dict[str, dict[str, float]]]  # case -> target -> limit -> value


def load(folder: Path) -> tuple[Budgets, str]:
    """Budgets of all codecs, one file each, and the Triton version whose output they describe."""
    budgets: Budgets = {}
    versions = {""}
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        budgets |= data["budgets"]
        versions.add(data["triton"])
    return budgets, max(versions)


def save(folder: Path, budgets: Budgets, triton_version: str) -> None:
    """Write the files; keys are sorted so that a diff shows only what changed."""
    folder.mkdir(exist_ok=True)
    codecs: dict[str, Budgets] = {path.stem: {} for path in folder.glob("*.json")}
    for case, entry in budgets.items():
        codecs.setdefault(re.split("[ :]", case)[0], {})[case] = entry
    for codec, entries in codecs.items():
        path = folder / f"{codec}.json"
        if entries:
            data: dict[str, Any] = {"triton": triton_version, "budgets": entries}
            path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
        else:
            path.unlink()


def limits_of(row: Row) -> dict[str, float]:
    """The budget that a row just keeps."""
    return {
        "registers": math.ceil(row.registers / REGISTER_STEP) * REGISTER_STEP,
        "spill_nbytes": 0,
        "shared_nbytes": row.shared_nbytes,
        "issue_slots": math.ceil(row.issue_slots * SLACK * 100) / 100,
    }


def problems(row: Row, budgets: Budgets) -> list[str]:
    """Why a row fails the check; empty when it passes."""
    if row.stage:
        return [f"fails in {row.stage}: {row.error}"]
    found = list(row.findings)
    if row.spill_nbytes:
        found.append(f"spills {row.spill_nbytes} bytes, wanted 0")
    entry = budgets.get(row.case, {}).get(row.target)
    if entry is None:
        return [*found, "has no budget; write one with --update-budgets"]
    for name, limit in entry.items():
        value = getattr(row, name)
        if value > limit and name != "spill_nbytes":
            found.append(f"{name} {value:g} exceeds its budget {limit:g}")
    return found


def updated(budgets: Budgets, rows: Iterable[Row], cases: Iterable[str]) -> Budgets:
    """Budgets with the entries of sound rows renewed and those of unknown cases dropped."""
    new = {case: dict(budgets.get(case, {})) for case in cases}
    for row in rows:
        if not (row.stage or row.spill_nbytes or row.findings):
            new[row.case][row.target] = limits_of(row)
    return new


def orphans(budgets: Budgets, cases: Iterable[str]) -> list[str]:
    """Entries whose case is gone."""
    gone = sorted(set(budgets) - set(cases))
    return [f"{case}: a budget without a case; drop it with --update-budgets" for case in gone]
