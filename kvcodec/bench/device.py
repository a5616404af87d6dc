"""Codecs on a GPU: events around every call, inputs larger than its cache, and what a link adds.

Every call takes another batch; together the batches exceed the L2 cache four times over. A stored
block goes through encode and `gather_rows`, then over the link; a restored one over the link, then
through decode. One after the other, without overlap, the effective rates in raw bytes are

    store = 1 / (1 / encode + 1 / gather + 1 / (ratio * link))
    restore = 1 / (1 / (ratio * link) + 1 / decode)

and both ways together pay while link < (1 - 1 / ratio) / (1 / encode + 1 / gather + 1 / decode).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kvcodec.bench.data import Dataset
from kvcodec.bench.host import judge, resolve_impl
from kvcodec.bench.report import COPY, Row, make_row
from kvcodec.bench.timing import Timing, time_cuda
from kvcodec.block import EncodedBlocks, gather_rows
from kvcodec.codec import Codec
from kvcodec.errors import InvalidInputError

LINKS = (25.0, 55.0, 400.0)  # GB/s: PCIe 4, PCIe 5, a coherent or GPU link
PINNED_NBYTES = 256 << 20
CHECKED = 2  # blocks whose rows are compared with the reference's


def check_device(name: str) -> torch.device:
    """A GPU that is here; InvalidInputError otherwise."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch built without CUDA
        raise InvalidInputError(f"device {name!r}: {str(error).splitlines()[0]}") from error
    if device.type != "cuda":
        raise InvalidInputError(f"device {name!r}: wanted cpu, or cuda with an index if need be")
    torch.cuda.set_device(device)
    return torch.device("cuda", torch.cuda.current_device())


def num_batches(batch_nbytes: int, device: torch.device) -> int:
    """Batches to rotate over, so that a batch has left the cache when its turn comes again."""
    cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 << 20)
    return int(min(64, max(2, -(-4 * cache // batch_nbytes))))


def bench_copies(data: Dataset, device: torch.device, seconds: float) -> list[Row]:
    """Ceilings: a copy within the GPU, and pinned copies to and from it."""
    batches = [data.blocks.to(device) for _ in range(num_batches(data.blocks.nbytes, device))]
    targets = [torch.empty_like(batch) for batch in batches]
    k, n = len(batches), len(data.blocks)
    inside = time_cuda(lambda i: targets[i % k].copy_(batches[i % k]), seconds)
    host = torch.empty(PINNED_NBYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(PINNED_NBYTES, dtype=torch.uint8, device=device)
    blocks = PINNED_NBYTES / data.spec.nbytes
    shared: dict[str, Any] = {"device": str(device), "threads": 0}
    return [
        make_row(COPY, "copy", "torch", data.name, data.spec, n, inside, **shared),
        *(
            replace(
                make_row(name, "copy", "torch", data.name, data.spec, n, timing, **shared),
                num_blocks=int(blocks),
                gbps=PINNED_NBYTES / 1e9 / timing.p50,
                gbps_best=PINNED_NBYTES / 1e9 / timing.best,
            )
            for name, timing in (
                ("copy (pinned to device)", time_cuda(lambda i: _copy(there, host), seconds)),
                ("copy (device to pinned)", time_cuda(lambda i: _copy(host, there), seconds)),
            )
        ),
    ]


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def bench_codec(
    codec: Codec,
    data: Dataset,
    *,
    impl: str,
    device: torch.device,
    seconds: float,
) -> list[Row] | str:
    """Rows for encode, gather, decode and each link, or what was wrong with the result."""
    impl = resolve_impl(codec, impl, device)
    spec, n = data.spec, len(data.blocks)
    batches = [data.blocks.to(device) for _ in range(num_batches(data.blocks.nbytes, device))]
    outs = [EncodedBlocks.empty(codec, spec, n, device) for _ in batches]
    targets = [torch.zeros_like(batch) for batch in batches]
    ids, k = torch.arange(n, device=device), len(batches)
    workspace = torch.zeros(codec.workspace_nbytes(spec, n, impl), dtype=torch.uint8, device=device)
    options: dict[str, Any] = {
        "positions": data.positions.to(device),
        "workspace": workspace,
        "impl": impl,
    }

    def compress(i: int) -> None:
        codec.compress(batches[i % k], ids, out=outs[i % k], **options)

    def decompress(i: int) -> None:
        codec.decompress(outs[i % k], targets[i % k], ids, **options)

    for i in range(k):
        compress(i)
        decompress(i)
    torch.cuda.synchronize()
    quality = None
    for target in targets:
        quality, wrong = judge(codec, batches[0], target)
        if wrong:
            return wrong
    if codec.portable_bytes and (wrong := _differs_from_reference(codec, data, outs[0])):
        return wrong
    ratio = n * spec.nbytes / outs[0].total_nbytes()
    timings = {
        "encode": time_cuda(compress, seconds),
        "gather": time_cuda(lambda i: gather_rows(outs[i % k]), seconds),
        "decode": time_cuda(decompress, seconds),
    }
    shared: dict[str, Any] = {"ratio": ratio, "device": str(device), "threads": 0}
    shared["sqnr_db"] = quality
    rows = [
        make_row(str(codec), op, impl, data.name, spec, n, timing, **shared)
        for op, timing in timings.items()
    ]
    return rows + _over_links(rows, timings)


def _differs_from_reference(codec: Codec, data: Dataset, rows: EncodedBlocks) -> str:
    few, begins = data.blocks[:CHECKED], data.positions[:CHECKED]
    wanted = codec.compress(few, list(range(len(few))), positions=begins, impl="reference")
    got = rows[: len(few)].to("cpu")
    for i, size in enumerate(wanted.nbytes.tolist()):
        same_size = int(got.nbytes[i]) == size
        if not same_size or not torch.equal(got.payload[i, :size], wanted.payload[i, :size]):
            return f"row {i} is not the reference's"
    return ""


def _over_links(rows: list[Row], timings: dict[str, Timing]) -> list[Row]:
    """Effective store and restore rates; seconds are of the whole batch, the link included."""
    made, first = [], rows[0]
    raw = first.num_blocks * first.block_nbytes / 1e9
    out = timings["encode"].p50 + timings["gather"].p50
    back = timings["decode"].p50
    break_even = (1 - 1 / first.ratio) * raw / (out + back)
    for link in LINKS:
        moved = raw / first.ratio / link
        for op, seconds in (("store", out + moved), ("restore", back + moved)):
            made.append(
                replace(
                    first,
                    op=op,
                    gbps=raw / seconds,
                    gbps_best=raw / seconds,
                    copy_percent=None,
                    p20_seconds=seconds,
                    p50_seconds=seconds,
                    p80_seconds=seconds,
                    link_gbps=link,
                    break_even_gbps=break_even,
                )
            )
    return made
