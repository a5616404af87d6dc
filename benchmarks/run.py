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
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import capture
import numpy as np
import peers
import torch

from kvcodec.bench import device as gpu
from kvcodec.bench import run
from kvcodec.bench.data import Dataset, load_file, synthetic
from kvcodec.bench.report import Report, Row, make_row
from kvcodec.bench.timing import time_host
from kvcodec.bits import to_bits

RESULTS = Path(__file__).parent / "results"
MACHINE = ("date", "cpu", "cores", "native", "gpu", "cuda", "git_revision", "load")


def datasets(args: argparse.Namespace) -> list[Dataset]:
    """Noise, then keys and values of all texts together."""
    total = args.mib << 20
    found = [synthetic(args.block_nbytes, total)]
    if args.texts:
        files = [capture.capture(name, args.tokens, args.captured) for name in args.texts]
        loaded = [load_file(path, args.block_nbytes, total // len(files)) for path in files]
        for kind, sets in zip(("keys", "values"), zip(*loaded, strict=True), strict=True):
            blocks = torch.cat([s.blocks for s in sets])
            positions = torch.cat([s.positions for s in sets])
            found.append(Dataset(f"SmolLM2-135M {kind}", blocks, positions))
    return found


def measure_peer(
    name: str, codec: peers.Codec, inputs: list[np.ndarray], data: Dataset, how: str, seconds: float
) -> list[Row] | str:
    """Rows of a peer that takes `inputs` one by one, or what was wrong."""
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
        make_row(name, op, how, data.name, data.spec, n, timing, ratio=ratio)
        for op, timing in (
            ("encode", time_host(compress, seconds, fresh)),
            ("decode", time_host(decompress, seconds)),
        )
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


def measure_peers(data: Dataset, report: Report, effort: run.Effort) -> None:
    """A row for each peer: blocks in a loop, and where it is made for it the whole buffer."""
    bits = to_bits(data.blocks)
    flat = bits.reshape(len(bits), -1)
    source, target = flat, np.zeros_like(flat)
    copies = {
        "buffer": lambda: np.copyto(target, source),
        "blocks": lambda: [np.copyto(t, s) for t, s in zip(target, source, strict=True)],
    }
    for how, call in copies.items():
        timing = time_host(call, effort.seconds)
        report.rows.append(
            make_row("numpy copy", "copy", how, data.name, data.spec, len(flat), timing)
        )
    inputs = [(peer, bits) for peer in peers.PEERS] + [(peers.CENTRED, peers.centred(bits))]
    for peer, values in inputs:
        codec = peer.load()
        if isinstance(codec, str):
            report.skipped[peer.name] = codec
            continue
        print(f"  {peer.name}, {data.name}", file=sys.stderr, flush=True)
        rows = values.reshape(len(values), -1)
        n = affordable(codec, rows, effort.call_seconds)
        rows = rows[np.arange(n) * len(rows) // n]  # evenly: the layers of a model differ
        runs = [("blocks", list(rows))]
        if peer.whole and n > 1:
            runs.append(("buffer", [rows.reshape(-1)]))
        for how, given in runs:
            got = measure_peer(peer.name, codec, given, data, how, effort.seconds)
            if isinstance(got, str):
                report.failed[f"{peer.name}, {how}, {data.name}"] = got
            else:
                report.rows += got


def with_copy_percent(rows: list[Row]) -> Iterator[Row]:
    """Peers against the copy of the whole buffer, as our codecs are."""
    ceiling = {row.dataset: row.gbps for row in rows if row.codec == "copy (buffer)"}
    for row in rows:
        known = row.copy_percent is not None or row.op == "copy" or row.dataset not in ceiling
        yield row if known else replace(row, copy_percent=100 * row.gbps / ceiling[row.dataset])


def write_csv(path: Path, report: Report) -> None:
    """One line a row; what is missing or failed has a line without figures and a note."""
    machine = {key: report.settings.get(key) for key in MACHINE}
    machine["native"] = " ".join(machine["native"])
    machine["versions"] = json.dumps(report.settings["versions"], sort_keys=True)
    names = [field.name for field in fields(Row)]
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, [*names, "note", *machine], lineterminator="\n")
        out.writeheader()
        for row in with_copy_percent(report.rows):
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
    parser.add_argument("--tokens", type=int, default=2048)
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
        shown = [e for codec in codecs if codec.lossless for e in codec.examples]
        codecs = list(dict.fromkeys([*codecs, *run.choose_codecs(shown, data, "auto", where)[0]]))
    report = run.new_report(where, load=args.load)
    report.skipped |= skipped
    for dist in distributions(path=[*args.site, *sys.path]):
        if dist.name in ("blosc2", "constriction", "openzl", "pcodec", "zipnn", "zstandard"):
            report.settings["versions"][dist.name] = dist.version
    for dataset in data:
        run.run(
            codecs, [dataset], impl="auto", device=where, threads=args.threads,
            effort=effort, report=report,
            progress=lambda what, done, total: print(f"  {what}", file=sys.stderr, flush=True),
        )  # fmt: skip
        if where.type == "cpu":
            measure_peers(dataset, report, effort)
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
