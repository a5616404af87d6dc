"""What a result was made with: versions, platform, revision of the source."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import kvcodec

PACKAGES = ("torch", "transformers", "triton", "numpy")


def provenance() -> dict[str, Any]:
    """JSON-able account; an absent package, and a revision outside a checkout, is null."""
    return {
        "versions": {
            "kvcodec": kvcodec.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "git_revision": git_revision(Path(kvcodec.__file__).parents[1]),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_revision(root: Path) -> str | None:
    """Commit of a checkout whose top folder is `root`, with `-dirty` if it was changed."""
    if not (root / ".git").exists():  # an installed package may lie inside another checkout
        return None
    command = ["git", "-C", str(root), "describe"]
    try:
        found = subprocess.run(
            [*command, "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
