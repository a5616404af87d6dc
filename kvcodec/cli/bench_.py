"""`kvcodec bench`: how fast the codecs are on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvcodec.cli.console import console
from kvcodec.errors import InvalidInputError, KVCodecError
from kvcodec.registry import IMPLEMENTATIONS

BATCH_MIB = {"cpu": 16, "cuda": 64}
EPILOG = """\b
Examples:
  kvcodec bench --quick
  kvcodec bench --codec split --codec fp8:scale=head --threads 4
  kvcodec bench --data cache.safetensors --block-nbytes 24576 --json result.json
  kvcodec bench --impl reference --codec split
  kvcodec bench --device cuda --json gpu.json

GB/s are 1e9 raw bytes per second, at the median of repeated calls. Other load on the machine makes
them smaller: compare within one run. docs/benchmarks.md says what is timed, and what --data reads.
"""


def benchmark(
    codec: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help="Repeatable.  [default: every codec that can run]"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A captured cache (safetensors) instead of noise."),
    ] = None,
    block_nbytes: Annotated[
        int, typer.Option("--block-nbytes", metavar="N", help="Raw bytes of a block, at most.")
    ] = 65536,
    threads: Annotated[int, typer.Option(metavar="N", help="Host threads of a call.")] = 1,
    impl: Annotated[
        str, typer.Option(metavar="IMPL", help=f"auto, {', '.join(IMPLEMENTATIONS)}.")
    ] = "auto",
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu or cuda.")] = "cpu",
    batch_mib: Annotated[
        int | None,
        typer.Option(metavar="N", help="Raw MiB a call.  [default: 16; 64 on a GPU]"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer repeats: under a minute, more noise.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the result to this file.")
    ] = None,
) -> None:
    """Measure how fast codecs encode and decode here, and their ratio.

    Every codec is first checked: what comes back must equal what went in, or, for a lossy codec, be
    near it. A copy of the same bytes is timed beside them, as the ceiling.
    """
    import torch

    from kvcodec.bench import device as gpu
    from kvcodec.bench import run
    from kvcodec.bench.data import load_file, synthetic
    from kvcodec.bench.report import noise, table
    from kvcodec.eval.output import check_writable, write_file

    for name, value in (("block-nbytes", block_nbytes), ("threads", threads)):
        if value < 1:
            raise InvalidInputError(f"--{name} is {value}, wanted at least 1")
    if impl not in ("auto", *IMPLEMENTATIONS):
        known = ", ".join(IMPLEMENTATIONS)
        raise InvalidInputError(f"--impl is {impl!r}, wanted auto or one of {known}")
    where = torch.device("cpu") if device == "cpu" else gpu.check_device(device)
    mib = BATCH_MIB[where.type] if batch_mib is None else batch_mib
    if mib < 1:
        raise InvalidInputError(f"--batch-mib is {mib}, wanted at least 1")
    if json_file is not None:
        check_writable(json_file)
    sets = (
        [synthetic(block_nbytes, mib << 20)]
        if data is None
        else load_file(data, block_nbytes, mib << 20)
    )
    if where.type == "cuda":  # a captured cache may be smaller than a batch
        sets = [s.take(max(1, (mib << 20) // s.spec.nbytes)) for s in sets]
    codecs, skipped = run.choose_codecs(codec or (), sets, impl, where)
    if not codecs:
        raise InvalidInputError(f"no codec can run: {next(iter(skipped.values()))}")
    report = run.new_report(
        where, device=str(where), threads=threads, impl=impl, quick=quick, batch_mib=mib
    )
    report.skipped |= skipped
    terminal = console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=terminal,
        disable=not terminal.is_terminal,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)
        run.run(
            codecs, sets, impl=impl, device=where, threads=threads,
            effort=run.QUICK if quick else run.FULL, report=report,
            progress=lambda what, n, total: bar.update(
                task, description=what, completed=n, total=total
            ),
        )  # fmt: skip
    out = console()
    settings = report.settings
    out.print(
        f"{settings['gpu'] or settings['cpu']}, {threads} threads, torch "
        f"{settings['versions']['torch']}; blocks of "
        f"{', '.join(sorted({str(s.spec.nbytes) for s in sets}))} bytes, {mib} MiB a call",
        soft_wrap=True,
    )
    out.print()
    out.print(table(report))
    for name, reason in report.skipped.items():
        out.print(f"not run: {name}: {reason}", soft_wrap=True)
    if warning := noise(report.rows):
        out.print(warning, soft_wrap=True)
    if json_file is not None:
        write_file(json_file, (json.dumps(report.to_json(), indent=2) + "\n").encode())
    if report.failed:
        wrong = "; ".join(f"{name}: {reason}" for name, reason in report.failed.items())
        raise KVCodecError(f"wrong results have no figures: {wrong}")
