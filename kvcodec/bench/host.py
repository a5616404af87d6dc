"""Codecs on the host: a batch of blocks per call, verified, then timed.

A call takes 16 MiB of blocks by default: more than the caches nearest to a core hold, and about
what an engine evicts at once; it may still lie in a large shared cache. Rows, target and workspace
are used again, as an engine would, and the same batch is repeated. Codecs take turns; the figure is
the median over all turns.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kvcodec.bench.data import Dataset
from kvcodec.bench.report import COPY, Row, make_row
from kvcodec.bench.timing import Timing, Work, time_host
from kvcodec.bits import int_view
from kvcodec.block import EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.metrics import sqnr_db
from kvcodec.registry import IMPLEMENTATIONS, find_kernel, load_kernel, why_unavailable


@dataclass(frozen=True, slots=True)
class Job:
    """A call to time, and what makes a row of its timing."""

    work: Work
    row: Callable[[Timing], Row]


def resolve_impl(codec: Codec, impl: str, device: torch.device) -> str:
    """Name of the implementation that serves; raises as a call would if there is none."""
    kernel = find_kernel(codec, impl, device)
    if impl != "auto":
        return impl
    runs = [i for i in IMPLEMENTATIONS if why_unavailable(codec, i, device) is None]
    return next(i for i in runs if load_kernel(codec, i) == kernel)


def judge(codec: Codec, blocks: torch.Tensor, decoded: torch.Tensor) -> tuple[float | None, str]:
    """SQNR in dB (None: bit-equal), and what is wrong with a decoded batch, "" if nothing is."""
    if codec.lossless:
        equal = torch.equal(int_view(blocks), int_view(decoded))
        return None, "" if equal else "blocks did not come back bit for bit"
    if not decoded.isfinite().all():
        return None, "decoded values are not finite"
    quality = sqnr_db(blocks, decoded)
    return quality, "" if quality > 0 else f"the error is larger than the values ({quality:.1f} dB)"


def copy_jobs(data: Dataset, threads: int) -> list[Job]:
    """Ceilings: a copy of the whole batch, and one call for each block."""
    source, target = int_view(data.blocks), torch.zeros_like(int_view(data.blocks))
    pairs = list(zip(source, target, strict=True))

    def each() -> None:
        for block, into in pairs:
            into.copy_(block)

    calls = {COPY: lambda: target.copy_(source), "copy (per block)": each}
    return [
        Job(
            Work(call),
            partial(
                make_row, name, "copy", "torch", data.name, data.spec, len(source), threads=threads
            ),
        )
        for name, call in calls.items()
    ]


def codec_jobs(
    codec: Codec, data: Dataset, *, impl: str, threads: int, call_seconds: float
) -> list[Job] | str:
    """Encode and decode, or what was wrong with the result.

    A codec so slow that the batch would take over `call_seconds` a call gets fewer blocks.
    """
    device = torch.device("cpu")
    impl = resolve_impl(codec, impl, device)
    data = data.take(affordable(codec, data, impl, threads, call_seconds))
    spec, n = data.spec, len(data.blocks)
    out, target = EncodedBlocks.empty(codec, spec, n), torch.zeros_like(data.blocks)
    ids = torch.arange(n)
    workspace = torch.zeros(codec.workspace_nbytes(spec, n, impl), dtype=torch.uint8)
    options: dict[str, Any] = {
        "positions": data.positions,
        "workspace": workspace,
        "impl": impl,
        "num_threads": threads,
    }

    def compress() -> None:
        codec.compress(data.blocks, ids, out=out, **options)

    def decompress() -> None:
        codec.decompress(out, target, ids, **options)

    compress()
    decompress()
    quality, wrong = judge(codec, data.blocks, target)
    if wrong:
        return wrong
    ratio = n * spec.nbytes / out.total_nbytes()
    return [
        Job(
            Work(call),
            partial(
                make_row, label(codec), op, impl, data.name, spec, n,
                ratio=ratio, threads=threads, sqnr_db=quality,
            ),
        )
        for op, call in (("encode", compress), ("decode", decompress))
    ]  # fmt: skip


def label(codec: Codec) -> str:
    """A codec's spec string, without the hash of the tables that it holds."""
    return re.sub(r"(:|,)tables=[0-9a-f]+(?:,|$)", r"\1", str(codec)).rstrip(":,")


def measure(
    jobs: Sequence[Job],
    seconds: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Row]:
    """Time jobs in turns; their rows, in order."""
    timings = time_host([job.work for job in jobs], seconds, progress)
    return [job.row(timing) for job, timing in zip(jobs, timings, strict=True)]


def affordable(codec: Codec, data: Dataset, impl: str, threads: int, call_seconds: float) -> int:
    """Blocks of a call that stay within `call_seconds` each way, at least one."""
    options: dict[str, Any] = {"impl": impl, "num_threads": threads}
    cache, at = data.blocks[:1], data.positions[:1]
    spent = math.inf
    for _ in range(3):  # the first call loads and compiles
        begin = time.perf_counter()
        rows = codec.compress(cache, [0], positions=at, **options)
        codec.decompress(rows, torch.zeros_like(cache), [0], positions=at, **options)
        spent = min(spent, time.perf_counter() - begin)
    return max(1, min(len(data.blocks), int(2 * call_seconds / spent)))
