"""Golden frames, one module per codec: a list CASES. A new module is found without an edit."""

import importlib
import pkgutil

from golden_cases.case import Case

CASES: list[Case] = [
    case
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__))
    for case in getattr(importlib.import_module(f"{__name__}.{module}"), "CASES", [])
]
