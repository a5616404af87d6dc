"""Seed bugs in the kernels, one at a time, and see that the suite notices each.

    python tests/mutants.py            all of them, one after another
    python tests/mutants.py ties       those whose name holds the word

A mutant is an edit of one file in a copy of the repository, and the tests that must fail there. The
same tests must pass without it. Exit code 1 when a mutant lives or an edit no longer applies.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
COPIED = ("kvcodec", "kernels", "formats", "tests", "benchmarks", "pyproject.toml")
RAW = ("tests/conformance", "-k", "raw-triton")
FP8 = ("tests/conformance", "tests/test_fp8_kernels.py", "tests/test_fp8.py", "-k", "triton")
NVFP4 = ("tests/test_nvfp4.py", "-k", "every_code and triton")
SPLIT = ("tests/test_split_triton.py", "tests/conformance", "-k", "split-triton or triton_")
NATIVE = ("tests/test_native.py",)


@dataclass(frozen=True)
class Mutant:
    """`old`, which occurs `count` times in the file, becomes `new`; some test must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    count: int = 1


MUTANTS = (
    Mutant(
        "stride of heads taken for tokens", "kernels/_rows_triton.py",
        "token.to(tl.int64) * stride_token", "token.to(tl.int64) * stride_head", RAW,
    ),
    Mutant(
        "int32 offsets of tokens", "kernels/_rows_triton.py",
        "token.to(tl.int64) * stride_token +",
        "(token * stride_token.to(tl.int32)).to(tl.int64) +", RAW,
    ),
    Mutant(
        "int32 offset of the block", "kernels/raw_triton.py",
        "cache_ptr += tl.load(ids_ptr + row) * stride_block",
        "cache_ptr += tl.load(ids_ptr + row).to(tl.int32) * stride_block.to(tl.int32)", RAW, 2,
    ),
    Mutant(
        "unused slots copied", "kernels/raw_triton.py",
        "mask=at < valid * (H * D), other=0", "mask=at < T * H * D, other=0", RAW,
    ),
    Mutant(
        "unused slots left as they were", "kernels/raw_triton.py",
        "elements, mask=at < T * H * D)", "elements, mask=at < n)", RAW,
    ),
    Mutant(
        "ties away from even", "kernels/_float_triton.py",
        "((1 << (DROP - 1)) - 1) + ((bits >> DROP) & 1)", "(1 << (DROP - 1))", FP8,
    ),
    Mutant(
        "ties of decoded bf16 away from even", "kernels/_fp8_decode_triton.py",
        "round_high(bits, 16)", "(bits + 0x8000)", FP8,
    ),
    Mutant(
        "ties of decoded nvfp4 away from even", "kernels/_microscaling_decode_triton.py",
        "round_high(bits, DROP)", "bits + (1 << (DROP - 1))", NVFP4,
    ),
    Mutant(
        "subnormals cut off", "kernels/_float_triton.py",
        "tiny - (ONE << 23), code)", "0, code)", FP8,
    ),
    Mutant(
        "infinity counted in amax", "kernels/_float_triton.py",
        "else (((1 << E) - 1) << M) - 1\n    return tl.where(magnitude > MAX, 0, magnitude)",
        "else ((1 << E) - 1) << M\n    return tl.where(magnitude > MAX, 0, magnitude)", FP8,
    ),
    Mutant(
        "reciprocal for division", "kernels/_fp8_encode_triton.py",
        "tl.div_rn(widen(magnitude, E, M), scale)",
        "widen(magnitude, E, M) * tl.div_rn(1.0, scale)", FP8,
    ),
    Mutant(
        "no floor under the scale",
        "kernels/_fp8_encode_triton.py",
        "tl.where(amax == 0, 1.0, tl.maximum(scale, MIN_SCALE))",
        "tl.where(amax == 0, 1.0, scale)",
        FP8,
    ),
    Mutant(
        "unused slots reach the scale", "kernels/_fp8_encode_triton.py",
        "load_bits(at, inside & (token < valid)[:, None])", "load_bits(at, inside)", FP8,
    ),
    Mutant(
        "codes of unused slots decoded", "kernels/_fp8_decode_triton.py",
        "inside & (token < valid)", "inside", FP8,
    ),
    Mutant(
        "wrong rank in the word stream", "kernels/_rans_triton.py",
        "at = read + before", "at = read + before + 1", SPLIT,
    ),
    Mutant(
        "words read past a damaged stream", "kernels/_rans_triton.py",
        "mask=need & (at < num_words), other=0", "mask=need, other=0", SPLIT,
    ),
    Mutant(
        "rounding half down in frequencies", "kernels/_rans_triton.py",
        "* 4096 + total // 2", "* 4096", SPLIT,
    ),
    Mutant(
        "dead lanes step on", "kernels/_rans_triton.py",
        "coded = tl.where(live, coded, state)", "coded = coded + 0", SPLIT,
    ),
    Mutant(
        "words stored in the order of lanes turned round", "kernels/_rans_triton.py",
        "at = end + tl.cumsum(spilled) - 1",
        "at = end + tl.sum(spilled) - tl.cumsum(spilled)", SPLIT,
    ),
    Mutant(
        "ties of bf16 away from even, in C++", "kernels/native/scales.inc",
        "((static_cast<u32>(bits) >> shift) & 1)) >> shift", "1) >> shift", NATIVE,
    ),
)  # fmt: skip


def copy_repository(target: Path) -> None:
    """What tests need, symlinks kept; compiled files too."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, symlinks=True)
        else:
            shutil.copy2(source, target / name)


def run_tests(where: Path, tests: Sequence[str]) -> int:
    """Exit code of pytest in a copy: 0 green, 1 a failure, more for no run at all."""
    if NATIVE[0] in tests:
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        shutil.copy2(ROOT / "setup.py", where)
        subprocess.run(build, cwd=where, check=True, capture_output=True)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=where, capture_output=True, check=False).returncode


def verdict(mutant: Mutant) -> str:
    """ "killed", or what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        copy_repository(where)
        path = where / mutant.file
        text = path.read_text()
        if text.count(mutant.old) != mutant.count:
            return f"its text occurs {text.count(mutant.old)} times, wanted {mutant.count}"
        path.write_text(text.replace(mutant.old, mutant.new))
        code = run_tests(where, mutant.tests)
    if code < 0:  # a signal: it touched memory that is not its own
        return "killed"
    return {0: "lives", 1: "killed"}.get(code, f"no verdict: pytest ended with {code}")


def main() -> int:
    """Print a verdict for each mutant."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", nargs="?", default="", help="only mutants whose name holds this")
    chosen = [m for m in MUTANTS if parser.parse_args().name in m.name]
    if not chosen:
        parser.error("no mutant has such a name")
    console, table = Console(), Table("mutant", "file", "verdict", "seconds")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy_repository(Path(folder))
        for tests in sorted({m.tests for m in chosen}):
            if run_tests(Path(folder), tests) != 0:
                console.print(f"without a mutant, these fail: {' '.join(tests)}", style="red")
                failed += 1
    for mutant in chosen:
        begin, told = time.monotonic(), verdict(mutant)
        failed += told != "killed"
        table.add_row(mutant.name, mutant.file, told, f"{time.monotonic() - begin:.0f}")
        console.print(f"{mutant.name}: {told}", highlight=False)
    console.print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
