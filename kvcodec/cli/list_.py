"""`kvcodec list`: the codecs that exist here, and what runs them."""

from __future__ import annotations

import inspect
import json
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from kvcodec.bits import FORMATS
from kvcodec.block import BlockSpec
from kvcodec.cli.console import console
from kvcodec.codec import Codec
from kvcodec.metrics import bits_per_element
from kvcodec.plan import PRESETS
from kvcodec.registry import IMPLEMENTATIONS, codec_class, codec_names, get_codec, why_unavailable

EPILOG = """\b
Examples:
  kvcodec list
  kvcodec list --json
"""
SHAPE = (64, 8, 128)  # tokens, heads, head_dim of the block whose rows are measured


def list_codecs(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List codecs and presets.

    What each does, its bits, element types, implementations that run here, and source. Bits per
    element are of whole rows of a bf16 block of 64 tokens, 8 heads and head_dim 128 that holds
    normal noise; only entropy-coded rows depend on the values.
    """
    codecs = [describe(name) for name in codec_names()]
    if as_json:
        typer.echo(json.dumps({"codecs": codecs, "presets": PRESETS}, indent=2))
        return
    out = console()
    out.print(_table(codecs))
    out.print()
    for preset, plan in PRESETS.items():
        out.print(f"preset {preset:<9} {plan}")
    reasons: dict[tuple[str, str], list[str]] = {}
    for codec in codecs:
        for impl, reason in codec["implementations"].items():
            if reason is not None:
                reasons.setdefault((impl, reason), []).append(codec["codec"])
    for (impl, reason), names in reasons.items():
        out.print(f"no {impl} for {', '.join(names)}: {reason}")


def describe(name: str) -> dict[str, Any]:
    """JSON-able account of a codec with default parameters, and of its example specs."""
    cls = codec_class(name)
    specs = list(cls.examples) or [name]
    codec = get_codec(specs[0])
    formats = [
        f.name for dtype, f in FORMATS.items() if codec.supports(BlockSpec(*SHAPE, dtype)) is None
    ]
    return {
        "codec": name,
        "version": cls.version,
        "summary": (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " "),
        "lossless": codec.lossless,
        "bits_per_element": {spec: _bits(get_codec(spec)) for spec in specs},
        "dtypes": formats,
        "implementations": {impl: _why_inactive(codec, impl) for impl in IMPLEMENTATIONS},
        "source": cls.source or None,
    }


def _bits(codec: Codec) -> float | None:
    """Measured on noise; None for a codec that takes no bf16 block or needs a profile."""
    spec = BlockSpec(*SHAPE, torch.bfloat16)
    if codec.supports(spec) is not None or codec.needs_profile:
        return None
    noise = torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(0)).bfloat16()
    return bits_per_element(codec.compress(noise, [0], positions=torch.zeros(1, dtype=torch.int64)))


def _why_inactive(codec: Codec, impl: str) -> str | None:
    """None if the implementation serves some device of this machine, else why it does not."""
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    reasons = [why_unavailable(codec, impl, torch.device(device)) for device in devices]
    return None if None in reasons else reasons[0]


def _table(codecs: list[dict[str, Any]]) -> Table:
    made = Table(box=None, padding=(0, 1), pad_edge=False)
    made.add_column("codec", no_wrap=True)
    for name in ("what it does", "bits", "lossless", "element types", "runs here", "source"):
        made.add_column(name)
    for codec in codecs:
        bits = codec["bits_per_element"]
        for spec in bits:
            first = spec == next(iter(bits))
            active = [impl for impl, reason in codec["implementations"].items() if reason is None]
            made.add_row(
                spec,
                codec["summary"] if first else "",
                "-" if bits[spec] is None else f"{bits[spec]:.3f}",
                ("yes" if codec["lossless"] else "no") if first else "",
                " ".join(codec["dtypes"]) if first else "",
                " ".join(active) if first else "",
                (codec["source"] or "") if first else "",
            )
    return made
