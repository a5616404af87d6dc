"""Result files that are whole or absent."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kvcodec.errors import InvalidInputError


def check_writable(path: Path) -> None:
    """Raise InvalidInputError unless `write_file(path, ...)` can work; leaves nothing behind."""
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a directory")
        _beside(path).open("xb").close()
    except OSError as error:
        raise InvalidInputError(f"cannot write {str(path)!r}: {error.strerror}") from error
    _beside(path).unlink()


def write_file(path: Path, data: bytes) -> None:
    """Write a file in one step: a reader sees the old content or all of the new."""
    temporary = _beside(path)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise InvalidInputError(f"cannot write {str(path)!r}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
