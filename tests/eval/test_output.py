"""Result files are whole or absent."""

import os
from pathlib import Path

import pytest

from kvcodec.errors import InvalidInputError
from kvcodec.eval.output import check_writable, write_file


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "out.json"
    write_file(path, b"first")
    write_file(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInputError, match=r"out\.json.*No space left on device"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_checking_leaves_nothing_behind(tmp_path):
    check_writable(tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["missing/out.json", ".", "file/out.json"])
def test_a_path_that_cannot_be_written_is_refused(tmp_path, where):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="cannot write"):
        check_writable(Path(tmp_path / where))
