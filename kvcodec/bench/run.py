"""A whole benchmark: which codecs on which data, one after the other."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from kvcodec.bench import device as gpu
from kvcodec.bench import host
from kvcodec.bench.data import Dataset
from kvcodec.bench.machine import describe
from kvcodec.bench.report import Report, with_copy_percent
from kvcodec.bench.timing import ROUNDS
from kvcodec.codec import Codec
from kvcodec.errors import InvalidInputError, KVCodecError
from kvcodec.registry import codec_class, codec_names, find_kernel, get_codec


@dataclass(frozen=True, slots=True)
class Effort:
    """Seconds of repeats for each figure, and most seconds of one call before blocks are cut."""

    seconds: float
    call_seconds: float


FULL, QUICK = Effort(1.0, 0.5), Effort(0.2, 0.05)
Progress = Callable[[str, int, int], None]
T = TypeVar("T")


def choose_codecs(
    specs: Sequence[str], data: Sequence[Dataset], impl: str, device: torch.device
) -> tuple[list[Codec], dict[str, str]]:
    """Codecs to run, and those left out with the reason.

    A codec that was asked for must run: what would leave it out raises instead. Without `specs`,
    every registered codec with default parameters.
    """
    chosen: list[Codec] = []
    skipped: dict[str, str] = {}
    for text in specs or codec_names():
        try:
            codec = get_codec(text if specs else (codec_class(text).examples or (text,))[0])
            if codec.needs_profile:
                raise InvalidInputError(f"{codec.name}: needs a profile of a model")
            for dataset in data:
                codec.require(dataset.spec)
            find_kernel(codec, impl, device)
        except KVCodecError as error:
            if specs:
                raise
            skipped[text] = str(error)
            continue
        if codec not in chosen:
            chosen.append(codec)
    return chosen, skipped


def run(
    codecs: Sequence[Codec],
    data: Sequence[Dataset],
    *,
    impl: str,
    device: torch.device,
    threads: int,
    effort: Effort,
    report: Report,
    progress: Progress = lambda what, done, total: None,
    also: Callable[[Dataset], Sequence[host.Job]] = lambda dataset: (),
) -> None:
    """Append a row for each codec, dataset and operation to the report.

    also: more jobs of the host on a dataset, timed in turns with ours.
    """
    steps = 1 + len(codecs) + (0 if device.type == "cuda" else ROUNDS)
    for i, dataset in enumerate(data):

        def say(what: str, step: int, name: str = dataset.name, begin: int = i * steps) -> None:
            progress(f"{what}, {name}", begin + step, len(data) * steps)

        with _threads(threads):
            say("copy", 0)
            if device.type == "cuda":
                rows = gpu.bench_copies(dataset, device, effort.seconds)
                for codec in _each(codecs, say):
                    rows += _kept(
                        gpu.bench_codec(
                            codec, dataset, impl=impl, device=device, seconds=effort.seconds
                        ),
                        codec, dataset, report,
                    )  # fmt: skip
            else:
                jobs = host.copy_jobs(dataset, threads)
                for codec in _each(codecs, say):
                    jobs += _kept(
                        host.codec_jobs(
                            codec, dataset,
                            impl=impl, threads=threads, call_seconds=effort.call_seconds,
                        ),
                        codec, dataset, report,
                    )  # fmt: skip
                jobs += also(dataset)
                rows = host.measure(jobs, effort.seconds, partial(_turn, say, steps))
        report.rows += with_copy_percent(rows)


def _each(codecs: Sequence[Codec], say: Callable[[str, int], None]) -> Iterator[Codec]:
    for step, codec in enumerate(codecs, 1):
        say(host.label(codec), step)
        yield codec


def _turn(say: Callable[[str, int], None], steps: int, turn: int, turns: int) -> None:
    say(f"turn {turn} of {turns}", steps - turns + turn)


def _kept(got: list[T] | str, codec: Codec, dataset: Dataset, report: Report) -> list[T]:
    """What was measured or prepared; nothing, and a line in the report, where it was wrong."""
    if not isinstance(got, str):
        return got
    report.failed[f"{host.label(codec)}, {dataset.name}"] = got
    return []


@contextmanager
def _threads(threads: int) -> Iterator[None]:
    """Torch's own threads, for the copies and the vector implementations."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def new_report(where: torch.device, **settings: Any) -> Report:
    """An empty report that says when, where and how."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return Report({"date": now.date().isoformat(), **describe(where), **settings})
