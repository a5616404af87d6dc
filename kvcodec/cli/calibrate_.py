"""`kvcodec calibrate`: tables of a model's keys and values, for the codecs that use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvcodec.cli.console import console
from kvcodec.errors import InvalidInputError
from kvcodec.profile import Profile
from kvcodec.tables import DEAD

EPILOG = """\b
Examples:
  kvcodec calibrate --out smollm2.profile
  kvcodec calibrate --model ./my-model --text book.txt --out my-model.profile
  kvcodec calibrate --text book.txt --context 4096 --tokens 16384 --out long.profile --json

Cost: a run of the model over the tokens and the memory of their cache, 2 x layers x KV heads x
head_dim x element bytes a token: 46 KB for smollm2-135m, some minutes for its 8192 tokens on a CPU.
formats/profile.md says what is in the file.
"""


def calibrate_model(
    out: Annotated[Path, typer.Option(metavar="PROFILE", help="Write the profile to this file.")],
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
    context: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Tokens of a sequence; 0 is the model's trained length, at most 8192. Keys drift "
            "with position, so make it as long as the sequences that will be compressed.",
        ),
    ] = 0,
    tokens: Annotated[
        int, typer.Option(metavar="N", help="Run about so many; 0 is one sequence.")
    ] = 0,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="A torch device; auto prefers a GPU.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Calibrate a model: count what its keys and values look like and write a profile.

    Codecs with model=profile, model=context or center=profile use it: bind them with
    Plan.bind(profile).
    """
    for name, value in (("context", context), ("tokens", tokens)):
        if value < 0:
            raise InvalidInputError(f"{name} is {value}, wanted 0 or more")
    from kvcodec.eval.output import check_writable
    from kvcodec.eval.text import load_text

    check_writable(out)
    source = load_text(text)

    from kvcodec.eval.calibrate import calibrate
    from kvcodec.eval.model import load_model

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
        bar.update(task, description="calibrating")
        profile = calibrate(
            loaded,
            source,
            context or None,
            tokens or None,
            lambda n, total: bar.update(task, completed=n, total=total),
        )
    profile.save(out)
    found = describe(profile, out)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    facts = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    for key, value in found.items():
        facts.add_row(key, value if isinstance(value, str) else json.dumps(value))
    console().print(facts)


def describe(profile: Profile, path: Path) -> dict[str, Any]:
    """What a profile holds: JSON-able."""
    planes = profile.planes.values()
    dead = [int((tables.arrays["class"] == DEAD).sum()) for tables in planes]
    return {
        "file": str(path),
        "nbytes": path.stat().st_size,
        "hash": profile.hash,
        "planes": len(planes),
        "tables_nbytes": sum(tables.nbytes for tables in planes),
        "zero_channels": sum(dead),
        **profile.about,
    }
