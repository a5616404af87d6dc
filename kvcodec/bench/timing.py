"""Times of repeated calls, on the host's clock or a GPU's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

ROUNDS = 8  # turns of every call
MOST = 100  # repeats in a turn


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a call over its repeats: percentiles of the wall clock, and the best.

    cpu: median of the processor time of all threads; on a machine with other load, where a call
        waits for its core, it is the steadier figure. None on a GPU.
    """

    p20: float
    p50: float
    p80: float
    best: float
    repeats: int
    cpu: float | None


def summarize(seconds: Sequence[float], cpu: float | None = None) -> Timing:
    """Timing of measured calls."""
    p20, p50, p80 = np.percentile(seconds, [20, 50, 80]).tolist()
    return Timing(p20, p50, p80, min(seconds), len(seconds), cpu)


@dataclass(frozen=True, slots=True)
class Work:
    """A call to time; `before` runs ahead of each, outside the timing."""

    call: Callable[[], object]
    before: Callable[[], object] = lambda: None


def time_host(
    works: Sequence[Work],
    seconds: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Timing]:
    """Repeat every call for so many seconds, `ROUNDS` times at least.

    Calls take turns, a slice of each in every round: when other jobs slow the machine down for a
    while, all calls are slow for that while, and their ratios hold.
    """
    for work in works:
        work.before()
        work.call()
    times: list[list[float]] = [[] for _ in works]
    processor: list[list[float]] = [[] for _ in works]
    for turn in range(ROUNDS):
        for i, work in enumerate(works):
            spent, repeats = 0.0, 0
            while repeats == 0 or (spent < seconds / ROUNDS and repeats < MOST):
                work.before()
                start, cpu = time.perf_counter(), time.process_time()
                work.call()
                times[i].append(time.perf_counter() - start)
                processor[i].append(time.process_time() - cpu)
                spent += times[i][-1]
                repeats += 1
        progress(turn + 1, ROUNDS)
    return [summarize(of, float(np.median(cpu))) for of, cpu in zip(times, processor, strict=True)]


def time_cuda(call: Callable[[int], object], seconds: float) -> Timing:
    """Repeat `call(i)` on the current stream between events, for about so many seconds.

    Nothing waits between the repeats: the host runs ahead of the GPU where it can, as it does in
    an engine. `call` rotates over its inputs by i.
    """
    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    start = time.perf_counter()
    call(3)
    torch.cuda.synchronize()
    repeats = int(min(200, max(10, seconds / max(time.perf_counter() - start, 1e-6))))
    event: Callable[..., torch.cuda.Event] = torch.cuda.Event  # untyped in torch
    events = [[event(enable_timing=True) for _ in "ab"] for _ in range(repeats)]
    for i, (before, after) in enumerate(events):
        before.record()
        call(i)
        after.record()
    torch.cuda.synchronize()
    return summarize([before.elapsed_time(after) / 1e3 for before, after in events])
