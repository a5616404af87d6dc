"""What a case is, and the shapes and launches that the cases of every codec share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from kvcodec import BlockSpec, Codec, EncodedBlocks, get_codec
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

BF16 = BlockSpec(16, 8, 128, torch.bfloat16)  # 32 KiB: 64 lanes
E4M3 = BlockSpec(32, 8, 128, torch.float8_e4m3fn)
SMALL = BlockSpec(16, 1, 96, torch.float16)  # 3 KiB: 32 lanes; a head_dim that fills no tile
MLA = BlockSpec(64, 1, 576, torch.bfloat16)


def run(codec_name: str | Codec, spec: BlockSpec, decode: bool) -> None:
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
