"""zstd over threads: the reference's rows, each thread with zstd contexts of its own.

The zstd library releases the interpreter's lock, so threads run side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np
import torch

from kvcodec.bits import from_bits, to_bits
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.codecs.zstd import Zstd, decode_rows
from kvcodec.kernels._dense import gather_blocks, scatter_blocks
from kvcodec.kernels._native_call import choose_threads
from kvcodec.row import read_rows


class ZstdVector:
    """See `kvcodec.registry.Kernel`."""

    def compress(
        self,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        num_valid: torch.Tensor | None,
        out: EncodedBlocks,
        *,
        positions: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """See `Codec.compress`."""
        codec, n = cast(Zstd, out.codec), len(out)
        valid = [out.spec.block_size] * n if num_valid is None else num_valid.tolist()
        if cache.is_cuda:
            source, ids = gather_blocks(cache, block_ids), list(range(n))
            host = EncodedBlocks.empty(codec, out.spec, n)
        else:
            source, ids, host = cache, block_ids.tolist(), out
        bits = to_bits(source)
        share(
            lambda rows: codec.encode_rows(bits, ids, valid, host, rows), out.spec, n, num_threads
        )
        if host is not out:
            out.payload.copy_(host.payload)
            out.nbytes.copy_(host.nbytes)

    def decompress(
        self,
        encoded: EncodedBlocks,
        cache: torch.Tensor,
        block_ids: torch.Tensor,
        *,
        positions: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """See `Codec.decompress`; nothing is written unless every row decoded."""
        spec, parsed = encoded.spec, read_rows(encoded.to("cpu"))
        bits = np.zeros((len(parsed), *spec.shape), f"u{spec.dtype.itemsize}")
        share(lambda rows: decode_rows(parsed, bits, rows), spec, len(parsed), num_threads)
        if cache.is_cuda:
            scatter_blocks(cache, block_ids, from_bits(bits, spec.dtype))
            return
        target = to_bits(cache)
        for block, into in zip(bits, block_ids.tolist(), strict=True):
            target[into] = block

    def workspace_nbytes(self, codec: Codec, spec: BlockSpec, num_blocks: int) -> int:
        """Host scratch is numpy's and zstd's own."""
        return 0

    def unavailable(self, device: torch.device) -> str | None:
        """Runs everywhere; tensors of a GPU go through the host."""
        return None


def share(
    work: Callable[[range], None], spec: BlockSpec, num_blocks: int, num_threads: int | None
) -> None:
    """Call `work` with runs of rows, one run for each thread; the first row's error is raised."""
    threads = choose_threads(num_threads, num_blocks, spec)
    if threads == 1:
        work(range(num_blocks))
        return
    cuts = [num_blocks * i // threads for i in range(threads + 1)]
    pairs = itertools.pairwise(cuts)
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, run) for run in itertools.starmap(range, pairs)]:
            done.result()


KERNEL = ZstdVector()
