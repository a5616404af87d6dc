"""Throughput of the native host kernels: GB/s of raw bytes, next to numpy's copy in the same run.

Synthetic keys: Gaussian values under a log-normal scale per channel. Best of many calls, since
other load on a machine only ever adds time; blocks are decoded and compared before they are timed.
One thread is timed by its own CPU time, several by the wall clock: those want an idle machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

import kvcodec
from kvcodec import BlockSpec, EncodedBlocks
from kvcodec.bits import int_view, to_bits
from kvcodec.calibrated import Calibrated
from kvcodec.calibration import make_tables
from kvcodec.codec import Codec
from kvcodec.kernels import _native_call
from kvcodec.kernels._native_call import NativeKernel
from kvcodec.kernels._stack import StackedKernel
from kvcodec.kernels._stack_native import NativeCoder
from kvcodec.registry import Kernel, load_kernel

SHAPES = ((256, 1, 128), (64, 3, 64))  # 64 and 24 KiB of bf16


def make_cache(shape: tuple[int, int, int], num_blocks: int, layout: str) -> torch.Tensor:
    """bf16 blocks; layout "hnd" lays the tokens of a head side by side."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.exp(0.5 * torch.randn(shape[1:], generator=generator))
    cache = (torch.randn(num_blocks, *shape, generator=generator) * scales).to(torch.bfloat16)
    return cache.transpose(1, 2).contiguous().transpose(1, 2) if layout == "hnd" else cache


def with_tables(codec: Codec, cache: torch.Tensor) -> Codec:
    """The codec; one that needs a profile holds tables counted in the first MiB."""
    if not isinstance(codec, Calibrated) or not codec.needs_profile:
        return codec
    spec = BlockSpec.of(cache)
    some = to_bits(cache[: max(1, 2**20 // spec.nbytes)]).reshape(-1, *spec.shape[1:])
    return codec.hold(make_tables([some], spec.format))


def best(call: Callable[[], object], seconds: float, num_threads: int = 1) -> float:
    """Shortest time of a call within a budget."""
    clock = time.thread_time if num_threads == 1 else time.perf_counter
    shortest, stop = float("inf"), clock() + seconds
    while (begin := clock()) < stop:
        call()
        shortest = min(shortest, clock() - begin)
    return shortest


def on_isa(kernel: Kernel, isa: int) -> Kernel:
    """A kernel with another instruction set."""
    if isinstance(kernel, StackedKernel):
        return replace(kernel, kernel=on_isa(kernel.kernel, isa), coder=NativeCoder(isa))
    return replace(kernel, isa=isa) if isinstance(kernel, NativeKernel) else kernel


def measure(
    codec: Codec, cache: torch.Tensor, isa: int, num_threads: int, seconds: float
) -> tuple[float, float, float]:
    """GB/s of compress and of decompress, and bits per element."""
    kernel = on_isa(load_kernel(codec, "native"), isa)
    spec, ids = BlockSpec.of(cache), torch.arange(len(cache))
    rows, back = EncodedBlocks.empty(codec, spec, len(cache)), torch.zeros_like(cache)
    workspace = torch.empty(kernel.workspace_nbytes(codec, spec, len(cache)), dtype=torch.uint8)

    def compress() -> None:
        kernel.compress(cache, ids, None, rows, workspace=workspace, num_threads=num_threads)

    def decompress() -> None:
        kernel.decompress(rows, back, ids, workspace=workspace, num_threads=num_threads)

    compress()
    decompress()
    if codec.lossless and not torch.equal(int_view(back), int_view(cache)):
        raise SystemExit(f"{codec}: blocks did not come back")
    size = len(cache) * spec.nbytes / 1e9
    bits = 8 * rows.total_nbytes() / cache.numel()
    compress_time = best(compress, seconds, num_threads)
    return size / compress_time, size / best(decompress, seconds, num_threads), bits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=float, default=16, help="raw MiB of a batch")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each figure")
    parser.add_argument("--codecs", nargs="+", default=["split", "fp8", "fp8:scale=head", "raw"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--layouts", nargs="+", default=["nhd", "hnd"], choices=["nhd", "hnd"])
    args = parser.parse_args()

    source = np.full(int(args.mib * 2**20), 1, np.uint8)
    target = np.zeros_like(source)
    copy = source.size / 1e9 / best(lambda: np.copyto(target, source), args.seconds)
    print(f"numpy copy of {args.mib:g} MiB, one thread: {copy:.2f} GB/s")
    print("codec            isa       block         layout threads  compress  decompress  bits")
    for name in args.codecs:
        codec = kvcodec.get_codec(name)
        for isa, isa_name in _native_call.extension().isas():
            for shape in SHAPES:
                num_blocks = max(1, int(args.mib * 2**20) // (2 * int(np.prod(shape))))
                for layout in args.layouts:
                    cache = make_cache(shape, num_blocks, layout)
                    for num_threads in args.threads:
                        ready = with_tables(codec, cache)
                        c, d, bits = measure(ready, cache, isa, num_threads, args.seconds)
                        block = "x".join(map(str, shape))
                        print(
                            f"{name:16} {isa_name:9} {block:13} {layout:6} {num_threads:7} "
                            f"{c:9.2f} {d:11.2f} {bits:5.2f}"
                        )


if __name__ == "__main__":
    main()
