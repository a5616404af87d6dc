"""Refuses library math where bytes are decided. The rule is stated in docs/numerics.md.

It reads names, not types: a call is judged by the last part of its name, a sum by the form of what
it adds. `# exact: REASON` on a line of the expression allows it; an allowance that allows nothing
is refused as well.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = (
    *sorted((ROOT / "kvcodec" / "codecs").glob("*.py")),
    ROOT / "kvcodec" / "angles.py",
    ROOT / "kvcodec" / "centred.py",
    ROOT / "kvcodec" / "centring.py",
    ROOT / "kvcodec" / "contexts.py",
    ROOT / "kvcodec" / "exact.py",
    ROOT / "kvcodec" / "fixed_log.py",
    ROOT / "kvcodec" / "radix.py",
    ROOT / "kvcodec" / "rans.py",
    ROOT / "kvcodec" / "rotation.py",
)
MODULES = {"np", "numpy", "torch", "math", "F"}

SUMS = {"sum", "nansum", "cumsum", "prod", "nanprod", "cumprod", "trace", "reduce", "accumulate"}
CASTS = {"half", "bfloat16", "float", "double", "float16", "float64", "longdouble"}
REFUSED = {
    name: why
    for why, names in {
        "a library function": """exp exp2 expm1 log log2 log10 log1p logsumexp logaddexp pow power
            float_power sqrt rsqrt cbrt square_root hypot sin cos tan sinc asin acos atan atan2
            arcsin arccos arctan arctan2 sinh cosh tanh sigmoid softmax log_softmax erf gelu silu
            gamma lgamma reciprocal""",
        "a product of matrices": """matmul mm bmm mv dot vdot vecdot inner outer tensordot einsum
            addmm addmv baddbmm linear conv1d convolve correlate linalg kron cdist""",
        "a mean or norm": "mean nanmean average var std norm cov corrcoef fsum dist",
        "a fused operation": "fma addcmul addcdiv lerp interp",
        "a rounding of floats": "round round_ rint around fix nearbyint",
    }.items()
    for name in names.split()
}
FLOAT_DTYPE = re.compile(r"(b?float\d*(_\w+)?|half|double|longdouble|dtype)")
FLOAT_STRING = re.compile(r"[<>=]?(f\d+|float\d*|half|double|e|d)")
INTEGER_DTYPE = re.compile(r"u?int\d*|bool_?|intp")
INTEGER_OPERATORS = (ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor)


@dataclass(frozen=True, slots=True)
class Finding:
    """A line, and what is wrong with it."""

    line: int
    message: str


def check(source: str) -> list[Finding]:
    """Findings of a module, by line."""
    allowed = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and re.match(r"# exact: \S", token.string)
    }
    used: set[int] = set()
    findings = []
    for node in ast.walk(ast.parse(source)):
        message = _judge(node)
        if message is not None:
            lines = allowed & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            used |= lines
            if not lines:
                findings.append(Finding(node.lineno, message))
    findings += [Finding(line, "this comment allows nothing") for line in allowed - used]
    return sorted(findings, key=lambda finding: (finding.line, finding.message))


def _judge(node: ast.AST) -> str | None:
    """What is wrong with a node itself, whatever it contains."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return _judge_operator(node)
    if isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
        bad = [n for n in names if n in REFUSED or n in SUMS]
        return f"imports {bad[0]} past the check" if bad and node.module != "kvcodec" else None
    if isinstance(node, ast.Call):
        return _judge_call(node)
    if isinstance(node, ast.Attribute) and _root(node) in MODULES and node.attr in REFUSED:
        return f"{node.attr} is {REFUSED[node.attr]}"
    return None


def _judge_operator(node: ast.BinOp | ast.AugAssign) -> str | None:
    if isinstance(node.op, ast.MatMult):
        return "@ is a product of matrices"
    if isinstance(node.op, ast.Div):
        return "/ is not rounded once to fp32; use exact.div"
    base = node.left if isinstance(node, ast.BinOp) else node.target
    power_of_two = isinstance(base, ast.Constant) and base.value == 2
    if isinstance(node.op, ast.Pow) and not power_of_two:
        return "** of anything but the literal 2 is a library function"
    return None


def _judge_call(node: ast.Call) -> str | None:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else None
    if isinstance(node.func, ast.Name):
        name = node.func.id
    if name is None or _root(node.func) == "exact":
        return None
    arguments = [*node.args, *(k.value for k in node.keywords)]
    if name in SUMS:
        method = isinstance(node.func, ast.Attribute) and _root(node.func) not in MODULES
        operand = node.func.value if method else (node.args or [None])[0]
        integers = _is_integer(operand) or any(
            k.arg == "dtype" and INTEGER_DTYPE.fullmatch(_last(k.value)) for k in node.keywords
        )
        return None if integers else f"{name} of what may be floats: the order decides"
    if name in ("to", "type", "astype") and any(map(_is_float_dtype, arguments)):
        return f".{name} to floats is a cast; use exact.widen and exact.narrow"
    if name in CASTS:
        return f"{name} is a cast; use exact.widen and exact.narrow"
    return f"{name} is {REFUSED[name]}" if name in REFUSED else None


def _is_integer(node: ast.expr | None) -> bool:
    """Integers or booleans by form: a comparison, or an operator that floats do not have."""
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        node = node.elt
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Invert | ast.Not)
    return isinstance(node, ast.Compare) or (
        isinstance(node, ast.BinOp) and isinstance(node.op, INTEGER_OPERATORS)
    )


def _is_float_dtype(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and bool(FLOAT_STRING.fullmatch(node.value))
    return bool(FLOAT_DTYPE.fullmatch(_last(node)))


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return getattr(node, "id", "")
