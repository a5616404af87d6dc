"""The command line: one module per command."""

from __future__ import annotations

from typing import Annotated

import typer

import kvcodec
from kvcodec.cli import bench_, calibrate_, eval_, inspect_, list_
from kvcodec.errors import KVCodecError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("bench", epilog=bench_.EPILOG)(bench_.benchmark)
app.command("calibrate", epilog=calibrate_.EPILOG)(calibrate_.calibrate_model)
app.command("eval", epilog=eval_.EPILOG)(eval_.evaluate_codecs)
app.command("inspect", epilog=inspect_.EPILOG)(inspect_.inspect_frame)
app.command("list", epilog=list_.EPILOG)(list_.list_codecs)

EPILOG = """\b
Examples:
  kvcodec list
  kvcodec bench --quick
  kvcodec eval --codec split --codec fp8:scale=head
  kvcodec inspect blocks.kvc
  kvcodec calibrate --text book.txt --out my-model.profile
"""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvcodec {kvcodec.__version__}")
        raise typer.Exit


@app.callback(epilog=EPILOG)
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Compress the KV cache of paged LLM inference engines, block by block."""


def main() -> None:
    """Run a command; an error that the library raises on purpose is one line and exit code 2."""
    try:
        app(prog_name="kvcodec")
    except KVCodecError as error:
        typer.echo(f"kvcodec: {' '.join(str(error).split())}", err=True)
        raise SystemExit(2) from error
