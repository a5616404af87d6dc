"""No library math decides a byte in the references; the lint that sees to it refuses and allows."""

import pytest
from exact_lint import FILES, ROOT, check


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_references_decide_bytes_by_exact_arithmetic_only(path):
    found = check(path.read_text())
    assert not found, "\n".join(f"{path}:{f.line}: {f.message}" for f in found)


def test_the_lint_reads_every_reference():
    names = {path.name for path in FILES}
    assert {"fp8.py", "split.py", "raw.py", "exact.py", "rans.py"} <= names


REFUSED = """
x.sum()
x.sum(1)
np.sum(x)
torch.cumsum(x, 0)
sum(x)
np.add.reduce(x)
math.prod(x)
x.sum(dtype=np.float32)
(x * 2).sum()
x.mean()
torch.linalg.norm(x)
np.exp(x)
torch.log2(x)
math.sqrt(2)
x.sqrt_() or x.sqrt()
np.hypot(x, y)
torch.atan2(x, y)
map(np.exp, x)
x @ y
x @= y
torch.matmul(x, y)
np.einsum("ij,jk", x, y)
x ** 2
10.0 ** k
x **= 2
2.0 ** x ** y
x / y
x /= y
1 / 3
x.half()
x.bfloat16()
x.float()
x.double()
float(x)
x.to(torch.float8_e4m3fn)
x.to(torch.bfloat16)
x.to(dtype=torch.float16)
x.to(spec.dtype)
x.type(torch.float32)
x.astype(np.float32)
x.astype("<f4")
x.astype(np.float16)
np.float64(x)
np.round(x)
round(x)
x.round()
np.rint(x)
torch.addcmul(x, y, z)
from math import log
from numpy import sum
from torch import matmul as f
""".strip().splitlines()

ALLOWED = """
x.sum()  # exact: integers
np.cumsum(freqs)  # exact: integers
(x << y).sum(1)
(x & 1).sum()
np.sum(x > 0)
sum(s.shape is None for s in sections)
(~x).sum()
x.sum(dtype=np.int64)
torch.sum(x, dtype=torch.int32)
2.0 ** -100
2 ** k
x // y
x % y
x * y + z - w
x.to(torch.int32)
x.to("cpu")
x.to(device)
x.astype(np.uint8)
x.astype("<u2")
x.astype(f"u{n}")
x.view(np.float32)
x.view(torch.float16)
np.float32(1)
exact.div(x, y)
exact.sqrt(x)
from kvcodec import exact
x.astype(np.float32)  # exact: integers below 2^24
mean = x
torch.empty(3, dtype=torch.float32)
""".strip().splitlines()


@pytest.mark.parametrize("line", REFUSED)
def test_library_math_is_refused(line):
    assert [finding.line for finding in check(f"a = 0\n{line}\n")]
    assert check(f"a = 0\n{line}\n")[0].line == 2


@pytest.mark.parametrize("line", ALLOWED)
def test_exact_arithmetic_is_allowed(line):
    assert check(f"{line}\n") == []


def test_an_allowance_covers_the_lines_of_its_expression():
    assert check("total = (\n    x.sum()  # exact: integers\n)\n") == []
    assert check("total = f(\n    x.sum(\n        axis=0,  # exact: integers\n    )\n)\n") == []
    assert [f.line for f in check("# exact: integers\nx.sum()\n")] == [1, 2]


@pytest.mark.parametrize("comment", ["# exact:", "# exact", "# integers", "#exact: integers"])
def test_an_allowance_needs_its_reason(comment):
    assert check(f"x.sum()  {comment}\n")


def test_an_allowance_that_allows_nothing_is_refused():
    assert [f.message for f in check("x = y + 1  # exact: integers\n")] == [
        "this comment allows nothing"
    ]
