"""Machine code of one kernel as a list of instructions: what they need, and where the loops are.

Two assemblers are read: NVIDIA's SASS as `cuobjdump -sass` prints it, and the GCN text that LLVM
writes. Every instruction is put into one class, named after the unit that executes it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_SASS_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.+?)\s*;", re.MULTILINE)
_SASS_TARGET = re.compile(r"\b0x([0-9a-f]+)$")
_SASS_SCHEDULING = re.compile(r"\s+[?&]\w.*")  # `&req={0} ?trans5`, printed for sm_120
_GCN_LABEL = re.compile(r"^([.\w$]+):$")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")

# Opcode stem -> class. A stem that is missing is integer or logic work: ALU.
_SASS_CLASSES = {
    stem: unit
    for unit, stems in {
        "LSU": "LDG STG LD ST LDS STS LDSM STSM LDC ATOM ATOMS ATOMG RED",
        "LOCAL": "LDL STL",
        "SHFL": "SHFL REDUX",
        "XU": "POPC FLO BREV MUFU I2F F2I F2F FRND",
        "IMAD": "IMAD IMUL",
        "FP32": "FFMA FMUL FADD HFMA2 HADD2 HMUL2 FFMA2 FMUL2 FADD2",
        "SYNC": "BAR WARPSYNC DEPBAR LDGDEPBAR MEMBAR ERRBAR CCTL YIELD NANOSLEEP",
        "CTRL": "BRA BRX JMP BSSY BSYNC EXIT BREAK CALL RET NOP BMOV",
        "UNIFORM": "R2UR S2UR VOTEU",
    }.items()
    for stem in stems.split()
}
_GCN_PREFIXES = (
    ("scratch_", "LOCAL"),
    ("global_", "LSU"),
    ("buffer_", "LSU"),
    ("flat_", "LSU"),
    ("ds_bpermute", "SHFL"),
    ("ds_permute", "SHFL"),
    ("ds_swizzle", "SHFL"),
    ("ds_", "LSU"),
    ("s_waitcnt", "SYNC"),
    ("s_barrier", "SYNC"),
    ("s_nop", "CTRL"),
    ("s_branch", "CTRL"),
    ("s_cbranch", "CTRL"),
    ("s_endpgm", "CTRL"),
    ("s_", "UNIFORM"),
    ("v_readlane", "SHFL"),
    ("v_readfirstlane", "SHFL"),
    ("v_rcp", "XU"),
    ("v_rsq", "XU"),
    ("v_sqrt", "XU"),
    ("v_exp", "XU"),
    ("v_log", "XU"),
)
_FUSED = re.compile(r"^(FFMA|v_(fma|fmac|mad|mac|pk_fma)_(f|legacy_f|mix))")


@dataclass(frozen=True, slots=True)
class Instruction:
    """op: mnemonic with its modifiers; target: index of the instruction a branch goes to."""

    op: str
    unit: str
    target: int | None = None
    falls_through: bool = True


def parse_sass(text: str) -> list[Instruction]:
    """Instructions of `cuobjdump -sass` output that holds one kernel; trailing padding dropped."""
    lines = [(int(m[1], 16), m[2]) for m in _SASS_LINE.finditer(text)]
    index = {address: i for i, (address, _) in enumerate(lines)}
    code = []
    for _, line in lines:
        line = _SASS_SCHEDULING.sub("", line)
        guard, _, rest = line.partition(" ") if line.startswith("@") else ("", "", line)
        op = rest.split()[0]
        stem = op.partition(".")[0]
        target = None
        # BRA.DIV leads to a copy for warps whose lanes have parted; kernels here never part them
        if stem in ("BRA", "BRX", "JMP") and ".DIV" not in op:
            found = _SASS_TARGET.search(rest)
            if found is None or (target := index.get(int(found[1], 16))) is None:
                raise ValueError(f"branch to an unknown place: {line!r}")
        conditional = bool(guard) or bool(re.search(r"\b!?U?P\d", rest.partition("0x")[0]))
        leaves = stem in ("EXIT", "RET") or target is not None
        code.append(Instruction(op, sass_unit(op), target, not leaves or conditional))
    last = max((i for i, one in enumerate(code) if one.op == "EXIT"), default=-1)
    while code and len(code) - 1 > last and code[-1].op == "NOP":
        code.pop()
    if code and code[-1].target == len(code) - 1:  # the branch to itself that guards the end
        code.pop()
    return code


def sass_unit(op: str) -> str:
    """Class of a SASS mnemonic."""
    stem = op.partition(".")[0]
    if stem in _SASS_CLASSES:
        return _SASS_CLASSES[stem]
    return "UNIFORM" if stem.startswith("U") else "ALU"


def parse_gcn(text: str) -> list[Instruction]:
    """Instructions of an AMD assembly listing that holds one kernel."""
    lines: list[str] = []
    labels: dict[str, int] = {}
    for raw in text.splitlines():
        line = raw.partition(";")[0].strip()
        if line.startswith((".section", ".amdgpu_metadata")) and lines:
            break
        if label := _GCN_LABEL.match(line):
            labels[label[1]] = len(lines)
        elif re.match(r"[a-z]+_\w+", line):
            lines.append(line)
    code = []
    for line in lines:
        op, _, operand = line.partition(" ")
        target = labels.get(operand.strip()) if op.startswith(("s_branch", "s_cbranch")) else None
        code.append(Instruction(op, gcn_unit(line), target, op not in ("s_branch", "s_endpgm")))
    return code


def gcn_unit(line: str) -> str:
    """Class of a GCN instruction; a DPP modifier makes any of them a lane exchange."""
    if "_dpp" in line or "row_" in line or "quad_perm" in line:
        return "SHFL"
    return next((unit for prefix, unit in _GCN_PREFIXES if line.startswith(prefix)), "ALU")


def count_fused(code: list[Instruction]) -> int:
    """Multiply-adds that round once; divisions and square roots are made of them too."""
    return sum(bool(_FUSED.match(one.op)) for one in code)


def _blocks(code: list[Instruction]) -> list[range]:
    """Basic blocks in order."""
    begins = {0}
    for i, one in enumerate(code):
        if one.target is not None:
            begins.add(one.target)
        if (one.target is not None or not one.falls_through) and i + 1 < len(code):
            begins.add(i + 1)
    edges = sorted(begins)
    return [range(a, b) for a, b in zip(edges, [*edges[1:], len(code)], strict=True)]


def _successors(code: list[Instruction], blocks: list[range]) -> dict[int, set[int]]:
    """Control flow among the blocks that the first one reaches."""
    at = {block.start: number for number, block in enumerate(blocks)}
    after: dict[int, set[int]] = {}
    todo = [0]
    while todo:
        number = todo.pop()
        if number not in after:
            last, end = code[blocks[number][-1]], blocks[number].stop
            goes_on = {end} if last.falls_through and end < len(code) else set()
            jumps = {last.target} if last.target is not None else set()
            after[number] = {at[index] for index in goes_on | jumps}
            todo += after[number]
    return after


def natural_loops(code: list[Instruction]) -> list[set[int]]:
    """Instruction indices of every loop: what can reach a back edge without leaving its header.

    An edge is a back edge when its target dominates its source, so code that the assembler moved
    out of line belongs to the loop it serves, and jumping back from it makes no loop.
    """
    blocks = _blocks(code)
    after = _successors(code, blocks)
    before = {b: {a for a in after if b in after[a]} for b in after}
    dominators = {b: set(after) for b in after} | {0: {0}}
    changed = True
    while changed:
        changed = False
        for block in sorted(after.keys() - {0}):
            new = {block} | set.intersection(*(dominators[b] for b in before[block]))
            changed |= new != dominators[block]
            dominators[block] = new
    bodies: dict[int, set[int]] = {}
    for block in after:
        for header in after[block] & dominators[block]:
            body, todo = bodies.setdefault(header, {header}), [block]
            while todo:
                if (one := todo.pop()) not in body:
                    body.add(one)
                    todo += before[one]
    return [{i for b in body for i in blocks[b]} for body in bodies.values()]


def main_loops(code: list[Instruction], passes: int) -> Counter[str]:
    """Instructions by class in the `passes` longest innermost loops together."""
    loops = natural_loops(code)
    inner = sorted((one for one in loops if not any(other < one for other in loops)), key=len)
    if len(inner) < passes:
        raise ValueError(f"the code has {len(inner)} innermost loops, the case counts {passes}")
    return by_unit([code[i] for body in inner[-passes:] for i in body])


def whole(code: list[Instruction]) -> Counter[str]:
    """Instructions by class that branches reach from the entry, each once.

    The slow path of a division, which is called, is left out.
    """
    blocks = _blocks(code)
    return by_unit([code[i] for block in _successors(code, blocks) for i in blocks[block]])


def by_unit(code: list[Instruction]) -> Counter[str]:
    """How many instructions each class has."""
    return Counter(one.unit for one in code)


def parse_ptxas(log: str) -> tuple[int, int]:
    """Registers per thread and spilled bytes (stores and loads) from `ptxas -v`."""
    registers, spills = _REGISTERS.search(log), _SPILLS.search(log)
    if registers is None or spills is None:
        raise ValueError(f"ptxas -v printed no register or spill counts: {log!r}")
    return int(registers[1]), int(spills[1]) + int(spills[2])


def parse_gcn_resources(text: str) -> tuple[int, int]:
    """Vector registers per thread and scratch bytes from the metadata of an AMD listing."""
    found = {}
    for name in ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size"):
        match = re.search(rf"\.{name}:\s+(\d+)", text)
        if match is None:
            raise ValueError(f"AMD listing without .{name}")
        found[name] = int(match[1])
    spilled = max(4 * found["vgpr_spill_count"], found["private_segment_fixed_size"])
    return found["vgpr_count"], spilled
