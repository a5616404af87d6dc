"""The ahead-of-time check of the kernels: what it reads, what it refuses, what it counts."""

import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "benchmarks" / "aot.py"
sys.path.insert(0, str(TOOL.parent))
machine, scan, bound, budget, report, compiling, cases, aot = (
    importlib.import_module(name)
    for name in (
        "_aot_machine",
        "_aot_scan",
        "_aot_bound",
        "_aot_budget",
        "_aot_report",
        "_aot_compile",
        "kernel_cases",
        "aot",
    )
)

# A loop at 0x40..0x90 whose rare block stands behind the first EXIT and jumps back into it.
LOOP_SASS = """
        code for sm_90a
                Function : decode_kernel
        .headerflags    @"EF_CUDA_TEXMODE_UNIFIED"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                 /* 0x00000a00ff017b82 */
                                                                          /* 0x000fe20000000800 */
        /*0010*/                   S2UR UR4, SR_CTAID.X ;                 /* 0x0000000000047919 */
        /*0020*/                   IMAD.MOV.U32 R2, RZ, RZ, RZ ;          /* 0x0 */
        /*0030*/                   MOV R3, 0x10 ;                         /* 0x0 */
        /*0040*/                   LDG.E.128 R4, desc[UR6][R8.64] ;       /* 0x0 */
        /*0050*/                   LOP3.LUT R5, R4, 0xff, RZ, 0xc0, !PT ; /* 0x0 */
        /*0060*/              @P1  BRA 0xc0  &req={0} ?trans10 ;          /* 0x0 */
        /*0070*/                   BRA.DIV UR4, 0xf0 ;                    /* 0x0 */
        /*0080*/                   ISETP.NE.AND P0, PT, R2, R3, PT ;      /* 0x0 */
        /*0090*/              @P0  BRA 0x40 ;                             /* 0x0 */
        /*00a0*/                   STG.E.128 desc[UR6][R8.64], R4 ;       /* 0x0 */
        /*00b0*/                   EXIT ;                                 /* 0x0 */
        /*00c0*/                   POPC R6, R5 ;                          /* 0x0 */
        /*00d0*/                   SHFL.IDX PT, R7, R6, RZ, 0x1f ;        /* 0x0 */
        /*00e0*/                   BRA 0x80 ;                             /* 0x0 */
        /*00f0*/                   WARPSYNC.COLLECTIVE R9, 0x100 ;        /* 0x0 */
        /*0100*/                   BRA 0x80 ;                             /* 0x0 */
        /*0110*/                   EXIT ;                                 /* 0x0 */
        /*0120*/                   BRA 0x120;                             /* 0x0 */
        /*0130*/                   NOP;                                   /* 0x0 */
"""
PTXAS = """
ptxas info    : Compiling entry function 'decode_kernel' for 'sm_90a'
ptxas info    : Function properties for decode_kernel
    24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 43 registers, used 1 barriers, 400 bytes cmem[0]
"""
NESTED_GCN = """
decode_kernel:                          ; @decode_kernel
.Lfunc_begin0:
        .cfi_sections .debug_frame
; %bb.0:
        s_load_dwordx4 s[0:3], s[4:5], 0x0
        v_mov_b32_e32 v1, 0
.LBB0_1:                                ; outer
        v_add_u32_e32 v1, 1, v1
.LBB0_2:                                ; inner
        global_load_dwordx4 v[4:7], v[2:3], off
        s_waitcnt vmcnt(0)
        v_add_u32_dpp v8, v4, v4 row_shr:1 row_mask:0xf bank_mask:0xf
        v_fmac_f32_e32 v9, v8, v8
        s_cbranch_scc1 .LBB0_2
; %bb.3:
        s_cbranch_vccnz .LBB0_1
        global_store_dwordx4 v[2:3], v[4:7], off
        s_endpgm
        .section        .rodata,"a",@progbits
        s_nop 0
        .amdgpu_metadata
    .private_segment_fixed_size: 0
    .sgpr_count:     16
    .vgpr_count:     21
    .vgpr_spill_count: 3
"""


