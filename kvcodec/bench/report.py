"""The rows of a benchmark, as JSON, and as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from rich.table import Table

from kvcodec.bench.timing import Timing
from kvcodec.block import BlockSpec

COPY = "copy (buffer)"
BUSY = 0.8  # share of its time that a call should have a core


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: a codec, an operation, a dataset.

    op: "encode", "decode" or "copy"; on a GPU also "gather", "store" and "restore".
    gbps: 1e9 raw bytes per second at the median; gbps_cpu: per second of processor time of all
        threads, which other load on a machine disturbs less. ratio: raw bytes over whole rows.
    copy_percent: gbps against a copy of the same bytes by the same number of threads.
    link_gbps, break_even_gbps: of a store or restore, see `kvcodec.bench.device`.
    """

    codec: str
    op: str
    impl: str
    dataset: str
    device: str
    dtype: str
    block: str
    block_nbytes: int
    num_blocks: int
    threads: int
    gbps: float
    gbps_best: float
    gbps_cpu: float | None
    ratio: float
    copy_percent: float | None
    p20_seconds: float
    p50_seconds: float
    p80_seconds: float
    repeats: int
    p50_cpu_seconds: float | None
    sqnr_db: float | None = None  # None: bit-equal
    link_gbps: float | None = None
    break_even_gbps: float | None = None


def make_row(
    codec: str,
    op: str,
    impl: str,
    dataset: str,
    spec: BlockSpec,
    num_blocks: int,
    timing: Timing,
    *,
    ratio: float = 1.0,
    **fields: Any,
) -> Row:
    """Row of a call that took `num_blocks` blocks; `with_copy_percent` completes it."""
    raw = num_blocks * spec.nbytes / 1e9
    gbps = raw / timing.p50
    return Row(
        codec=codec,
        op=op,
        impl=impl,
        dataset=dataset,
        dtype=spec.format.name,
        block=" x ".join(map(str, spec.shape)),
        block_nbytes=spec.nbytes,
        num_blocks=num_blocks,
        gbps=gbps,
        gbps_best=raw / timing.best,
        gbps_cpu=None if timing.cpu is None else raw / max(timing.cpu, 1e-9),
        ratio=ratio,
        copy_percent=None,
        p20_seconds=timing.p20,
        p50_seconds=timing.p50,
        p80_seconds=timing.p80,
        repeats=timing.repeats,
        p50_cpu_seconds=timing.cpu,
        **{"device": "cpu", "threads": 1, **fields},
    )


def with_copy_percent(rows: Sequence[Row]) -> list[Row]:
    """Rows of one dataset, those of codecs set against the copy of the whole batch."""
    ceiling = next(row.gbps for row in rows if row.codec == COPY)
    return [
        row
        if row.op == "copy" or row.link_gbps is not None
        else replace(row, copy_percent=100 * row.gbps / ceiling)
        for row in rows
    ]


@dataclass(slots=True)
class Report:
    """A benchmark's result. Nothing in `failed` has a row: a wrong result has no speed."""

    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # codec -> reason
    failed: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON form: the settings, and `rows`, `skipped`, `failed`."""
        return {
            **self.settings,
            "rows": [asdict(row) for row in self.rows],
            "skipped": self.skipped,
            "failed": self.failed,
        }


def noise(rows: list[Row]) -> str:
    """A warning when calls waited for a core, so that their wall times are too long; else ""."""
    shares = [
        row.p50_cpu_seconds / row.p50_seconds
        for row in rows
        if row.threads == 1 and row.p50_cpu_seconds is not None
    ]
    if not shares or median(shares) > BUSY:
        return ""
    return (
        f"other load: a call had its core {median(shares):.0%} of the time, so these speeds are "
        "too low; gbps_cpu in --json counts processor time"
    )


def table(report: Report) -> Table:
    """A line for each codec and dataset, operations side by side."""
    made = Table(box=None, padding=(0, 1), pad_edge=False)
    for name in ("codec", "impl", "dataset"):
        made.add_column(name, overflow="fold")
    ops = list(dict.fromkeys(row.op for row in report.rows if row.link_gbps is None))
    made.add_column("ratio", justify="right")
    for op in ops:
        made.add_column(f"{op} GB/s", justify="right", no_wrap=True)
        made.add_column("% copy", justify="right", no_wrap=True)
    lines: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in report.rows:
        if row.link_gbps is None:
            lines.setdefault((row.codec, row.impl, row.dataset), {})[row.op] = row
    for (codec, impl, dataset), found in lines.items():
        cells = [codec, impl, dataset, f"{next(iter(found.values())).ratio:.3f}"]
        for op in ops:
            row_of = found.get(op)
            cells.append("" if row_of is None else f"{row_of.gbps:.3f}")
            percent = None if row_of is None else row_of.copy_percent
            cells.append("" if percent is None else f"{percent:.0f}")
        made.add_row(*cells)
    return made
