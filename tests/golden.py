"""Golden files: inputs made by a fixed integer generator, and the bytes they must give for ever.

    python tests/golden.py

writes the files that are missing under formats/golden. A file that exists is never touched; when
the library no longer gives its bytes, that is an error and the format needs a new version.

`<case>.kvc` is a frame; `<case>.in` the bit patterns of its blocks, row after row, little-endian;
`<case>.out` what they decode to, for lossy codecs; `<case>.profile` the tables its codecs name.
Frames of a codec without `portable_bytes` must decode to their input for ever, but need not be
written the same way again. rans/v1 holds vectors of the coder itself (golden_rans.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import golden_rans
from golden_cases import CASES

ROOT = Path(__file__).parents[1] / "formats" / "golden"
DECODE_ONLY = {f"{case.path}.kvc" for case in CASES if case.decode_only}


def files() -> Iterator[tuple[str, bytes]]:
    """Every golden file of this version: path under the root, and content."""
    for case in CASES:
        yield from case.files()
    yield from golden_rans.files()


def write_missing(root: Path) -> tuple[list[str], list[str]]:
    """Write what is missing; returns the paths written, and those that exist and differ."""
    written, differing = [], []
    for name, content in files():
        path = root / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:  # fails rather than overwrites
                file.write(content)
            written.append(name)
        elif name not in DECODE_ONLY and path.read_bytes() != content:
            differing.append(name)
    return written, differing


def main() -> None:
    """Write what is missing under formats/golden, or say what would have to change."""
    written, differing = write_missing(ROOT)
    print(f"{len(written)} golden files written", *written, sep="\n  ")
    if differing:
        sys.exit(
            "these files hold other bytes than the library gives; they are never overwritten, "
            "a change of bytes is a new version of the format:\n  " + "\n  ".join(differing)
        )


if __name__ == "__main__":
    main()
