"""Compile one case for one target, without a GPU, in a process of its own, and measure the code.

The launch is not described by hand: the library's own launch code runs on CPU tensors while
`JITFunction.run` only records its arguments, so that types, alignment, constexprs and options are
those of a real call.
"""

from __future__ import annotations

import contextlib
import io
import math
import multiprocessing
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import _aot_machine as machine
import triton
from _aot_scan import scan_amd, scan_ptx
from kernel_cases import Case
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
}
# Of a kernel with several cases, these compile the first: they stand beside sm_80 and gfx942.
FIRST_CASES = ("sm_89", "gfx950")
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(slots=True)
class Row:
    """What one case became on one target.

    stage: empty, or the compiler stage that failed with `error`.
    per_element: thread-instructions per element by class, idle lanes included.
    """

    case: str
    kernel: str
    target: str
    stage: str = ""
    error: str = ""
    registers: int = 0
    spill_nbytes: int = 0
    shared_nbytes: int = 0
    instructions: int = 0
    num_warps: int = 0
    per_element: dict[str, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    @property
    def issue_slots(self) -> float:
        """Thread-instructions per element, all classes."""
        return sum(self.per_element.values())


@dataclass(frozen=True, slots=True)
class Launch:
    """One recorded call `kernel[grid](*args, **kwargs)`."""

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grid: Any


def kernel_name(kernel: Any) -> str:
    """Module stem and function: the name under which cases know a kernel."""
    return f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}"


def find_launch(case: Case) -> Launch:
    """First launch of the case's kernel. From here on this process launches nothing any more."""
    launches: list[Launch] = []

    def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append(Launch(kernel, args, kwargs, grid))

    JITFunction.run = record
    case.launch()
    for launch in launches:
        if kernel_name(launch.kernel) == case.kernel:
            return launch
    seen = ", ".join(kernel_name(one.kernel) for one in launches) or "nothing"
    raise ValueError(f"case {case.name!r} launches {seen}, wanted {case.kernel}")


class Compilation:
    """The compiler's output for a launch; `stage` says how far it got."""

    def __init__(self, launch: Launch, target: GPUTarget) -> None:
        self.launch, self.target, self.stage = launch, target, "frontend"
        backend = make_backend(target)
        kwargs = {"debug": False, "instrumentation_mode": "", **launch.kwargs}
        bind = create_function_from_signature(
            launch.kernel.signature, launch.kernel.params, backend
        )
        bound, specialization, _ = bind(*launch.args, **kwargs)
        self.options, signature, constexprs, attrs = launch.kernel._pack_args(
            backend, kwargs, bound, specialization, {}
        )
        self.source = ASTSource(launch.kernel, signature, constexprs, attrs)
        grid = launch.grid(bound) if callable(launch.grid) else launch.grid
        self.num_programs = math.prod(grid)

    def run(self, *, fusion: bool) -> tuple[Any, list[machine.Instruction], str]:
        """Compiled kernel, its instructions, and what ptxas printed."""
        triton.knobs.nvidia.dump_ptxas_log = True
        triton.knobs.runtime.add_stages_inspection_hook = self._watch
        options = {**self.options.__dict__, "enable_fp_fusion": fusion}
        log = io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            triton.knobs.cache.dir = folder
            with contextlib.redirect_stdout(log):
                kernel = triton.compile(self.source, target=self.target, options=options)
            self.stage = "disassembly"
            if self.target.backend == "hip":
                return kernel, machine.parse_gcn(kernel.asm["amdgcn"]), log.getvalue()
            cubin = Path(folder, "kernel.cubin")
            cubin.write_bytes(kernel.asm["cubin"])
            sass = subprocess.run(
                [_CUOBJDUMP, "-sass", cubin], capture_output=True, text=True, check=True
            )
            return kernel, machine.parse_sass(sass.stdout), log.getvalue()

    def contractions(self, code: list[machine.Instruction]) -> list[str]:
        """A finding if fusion added fused steps; a correct division is made of such steps too."""
        fused = machine.count_fused(code)
        if not fused or not self.options.enable_fp_fusion:
            return []
        _, unfused, _ = self.run(fusion=False)
        if machine.count_fused(unfused) == fused:
            return []
        return ["fma: contracted by the assembler; launch with enable_fp_fusion=False"]

    def _watch(self, _: Any, stages: dict[str, Callable[..., Any]], *rest: Any) -> None:
        for name, stage in list(stages.items()):

            def entered(*args: Any, name: str = name, stage: Any = stage) -> Any:
                self.stage = name
                return stage(*args)

            stages[name] = entered


