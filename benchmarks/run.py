"""This library's codecs and what a user could take instead, in one run on the same data.

    make bench                                   # everything, on this machine's processor
    python benchmarks/run.py --device cuda       # a GPU: our codecs alone, in under 8 minutes

writes benchmarks/results/<machine>.csv. Data: noise (synthetic), and keys and values that
SmolLM2-135M makes of three texts (benchmarks/capture.py makes them on first use; minutes).
Peers are taken from --site (requirements/peers.txt); one that is not there is listed as missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import capture
import numpy as np
import peers
import torch
from safetensors import safe_open

from kvcodec.bench import device as gpu
from kvcodec.bench import run
from kvcodec.bench.data import Dataset, load_file, synthetic
from kvcodec.bench.host import Job
from kvcodec.bench.report import Report, Row, make_row
from kvcodec.bench.timing import Work
from kvcodec.bits import FORMATS, to_bits
from kvcodec.calibration import make_tables
from kvcodec.codec import Codec
from kvcodec.profile import Kind, Profile
from kvcodec.registry import get_codec

SHORT, LONG = 2048, 8192  # positions
LONGEST = "news"
PROFILED = "reviews"  # the text that tables are made of; the others are coded with them
LAYER = 15  # of 30, for codecs with tables of a layer
STACKED = ("fp8:entropy=rans", "mxfp8:entropy=rans", "nvfp4:entropy=rans")
CACHED = (  # on one layer, whose 2 MiB stay in a cache
    "split",
    "split:model=centred",
    "split:model=profile",
    "split:model=context",
    "bitplane",
    "bitplane:bits=2+3",
    "fp8",
    "mxfp8",
    "nvfp4",
    *STACKED,
    "turboangle",
    "turboquant",
)
RESULTS = Path(__file__).parent / "results"
MACHINE = ("date", "cpu", "cores", "native", "gpu", "cuda", "git_revision", "load")


def captured(args: argparse.Namespace, texts: list[str], tokens: int, **cut: Any) -> list[Dataset]:
    """Keys, then values, of texts together."""
    files = [capture.capture(name, tokens, args.captured) for name in texts]
    each = (args.mib << 20) // len(files)
    loaded = [load_file(path, args.block_nbytes, each, **cut) for path in files]
    of = f", layer {cut['layers'][0]}" if "layers" in cut else ""
    last = "" if tokens == SHORT else f", {cut.get('begin', 0)}-{tokens}"
    return [
        Dataset(
            f"SmolLM2-135M {kind}{of}{last}",
            torch.cat([s.blocks for s in sets]),
            torch.cat([s.positions for s in sets]),
        )
        for kind, sets in zip(("keys", "values"), zip(*loaded, strict=True), strict=True)
    ]


def datasets(args: argparse.Namespace) -> list[Dataset]:
    """Noise; all texts together; on a host also one of them at the positions that follow."""
    found = [synthetic(args.block_nbytes, args.mib << 20)]
    if args.texts:
        found += captured(args, args.texts, SHORT)
    if LONGEST in args.texts and args.device == "cpu":  # minutes of the model
        found += captured(args, [LONGEST], LONG, begin=SHORT)
    return found


def with_profile(args: argparse.Namespace) -> Iterator[tuple[list[Dataset], list[Codec]]]:
    """Keys or values of one layer, and codecs that hold its tables, of a text not among them."""
    tested = [name for name in args.texts if name != PROFILED]
    places: tuple[tuple[int, Kind], ...] = ((LAYER, "key"), (LAYER, "value"))
    with safe_open(str(capture.capture(PROFILED, SHORT, args.captured)), "pt") as file:
        planes = {
            place: make_tables(
                [to_bits(file.get_tensor(f"layers.{place[0]}.{place[1]}"))], FORMATS[torch.bfloat16]
            )
            for place in places
        }
    profile = Profile(planes)
    near = captured(args, tested, SHORT, layers=[LAYER])
    far = captured(args, [LONGEST], LONG, begin=SHORT, layers=[LAYER])
    for place, *data in zip(places, near, far, strict=True):
        yield data, [get_codec(text).bind(profile, *place) for text in CACHED]


def peer_jobs(
    name: str, codec: peers.Codec, inputs: list[np.ndarray], data: Dataset, how: str
) -> list[Job] | str:
    """Encode and decode of a peer that takes `inputs` one by one, or what was wrong."""
    blobs: list[Any] = [None] * len(inputs)
    given = [x.copy() for x in inputs]

    def fresh() -> None:
        if codec.clone:
            for x, original in zip(given, inputs, strict=True):
                x[:] = original

    def compress() -> None:
        for i, x in enumerate(given):
            blobs[i] = codec.compress(x)

    def decompress() -> None:
        for blob in blobs:
            codec.decompress(blob)

    compress()
    for x, blob in zip(inputs, blobs, strict=True):
        if not np.array_equal(codec.decompress(blob), x):
            return "blocks did not come back bit for bit"
    raw = sum(x.nbytes for x in inputs)
    ratio = raw / sum(codec.size(blob) for blob in blobs)
    n = raw // data.spec.nbytes
    return [
        Job(work, partial(make_row, name, op, how, data.name, data.spec, n, ratio=ratio))
        for op, work in (("encode", Work(compress, fresh)), ("decode", Work(decompress)))
    ]


def affordable(codec: peers.Codec, blocks: np.ndarray, call_seconds: float) -> int:
    """Blocks that a peer takes in about so many seconds each way."""
    spent = math.inf
    for _ in range(3):
        block = blocks[0].copy()
        begin = time.perf_counter()
        codec.decompress(codec.compress(block))
        spent = min(spent, time.perf_counter() - begin)
    return max(1, min(len(blocks), int(2 * call_seconds / spent)))


def all_peer_jobs(data: Dataset, report: Report, call_seconds: float) -> list[Job]:
    """Jobs of each peer: blocks in a loop, and where it is made for it the whole buffer."""
    bits = to_bits(data.blocks)
    flat = bits.reshape(len(bits), -1)
    source, target = flat, np.zeros_like(flat)
    copies = {
        "buffer": lambda: np.copyto(target, source),
        "blocks": lambda: [np.copyto(t, s) for t, s in zip(target, source, strict=True)],
    }
    jobs = [
        Job(
            Work(call),
            partial(make_row, "numpy copy", "copy", how, data.name, data.spec, len(flat)),
        )
        for how, call in copies.items()
    ]
    inputs = [(peer, bits) for peer in peers.PEERS] + [(peers.CENTRED, peers.centred(bits))]
    for peer, values in inputs:
        codec = peer.load()
        if isinstance(codec, str):
            report.skipped[peer.name] = codec
            continue
        print(f"  {peer.name}, {data.name}", file=sys.stderr, flush=True)
        rows = values.reshape(len(values), -1)
        n = affordable(codec, rows, call_seconds)
        rows = rows[np.arange(n) * len(rows) // n]  # evenly: the layers of a model differ
        runs = [("blocks", list(rows))]
        if peer.whole and n > 1:
            runs.append(("buffer", [rows.reshape(-1)]))
        for how, given in runs:
            got = peer_jobs(peer.name, codec, given, data, how)
            if isinstance(got, str):
                report.failed[f"{peer.name}, {how}, {data.name}"] = got
            else:
                jobs += got
    return jobs


def write_csv(path: Path, report: Report) -> None:
    """One line a row; what is missing or failed has a line without figures and a note."""
    machine = {key: report.settings.get(key) for key in MACHINE}
    machine["native"] = " ".join(machine["native"])
    machine["versions"] = json.dumps(report.settings["versions"], sort_keys=True)
    names = [field.name for field in fields(Row)]
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, [*names, "note", *machine], lineterminator="\n")
        out.writeheader()
        for row in report.rows:
            cells = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()}
            out.writerow({**cells, **machine})
        for name, note in report.skipped.items():
            op = "missing" if note.startswith("missing") else "not run"
            out.writerow({"codec": name, "op": op, "note": note, **machine})
        for name, note in report.failed.items():
            out.writerow({"codec": name, "op": "failed", "note": note, **machine})


def slug(settings: dict[str, Any]) -> str:
    """File name of a machine: GPU, or processor and its best instruction set."""
    name = settings["gpu"] or " ".join([settings["cpu"], *settings["native"][-1:]])
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", action="append", default=[], help="folder with the peers")
    parser.add_argument("--captured", type=Path, default=capture.cache_dir())
    parser.add_argument("--texts", nargs="*", default=list(capture.TEXTS))
    parser.add_argument("--block-nbytes", type=int, default=65536)
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1, help="of our codecs; peers have one")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    parser.add_argument("--call-seconds", type=float, default=0.25, help="most for one call")
    parser.add_argument("--codec", action="append", default=[], help="ours; all when left out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--load", default="", help="what else ran on the machine, for the record")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    sys.path.extend(args.site)  # behind this environment's own numpy and torch
    where = torch.device("cpu") if args.device == "cpu" else gpu.check_device(args.device)
    effort = run.Effort(args.seconds, args.call_seconds)
    data = datasets(args)
    if where.type == "cuda":
        data = [s.take(max(1, (64 << 20) // s.spec.nbytes)) for s in data]
    codecs, skipped = run.choose_codecs(args.codec, data, "auto", where)
    if not args.codec:  # lossless codecs with every parameter they show, beside the peers
        shown = list(STACKED)
        shown += [
            text
            for codec in codecs
            if codec.lossless
            for text in codec.examples
            if not get_codec(text).needs_profile
        ]
        codecs = list(dict.fromkeys([*codecs, *run.choose_codecs(shown, data, "auto", where)[0]]))
    report = run.new_report(where, load=args.load)
    report.skipped |= skipped
    for dist in distributions(path=[*args.site, *sys.path]):
        if dist.name in ("blosc2", "constriction", "openzl", "pcodec", "zipnn", "zstandard"):
            report.settings["versions"][dist.name] = dist.version
    options: dict[str, Any] = {
        "impl": "auto",
        "device": where,
        "effort": effort,
        "report": report,
        "progress": lambda what, done, total: print(f"  {what}", file=sys.stderr, flush=True),
    }
    if where.type == "cpu":
        options["also"] = lambda dataset: all_peer_jobs(dataset, report, effort.call_seconds)
    run.run(codecs, data, threads=args.threads, **options)
    if where.type == "cpu" and {LONGEST, PROFILED} <= set(args.texts) and not args.codec:
        for of_layer, models in with_profile(args):
            run.run(models, of_layer, threads=args.threads, **options)
        more = min(2, os.cpu_count() or 1)
        if more > args.threads:
            fast = [codec for codec in codecs if not codec.host_tier_only]
            run.run(fast, data[1:2], threads=more, **options | {"also": lambda dataset: ()})
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{slug(report.settings)}.csv"
    write_csv(path, report)
    print(path)
    for what, notes in (("not run", report.skipped), ("WRONG", report.failed)):
        for name, note in notes.items():
            print(f"{what}: {name}: {note}")
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
