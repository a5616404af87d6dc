"""`kvcodec eval`: a model's cache through codecs, and what each costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvcodec.cli.console import console
from kvcodec.errors import InvalidInputError
from kvcodec.plan import Plan
from kvcodec.profile import Profile

DEFAULT_CODECS = (
    "raw",
    "split:model=centred",
    "fp8",
    "turboangle-k128v64",
    "nvfp4",
    "key=split,value=nvfp4",
    "turboquant",
    "kivi-4",
)
EPILOG = """\b
Examples:
  kvcodec eval
  kvcodec eval --codec split --codec fp8:dtype=e5m2,scale=head
  kvcodec eval --codec key=split,value=fp8,first_blocks=1 --codec @plan.json
  kvcodec eval --model ./my-model --text book.txt --window 4096 --prefix 3072 --tokens 65536
  kvcodec eval --codec split:model=context --profile smollm2.profile
  kvcodec eval --window 2048 --prefix 0 --block-size 16 --profile smollm2.profile \
      --codec nvfp4 --codec nvfp4:center=profile,first_blocks=1
  kvcodec eval --json result.json --plot result.png

A codec is a preset, a codec with parameters, key=SPEC,value=SPEC, or a plan as JSON, inline or in
a file after @. `kvcodec list` shows what there is; docs/evaluation.md says what is measured.
"""


def evaluate_codecs(
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL", help="smollm2-135m (packaged), a local directory, or a hub id."
        ),
    ] = "smollm2-135m",
    text: Annotated[
        str,
        typer.Option(metavar="FILE", help="A UTF-8 file, or lee-news (packaged news articles)."),
    ] = "lee-news",
    codec: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help=f"Repeatable.  [default: {'; '.join(DEFAULT_CODECS)}]"),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="PROFILE", help="What kvcodec calibrate wrote, for codecs that need it."
        ),
    ] = None,
    window: Annotated[
        int, typer.Option(metavar="N", help="Tokens of a window, BOS included.")
    ] = 1024,
    prefix: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Tokens of a window that are compressed; 0: all, while the model runs.",
        ),
    ] = 512,
    block_size: Annotated[int, typer.Option(metavar="N", help="Tokens of a block.")] = 64,
    tokens: Annotated[
        int, typer.Option(metavar="N", help="Score at most so many; 0 is the whole text.")
    ] = 4096,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="A torch device; auto prefers a GPU.")
    ] = "auto",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the result to this file.")
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", metavar="OUT", help="Draw bits against KL into this PNG."),
    ] = None,
) -> None:
    """Measure what codecs cost a model.

    Bits per element, perplexity, KL divergence and agreement with the uncompressed run, speed.
    The prefix of every window goes through encode and decode block by block; the rest of the
    window is scored through the cache that comes back. With --prefix 0 every key and value does,
    while the model runs: harsher, and what papers mostly report.
    """
    # Everything that can be refused is refused before a model is loaded.
    plans = {spec: parse_plan(spec) for spec in codec or DEFAULT_CODECS}
    tables = None if profile is None else Profile.load(profile)
    if tables is not None:
        plans = {spec: plan.bind(tables) for spec, plan in plans.items()}
    from kvcodec.eval import plot
    from kvcodec.eval.output import check_writable, write_file
    from kvcodec.eval.passages import Cut
    from kvcodec.eval.text import load_text

    cut = Cut(window, prefix, block_size, tokens or None)
    for path in filter(None, (json_file, plot_file)):
        check_writable(path)
    if plot_file is not None:
        plot.require_matplotlib()
    source = load_text(text)

    from kvcodec.eval.model import load_model
    from kvcodec.eval.run import evaluate
    from kvcodec.eval.table import heading, table

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
        task = bar.add_task(f"loading {model}", total=None)
        loaded = load_model(model, device)
        bar.update(task, description="scoring")
        report = evaluate(
            loaded, source, plans, cut, lambda n, total: bar.update(task, completed=n, total=total)
        )
    out = console()
    out.print(heading(report), soft_wrap=True)
    out.print()
    out.print(table(report))
    if json_file is not None:
        found = report.to_json()
        if tables is not None:
            found["profile"] = {"hash": tables.hash, **tables.about}
        write_file(json_file, (json.dumps(found, indent=2) + "\n").encode())
    if plot_file is not None:
        write_file(plot_file, plot.png(report))


def parse_plan(text: str) -> Plan:
    """Plan from the text of an option; `@FILE` reads JSON."""
    if not text.startswith("@"):
        return Plan.parse(text)
    try:
        return Plan.parse(Path(text[1:]).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"plan {text!r} cannot be read: {error}") from error