def measure(case: Case, target: str, row: Row) -> None:
    """Fill `row`; on an exception `row.stage` names the stage that raised it."""
    row.stage = "launch"
    job = Compilation(find_launch(case), TARGETS[target])
    try:
        kernel, code, log = job.run(fusion=job.options.enable_fp_fusion)
        if job.target.backend == "hip":
            row.registers, row.spill_nbytes = machine.parse_gcn_resources(kernel.asm["amdgcn"])
            row.findings = scan_amd(kernel.asm["llir"], kernel.asm["amdgcn"], case.allow)
        else:
            row.registers, row.spill_nbytes = machine.parse_ptxas(log)
            row.findings = scan_ptx(kernel.asm["ptx"], case.allow)
        if not any(one.startswith("fma") for one in row.findings) and "fma" not in case.allow:
            row.findings += job.contractions(code)
        row.shared_nbytes, row.num_warps = kernel.metadata.shared, kernel.metadata.num_warps
        row.instructions = len(code)
        looped = case.per_iteration > 0
        counts = machine.main_loops(code, case.passes) if looped else machine.whole(code)
        elements = case.per_iteration or case.elements / job.num_programs
        row.per_element = per_element(counts, elements, row.num_warps * job.target.warp_size)
        row.stage = ""
    finally:
        row.stage = row.stage and job.stage


def per_element(counts: Counter[str], elements: float, threads: int) -> dict[str, float]:
    """Thread-instructions per element of `threads` threads that execute `counts` for `elements`."""
    return {unit: n * threads / elements for unit, n in counts.most_common()}


def _child(case: Case, target: str, results: Connection) -> None:
    row = Row(case.name, case.kernel, target)
    with tempfile.TemporaryFile() as stderr:
        os.dup2(stderr.fileno(), 2)
        try:
            measure(case, target, row)
        except BaseException as error:  # a compiler's panic is no Exception; the parent reports it
            stderr.seek(0)
            row.error = _first_error(f"{type(error).__name__}: {error}", stderr.read())
    results.send(row)


def _first_error(message: str, stderr: bytes) -> str:
    lines = [one.strip() for one in stderr.decode(errors="replace").splitlines()]
    told = next((one for one in lines if "error" in one.lower()), "")
    return " | ".join(filter(None, [" ".join(message.split())[:300], told[:300]]))


@dataclass(slots=True)
class Job:
    """A running child."""

    case: Case
    target: str
    process: BaseProcess
    results: Connection

    @classmethod
    def start(cls, case: Case, target: str) -> Job:
        """Fork: the parent has imported everything, and a fatal error of LLVM ends the child."""
        context = multiprocessing.get_context("fork")
        results, sender = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(case, target, sender))
        process.start()
        sender.close()
        return cls(case, target, process, results)

    def finish(self) -> Row:
        """The child's row, or one that says how it died; called once `results` is readable."""
        try:
            row: Row = self.results.recv()
        except EOFError:
            self.process.join()
            died = f"the compiler ended its process, exit code {self.process.exitcode}"
            row = Row(self.case.name, self.case.kernel, self.target, "compiler", died)
        self.process.join()
        self.results.close()
        return row
