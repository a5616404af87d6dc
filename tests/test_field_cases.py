"""docs/field-cases.md names tests that exist, so that a case does not lose its test unseen."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "field-cases.md"
REFERENCE = re.compile(r"`((?:conformance/|eval/)?test_\w+\.py)(?:::(test_\w+))?`")


def defined(path):
    return {node.name for node in ast.parse(path.read_text()).body if hasattr(node, "name")}


def test_every_named_test_exists():
    found = REFERENCE.findall(PAGE.read_text())
    assert len(found) > 50
    missing = [
        f"{file}::{name}"
        for file, name in found
        if not (TESTS / file).is_file() or (name and name not in defined(TESTS / file))
    ]
    assert not missing


def test_every_case_names_a_test():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cases = [row for row in rows if not row.startswith("| case |")]
    assert len(cases) > 25
    assert [row for row in cases if not REFERENCE.search(row.split("|")[3])] == []
