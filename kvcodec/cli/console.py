"""Where the commands write."""

from __future__ import annotations

import sys

from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """Plain text, as wide as the terminal; wide enough for every table where there is none."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)
