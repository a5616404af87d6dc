"""A whole benchmark: which codecs on which data, one after the other."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from kvcodec.bench import device as gpu
from kvcodec.bench import host
from kvcodec.bench.data import Dataset
from kvcodec.bench.machine import describe
from kvcodec.bench.report import Report, Row
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
) -> None:
    """Append a row for each codec, dataset and operation to the report."""
    total = len(data) * (1 + len(codecs))
    done = 0
    with _threads(threads):
        for dataset in data:
            progress(f"copy, {dataset.name}", done, total)
            if device.type == "cuda":
                copies = gpu.bench_copies(dataset, device, effort.seconds)
            else:
                copies = host.bench_copy(dataset, threads, effort.seconds)
            report.rows += copies
            ceiling = copies[0].gbps
            done += 1
            for codec in codecs:
                progress(f"{codec}, {dataset.name}", done, total)
                got = _one(codec, dataset, impl, device, threads, effort, ceiling)
                if isinstance(got, str):
                    report.failed[f"{codec}, {dataset.name}"] = got
                else:
                    report.rows += got
                done += 1


def _one(
    codec: Codec,
    dataset: Dataset,
    impl: str,
    device: torch.device,
    threads: int,
    effort: Effort,
    ceiling: float,
) -> list[Row] | str:
    if device.type == "cuda":
        return gpu.bench_codec(
            codec, dataset, impl=impl, device=device, seconds=effort.seconds, copy_gbps=ceiling
        )
    return host.bench_codec(
        codec,
        dataset,
        impl=impl,
        threads=threads,
        seconds=effort.seconds,
        call_seconds=effort.call_seconds,
        copy_gbps=ceiling,
    )


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