def clean_run(*args, **options):
    """A child in which Triton is the compiler: this process may hold its interpreter."""
    command = ["env", "-u", "TRITON_INTERPRET", sys.executable, *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


def row(**changes):
    fields = {"case": "c", "kernel": "m.c_kernel", "target": "sm_90", "registers": 40}
    return compiling.Row(**{**fields, "per_element": {"ALU": 6.0, "LSU": 2.0}, **changes})


def test_a_loop_holds_its_out_of_line_code_and_nothing_else():
    code = machine.parse_sass(LOOP_SASS)
    assert code[-1].op == "EXIT"
    assert len(code) == 18
    assert machine.natural_loops(code) == [{4, 5, 6, 7, 8, 9, 12, 13, 14}]
    expected = {"LSU": 1, "ALU": 2, "CTRL": 4, "XU": 1, "SHFL": 1}
    assert machine.main_loops(code, 1) == expected


def test_a_branch_that_leads_nowhere_is_an_error():
    with pytest.raises(ValueError, match="BRA 0xc8"):
        machine.parse_sass(LOOP_SASS.replace("BRA 0xc0", "BRA 0xc8"))


def test_straight_line_code_counts_what_branches_reach_and_has_no_loop():
    code = machine.parse_sass(LOOP_SASS.replace("@P0  BRA 0x40", "@P0  BRA 0xa0"))
    assert machine.whole(code) == {"LSU": 3, "UNIFORM": 1, "IMAD": 1} | {
        "ALU": 3, "CTRL": 5, "XU": 1, "SHFL": 1,
    }  # fmt: skip
    with pytest.raises(ValueError, match="0 innermost loops, the case counts 1"):
        machine.main_loops(code, 1)


def test_the_main_loop_is_the_innermost_one():
    code = machine.parse_gcn(NESTED_GCN)
    assert len(code) == 11
    assert machine.main_loops(code, 1) == {"LSU": 1, "SYNC": 1, "SHFL": 1, "ALU": 1, "CTRL": 1}
    assert machine.count_fused(code) == 1


@pytest.mark.parametrize(
    ("op", "unit"),
    [
        ("LOP3.LUT", "ALU"),
        ("IADD3.X", "ALU"),
        ("IMAD.WIDE.U32", "IMAD"),
        ("FADD.FTZ", "FP32"),
        ("LDS.128", "LSU"),
        ("LDL.LU", "LOCAL"),
        ("MUFU.RCP", "XU"),
        ("ULOP3.LUT", "UNIFORM"),
        ("BAR.SYNC.DEFER_BLOCKING", "SYNC"),
    ],
)
def test_sass_instructions_go_to_the_unit_that_runs_them(op, unit):
    assert machine.sass_unit(op) == unit


def test_registers_and_spills_are_read_from_both_assemblers():
    assert machine.parse_ptxas(PTXAS) == (43, 36)
    assert machine.parse_gcn_resources(NESTED_GCN) == (21, 12)


def test_an_output_without_counts_is_an_error_and_not_zero():
    with pytest.raises(ValueError, match="no register or spill counts"):
        machine.parse_ptxas("ptxas info : 0 bytes gmem")
    with pytest.raises(ValueError, match="vgpr_count"):
        machine.parse_gcn_resources(".sgpr_count: 3")


@pytest.mark.parametrize(
    "line",
    [
        "fma.rn.f32 \t%r1, %r2, %r3, %r4;",
        "@%p1 fma.rn.f32x2 %rd1, %rd2, %rd3, %rd4;",
        "mad.rn.f32 %r1, %r2, %r3, %r4;",
        "fma.rn.bf16x2 %r1, %r2, %r3, %r4;",
        "div.full.f32 %r1, %r2, %r3;",
        "div.approx.f32 %r1, %r2, %r3;",
        "rcp.approx.ftz.f32 %r1, %r2;",
        "sqrt.approx.f32 %r1, %r2;",
        "ex2.approx.ftz.f32 %r1, %r2;",
        "@!%p2 add.ftz.f32 %r1, %r2, %r3;",
        "cvt.rmi.ftz.f32.f32 %r1, %r2;",
    ],
)
def test_ptx_that_may_round_otherwise_is_refused(line):
    assert scan.scan_ptx(f"\tmov.u32 %r9, 0;\n\t{line}\n")


def test_ptx_of_exact_arithmetic_passes():
    exact = ["mul.rn.f32", "add.f32", "div.rn.f32", "sqrt.rn.f32", "mad.lo.s32", "mad.wide.u32"]
    exact += ["cvt.rn.f32.u32", "cvt.rzi.s32.f32", "fns.b32", "max.f32"]
    assert scan.scan_ptx("".join(f"\t{op} \t%r1, %r2, %r3;\n" for op in exact)) == []


def test_only_a_declared_kind_is_let_through():
    ptx = "\tfma.rn.f32 %r1, %r2, %r3, %r4;\n\tdiv.full.f32 %r1, %r2, %r3;\n"
    assert scan.scan_ptx(ptx, {"fma": "the reason"}) == ["approx: div.full.f32 (x1)"]


def test_amd_fast_math_and_flushed_subnormals_are_refused():
    good = "  %3 = fdiv <1 x float> %1, %2\n", "\t.amdhsa_float_denorm_mode_32 3\n"
    assert scan.scan_amd(*good) == []
    assert scan.scan_amd("  %3 = fdiv nnan arcp float %1, %2\n", good[1])
    assert scan.scan_amd("  %3 = fdiv float %1, %2, !fpmath !5\n", good[1])
    assert scan.scan_amd("  %4 = call float @llvm.fma.f32(float %1)\n", good[1])
    assert scan.scan_amd(good[0], "\t.amdhsa_float_denorm_mode_32 0\n")


def test_the_bound_is_the_tightest_of_units_issue_and_memory():
    memory = bound.h200_bound({"ALU": 3.0, "LSU": 1.0}, raw_nbytes=2, moved_nbytes=4)
    assert (memory.limiter, memory.raw_gbps) == ("memory", pytest.approx(4300 / 4 * 2))
    assert memory.memory_share == 1
    per_lane = 132 * 1.98  # 1e9 lanes a second and SM lane
    alu = bound.h200_bound({"ALU": 24.0, "LSU": 1.0}, 2, 4)
    assert (alu.limiter, alu.raw_gbps) == ("ALU", pytest.approx(per_lane * 64 / 24 * 2))
    issue = bound.h200_bound({"ALU": 15.0, "IMAD": 15.0, "CTRL": 15.0}, 2, 2)
    assert (issue.limiter, issue.raw_gbps) == ("issue", pytest.approx(per_lane * 128 / 45 * 2))
    assert issue.memory_share == pytest.approx(per_lane * 128 / 45 / (4300 / 2))


def test_the_launches_of_one_call_add_their_times():
    def case(name):
        return cases.Case(name, "m.k", print, elements=1, raw_nbytes=2, moved_nbytes=4)

    listed = [case("call: one"), case("call: two"), case("single")]
    rows = [row(case=one.name) for one in listed] + [row(case="call: one", target="sm_80")]
    assert report.call_gbps(rows, listed) == {"call": pytest.approx(4300 / 4 * 2 / 2)}
    assert report.call_gbps(rows[1:], listed) == {}


def test_a_row_within_its_own_budget_passes():
    good = row()
    budgets = budget.updated({}, [good], ["c"])
    assert budget.problems(good, budgets) == []
    assert budgets["c"]["sm_90"]["registers"] == 40
    assert budgets["c"]["sm_90"]["issue_slots"] == 8.24


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"registers": 41}, "registers 41 exceeds its budget 40"),
        ({"shared_nbytes": 4}, "shared_nbytes 4 exceeds its budget 0"),
        ({"per_element": {"ALU": 8.3}}, "issue_slots 8.3 exceeds its budget 8.24"),
        ({"spill_nbytes": 8}, "spills 8 bytes"),
        ({"findings": ["fma: fma.rn.f32 (x1)"]}, "fma.rn.f32"),
        ({"stage": "llir", "error": "boom"}, "fails in llir: boom"),
        ({"target": "gfx942"}, "has no budget"),
    ],
)
def test_whatever_exceeds_the_budget_is_named(changes, message):
    budgets = budget.updated({}, [row()], ["c"])
    assert [message in found for found in budget.problems(row(**changes), budgets)] == [True]


