"""The README's figures come from result files, and its Python runs."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_tables_are_rendered_from_committed_results():
    script = ROOT / "scripts" / "render_readme.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_first_example_runs(capsys):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    exec(compile(code, "README.md", "exec"), {})
    bits = float(capsys.readouterr().out.split()[0])
    assert 10 < bits < 12  # Gaussian bf16: about 2.6 of the 8 exponent bits stay


def test_links_point_to_files():
    for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).is_file(), link
