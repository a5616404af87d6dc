"""Refuse instructions that may round otherwise on another machine, in PTX and in LLVM's AMD IR.

Formats are decided by single operations, each correctly rounded. A fused multiply-add rounds once
where the reference rounds twice, `.approx` and `.full` are off by an ulp or two, and `.ftz` drops
subnormals.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_PTX = {
    "fma": re.compile(r"^\s*(?:@!?%\w+\s+)?((?:fma|mad)\.[\w.]*f(?:16|32|64)\w*)", re.MULTILINE),
    "approx": re.compile(r"^\s*(?:@!?%\w+\s+)?(\w+\.(?:[\w.]*approx|full)[\w.]*)", re.MULTILINE),
    "ftz": re.compile(r"^\s*(?:@!?%\w+\s+)?([\w.]+\.ftz[\w.]*)", re.MULTILINE),
}
_LLVM = {
    "fma": re.compile(r"(@llvm\.(?:fma|fmuladd)\.\w+)"),
    "approx": re.compile(r"(\bf(?:add|sub|mul|div) (?:\w+ )*?(?:fast|arcp|afn|reassoc)\b|!fpmath)"),
}
_GCN = {"ftz": re.compile(r"(\.amdhsa_float_denorm_mode_(?:32|16_64) [0-2])\b")}

KINDS = frozenset(_PTX)


def scan_ptx(ptx: str, allowed: Collection[str] = ()) -> list[str]:
    """Findings such as "fma: fma.rn.f32 (x3)"; kinds in `allowed` are not looked for."""
    return _scan(ptx, _PTX, allowed)


def scan_amd(llvm_ir: str, assembly: str, allowed: Collection[str] = ()) -> list[str]:
    """Findings for an AMD target.

    Approximations that a kernel asks for show in its PTX; here only what this back end adds is
    looked for: fast-math flags and a mode that flushes subnormals. The correctly rounded square
    root is made of @llvm.fma and an estimate of 1/sqrt, which the IR names together.
    """
    fused = {"fma"} if "@llvm.amdgcn.rsq." in llvm_ir else set()
    skip = set(allowed) | fused
    return _scan(llvm_ir, _LLVM, skip) + _scan(assembly, _GCN, allowed)


def _scan(text: str, patterns: dict[str, re.Pattern[str]], allowed: Collection[str]) -> list[str]:
    findings = []
    for kind, pattern in patterns.items():
        seen = pattern.findall(text) if kind not in allowed else []
        findings += [f"{kind}: {op} (x{seen.count(op)})" for op in sorted(set(seen))]
    return findings
