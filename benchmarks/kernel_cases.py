"""Launches that stand for every Triton kernel in the ahead-of-time check (benchmarks/aot.py).

Each case calls the library's launch code on CPU tensors; nothing runs. A kernel without a case
fails the check.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from kvcodec import BlockSpec, EncodedBlocks, get_codec, rans
from kvcodec.registry import load_kernel


@dataclass(frozen=True, slots=True)
class Case:
    """One launch of one kernel, and what its figures are counted in.

    name: unique; the budget's key. Launches that follow each other share what stands before ": ".
    kernel: `<module>.<function>` in kvcodec.kernels.
    launch: calls library code that launches the kernel.
    elements: elements that the whole launch handles.
    raw_nbytes: bytes of one element in the cache.
    moved_nbytes: bytes read and written for one element, tables and lane states included.
    per_iteration: elements of one iteration of one program's main loop; 0 counts whole programs.
    passes: how many of the innermost loops, longest first, handle every element.
    allow: kinds of findings (see _aot_scan) that are right here, and why.
    """

    name: str
    kernel: str
    launch: Callable[[], object]
    elements: int
    raw_nbytes: float
    moved_nbytes: float
    per_iteration: int = 0
    passes: int = 1
    allow: Mapping[str, str] = field(default_factory=dict)


NUM_ROWS = 256
CACHE_NBYTES = 5 << 30  # as large as caches are, beyond 32-bit offsets; reserved, never touched
EXPONENT_BITS = 2.8  # what a coded exponent takes on average
GATHER_WORDS = 2690  # 8-byte words in a row of about the size that split makes of a 32 KiB block

BF16 = BlockSpec(16, 8, 128, torch.bfloat16)  # 32 KiB: 64 lanes
E4M3 = BlockSpec(32, 8, 128, torch.float8_e4m3fn)
SMALL = BlockSpec(16, 1, 96, torch.float16)  # 3 KiB: 32 lanes; a head_dim that fills no tile
MLA = BlockSpec(64, 1, 576, torch.bfloat16)


def run(codec_name: str, spec: BlockSpec, decode: bool) -> None:
    """Launch a batch between a large contiguous plane and rows; small blocks are partly filled."""
    codec = get_codec(codec_name)
    kernel = load_kernel(codec, "triton")
    cache = torch.empty(CACHE_NBYTES // spec.nbytes, *spec.shape, dtype=spec.dtype)
    ids = torch.arange(NUM_ROWS)
    rows = EncodedBlocks.empty(codec, spec, NUM_ROWS)
    valid = torch.full((NUM_ROWS,), 9, dtype=torch.int32) if spec is SMALL else None
    if decode:
        kernel.decompress(rows, cache, ids, positions=None, workspace=None, num_threads=None)
    else:
        kernel.compress(cache, ids, valid, rows, positions=None, workspace=None, num_threads=None)


def gather() -> None:
    from kvcodec.kernels._gather_triton import gather

    rows = torch.empty(NUM_ROWS, 8 * GATHER_WORDS, dtype=torch.uint8)
    offsets = torch.empty(NUM_ROWS + 1, dtype=torch.int64)
    gather(rows, offsets, torch.empty(rows.numel(), dtype=torch.uint8))


def single(
    call: str,
    codec: str,
    kernel: str,
    spec: BlockSpec,
    moved_nbytes: float,
    *,
    per_iteration: int = 0,
    passes: int = 1,
) -> Case:
    """A call of one launch; `kernel` says which way."""
    launch = functools.partial(run, codec, spec, "decode" in kernel)
    elements, raw_nbytes = NUM_ROWS * spec.numel, spec.dtype.itemsize
    name = f"{codec} {call}"
    return Case(name, kernel, launch, elements, raw_nbytes, moved_nbytes, per_iteration, passes)


def split(label: str, spec: BlockSpec) -> list[Case]:
    """The three launches of split either way, full blocks and no raw fallback assumed."""
    n, block = spec.numel, spec.nbytes
    fmt, lanes = spec.format, rans.num_lanes(spec.nbytes)
    words, states, table = n * EXPONENT_BITS / 8, 4 * lanes, 4 << fmt.exponent_bits
    row = words + states + n * fmt.raw_bits / 8
    slots, prefixes = 4 * rans.TOTAL, 64 * -(-n // 1024)  # of the tiles that only look at a prefix
    # bytes that a launch moves for a block, and elements of one iteration of its loop
    steps = {
        "count": (block + table, 2048 if n > 2048 else 0),  # a small block is one iteration
        "encode": (block + table + words + states, 4 * lanes),
        "write": (block + table + words + states + row, 0),
        "slots": (slots, n // 16),  # an iteration is a symbol, and a block has about 16
        "decode": (row + slots + block, 4 * lanes),
        "fill": (prefixes, 0),
    }
    return [
        Case(
            f"split {label} {'decompress' if step in DECODES else 'compress'}: {step}",
            f"_split_{'decode' if step in DECODES else 'encode'}_triton.{step}_kernel",
            functools.partial(run, "split", spec, step in DECODES),
            NUM_ROWS * n,
            spec.dtype.itemsize,
            moved / n,
            per_iteration,
        )
        for step, (moved, per_iteration) in steps.items()
    ]


DECODES = ("slots", "decode", "fill")
FP8_ROWS = "_fp8_encode_triton.encode_rows_kernel"
FP8_GROUPS = "_fp8_encode_triton.encode_groups_kernel"
FP8_DECODE = "fp8_triton.decode_kernel"

CASES = [
    Case(
        "gather",
        "_gather_triton.gather_kernel",
        gather,
        elements=NUM_ROWS * GATHER_WORDS,  # elements are words here
        raw_nbytes=8,
        moved_nbytes=16,
    ),
    single("bf16 compress", "raw", "raw_triton.encode_kernel", BF16, 4),
    single("bf16 decompress", "raw", "raw_triton.decode_kernel", BF16, 4),
    single("bf16 compress", "fp8", FP8_ROWS, BF16, 3 + 4 / 128),
    single("bf16 decompress", "fp8", FP8_DECODE, BF16, 3 + 4 / 128),
    single("fp16 compress", "fp8:dtype=e5m2", FP8_ROWS, SMALL, 3 + 4 / 96),
    single("fp16 decompress", "fp8:dtype=e5m2", FP8_DECODE, SMALL, 3 + 4 / 96),
    single("bf16 compress", "fp8:scale=head", FP8_GROUPS, BF16, 3),
    single("mla compress", "fp8:scale=block", FP8_GROUPS, MLA, 3, per_iteration=2048, passes=2),
    single("mla decompress", "fp8:scale=block", FP8_DECODE, MLA, 3),
    *split("bf16", BF16),
    *split("e4m3", E4M3),
    *split("fp16 small", SMALL),
]
