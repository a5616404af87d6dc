"""Launches that stand for every Triton kernel in the ahead-of-time check (benchmarks/aot.py).

One module per codec, each with a list CASES; a new one is found without an edit. Each case calls
the library's launch code on CPU tensors; nothing runs. A kernel without a case fails the check.
"""

import importlib
import pkgutil

from kernel_cases.case import Case

__all__ = ["CASES", "Case"]

CASES: list[Case] = [
    case
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__))
    for case in getattr(importlib.import_module(f"{__name__}.{module}"), "CASES", [])
]
