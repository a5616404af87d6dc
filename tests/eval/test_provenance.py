"""Where a result comes from."""

import re
import subprocess

from kvcodec.eval import provenance


def test_a_revision_is_that_of_the_checkout_and_says_when_it_was_changed(tmp_path):
    def git(*args: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", "-C", tmp_path, *identity, *args], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    revision = provenance.git_revision(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{40}", revision)
    (tmp_path / "file").write_text("two")
    assert provenance.git_revision(tmp_path) == f"{revision}-dirty"


def test_a_folder_inside_a_checkout_is_not_that_checkout(tmp_path):
    subprocess.run(["git", "init", tmp_path], check=True, capture_output=True)
    inner = tmp_path / "site-packages"
    inner.mkdir()
    assert provenance.git_revision(inner) is None


def test_a_checkout_without_git_or_commits_has_no_revision(tmp_path, monkeypatch):
    subprocess.run(["git", "init", tmp_path], check=True, capture_output=True)
    assert provenance.git_revision(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert provenance.git_revision(tmp_path) is None


def test_an_absent_package_has_no_version(monkeypatch):
    monkeypatch.setattr(provenance, "PACKAGES", ("no-such-package",))
    assert provenance.provenance()["versions"]["no-such-package"] is None