def test_updating_keeps_other_targets_and_drops_what_is_unsound_or_gone():
    old = {"c": {"sm_80": {"registers": 8}}, "gone": {"sm_80": {"registers": 8}}}
    spilling = row(target="sm_100", spill_nbytes=8)
    new = budget.updated(old, [row(), spilling], ["c"])
    assert new.keys() == {"c"}
    assert new["c"].keys() == {"sm_80", "sm_90"}
    assert budget.orphans(old, ["c"]) == [
        "gone: a budget without a case; drop it with --update-budgets"
    ]


def test_kernels_are_discovered_by_name_where_they_are_defined(tmp_path, monkeypatch):
    package = tmp_path / "some_kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    head = "from triton.runtime.jit import JITFunction\n"
    define = "def {0}(x):\n    pass\n\n{0} = JITFunction({0})\n"
    helper = head + define.format("shared_kernel")
    (package / "_shared_triton.py").write_text(helper)
    (package / "other.py").write_text(helper)
    text = head + "from some_kernels.other import shared_kernel\n"
    text += define.format("encode_kernel") + define.format("helper") + "not_a_kernel = 3\n"
    (package / "new_triton.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = aot.discover(importlib.import_module("some_kernels"))
    assert found == {"new_triton.encode_kernel", "_shared_triton.shared_kernel"}


def test_a_kernel_without_a_case_and_a_case_without_a_kernel_fail():
    case = cases.Case("gather", "_gather_triton.gather_kernel", print, 1, 1, 1)
    assert aot.mismatches({case.kernel}, [case]) == []
    assert aot.mismatches({case.kernel, "new_triton.encode_kernel"}, [case]) == [
        "new_triton.encode_kernel: no case in benchmarks/kernel_cases"
    ]
    assert "does not exist" in aot.mismatches(set(), [case])[0]


def test_every_kernel_is_compiled_for_every_target():
    jobs = [(case.kernel, target) for case, target in aot.plan(aot.CASES, aot.TARGETS)]
    assert set(jobs) == set(itertools.product({case.kernel for case in aot.CASES}, aot.TARGETS))


def test_a_selection_that_selects_nothing_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(aot.triton.knobs.runtime, "interpret", False)
    assert aot.main(["--kernel", "no such kernel"]) == 2
    assert "no such kernel" in capsys.readouterr().err


def test_the_interpreter_is_refused_because_it_compiles_nothing(capsys, monkeypatch):
    monkeypatch.setattr(aot.triton.knobs.runtime, "interpret", True)
    assert aot.main([]) == 2
    assert "TRITON_INTERPRET" in capsys.readouterr().err


def test_the_exit_code_tells_whether_all_is_well(tmp_path, capsys, monkeypatch):
    case = cases.Case("c", "m.c_kernel", print, 1, 2, 4)
    compiled, kernels = [row()], {"m.c_kernel"}
    monkeypatch.setattr(aot.triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(aot, "CASES", [case])
    monkeypatch.setattr(aot, "BUDGETS", tmp_path / "budgets")
    monkeypatch.setattr(aot, "compile_all", lambda jobs: iter(compiled))
    monkeypatch.setattr(aot, "discover", lambda package: kernels)
    budget.save(aot.BUDGETS, {}, "3.6.0")
    only = ["--target", "sm_90"]
    assert aot.main(only) == 1
    assert "c sm_90: has no budget" in capsys.readouterr().out
    assert aot.main([*only, "--update-budgets"]) == 0
    assert aot.main(only) == 0
    kernels.add("m.new_kernel")
    assert aot.main(only) == 1
    assert "m.new_kernel: no case" in capsys.readouterr().out
    kernels.remove("m.new_kernel")
    compiled[0].spill_nbytes = 8
    assert aot.main([*only, "--update-budgets"]) == 1


def test_every_exemption_has_a_known_kind_and_a_reason():
    for case in cases.CASES:
        assert set(case.allow) <= scan.KINDS
        assert all(len(reason.split()) > 3 for reason in case.allow.values())


def test_the_page_shows_every_case_in_its_generated_section():
    page = (ROOT / "docs" / "kernels.md").read_text()
    section = page.partition(report.BEGIN)[2].partition(report.END)[0]
    missing = [case.name for case in cases.CASES if section.count(f"| {case.name} |") != 2]
    assert missing == []
    assert report.replace_section(page, "new").count("new\n\n" + report.END) == 1


def test_some_lines_are_renewed_and_the_others_stay():
    def body(first: str, second: str) -> str:
        return f"| case | GB/s |\n|---|---|\n{first}\n\nText:\n\n| case | sm |\n|---|---|\n{second}"

    old = body("| a | 1 |\n| b | 2 |", "| a | 3 |")
    page = f"head{report.BEGIN}\n\n{old}\n\n{report.END}tail"
    new = body("| b | 9 |\n| c | 4 |", "| c | 5 |")
    wanted = body("| a | 1 |\n| b | 9 |\n| c | 4 |", "| a | 3 |\n| c | 5 |")
    assert report.merge_tables(page, new) == wanted


def test_a_page_without_the_section_is_refused():
    with pytest.raises(ValueError, match="no section"):
        report.replace_section("text", "body")


def test_the_gather_kernel_compiles_within_its_budget_on_nvidia_and_amd(tmp_path):
    out = tmp_path / "rows.json"
    only = ["--kernel", "gather", "--target", "sm_90", "--target", "gfx942", "--json", str(out)]
    done = clean_run(str(TOOL), *only)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())
    assert [r["target"] for r in rows] == ["sm_90", "gfx942"]
    for r in rows:
        assert r["stage"] == ""
        assert r["spill_nbytes"] == 0
        assert r["registers"] > 8
        assert r["per_element"]["LSU"] > 0


BAD_KERNELS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch, triton, triton.language as tl
from _aot_compile import Job
from kernel_cases import Case

@triton.jit
def muladd_kernel(x, T: tl.constexpr):
    i = tl.arange(0, T)
    v = tl.load(x + i)
    tl.store(x + i, v * v + v)

@triton.jit
def div_kernel(x, T: tl.constexpr):
    i = tl.arange(0, T)
    v = tl.load(x + i)
    tl.store(x + i, tl.div_rn(v, v + 1.0) * v)

@triton.jit
def wrong_kernel(x, T: tl.constexpr):
    tl.static_assert(T == 1, "T is not one")

x = torch.empty(256)
launches = {
    "muladd": lambda: muladd_kernel[(1,)](x, T=256),
    "two roundings": lambda: muladd_kernel[(1,)](x, T=256, enable_fp_fusion=False),
    "div": lambda: div_kernel[(1,)](x, T=256),
    "wrong": lambda: wrong_kernel[(1,)](x, T=256),
    "nothing": lambda: None,
    "abort": os.abort,
}
kernels = {"two roundings": "muladd", "abort": "div", "nothing": "div"}
for name, launch in launches.items():
    for target in ("sm_80", "gfx942") if name in ("muladd", "two roundings", "div") else ("sm_80",):
        kernel = f"{__name__}.{kernels.get(name, name)}_kernel"
        row = Job.start(Case(name, kernel, launch, 256, 4, 8), target).finish()
        print(name, target, row.stage, row.error, row.findings, sep="|")
"""


def test_contraction_errors_and_a_dying_compiler_are_each_told(tmp_path):
    script = tmp_path / "bad_kernels.py"
    script.write_text(BAD_KERNELS)
    done = clean_run(str(script), str(TOOL.parent))
    lines = [line.split("|", 3) for line in done.stdout.splitlines()]
    assert len(lines) == 9, done.stdout + done.stderr
    told = {(name, target): (stage, rest) for name, target, stage, rest in lines}
    for target in ("sm_80", "gfx942"):
        assert told["muladd", target][0] == ""
        assert "fma" in told["muladd", target][1]
        assert told["two roundings", target] == ("", "|[]")
        assert told["div", target] == ("", "|[]")
    stage, rest = told["wrong", "sm_80"]
    assert (stage, "T is not one" in rest) == ("frontend", True)
    stage, rest = told["nothing", "sm_80"]
    assert (stage, "launches nothing" in rest) == ("launch", True)
    assert "exit code -6" in told["abort", "sm_80"][1]
