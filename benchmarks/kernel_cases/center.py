"""The shift of center=profile, around fp8; every quantizer takes the same two launches."""

from __future__ import annotations

import functools

import numpy as np
import torch

from kernel_cases.case import BF16, CACHE_NBYTES, NUM_ROWS, SMALL, Case
from kvcodec import BlockSpec, EncodedBlocks, Profile, get_codec
from kvcodec.registry import load_kernel
from kvcodec.tables import Tables


def run(spec: BlockSpec, decode: bool) -> None:
    """Launch a batch under means of zero; small blocks are partly filled."""
    means = {"mean": np.zeros((spec.num_kv_heads, spec.head_dim), "<u2")}
    tables = Tables((spec.format.name, spec.num_kv_heads, spec.head_dim), means)
    codec = get_codec("fp8:center=profile").bind(Profile({(0, "key"): tables}), 0, "key")
    kernel = load_kernel(codec, "triton")
    cache = torch.empty(CACHE_NBYTES // spec.nbytes, *spec.shape, dtype=spec.dtype)
    ids, rows = torch.arange(NUM_ROWS), EncodedBlocks.empty(codec, spec, NUM_ROWS)
    valid = torch.full((NUM_ROWS,), 9, dtype=torch.int32) if spec is SMALL else None
    if decode:
        kernel.decompress(rows, cache, ids, positions=None, workspace=None, num_threads=None)
    else:
        kernel.compress(cache, ids, valid, rows, positions=None, workspace=None, num_threads=None)


CASES = [
    Case(
        f"fp8:center=profile {label} {'decompress' if decode else 'compress'}: {name}",
        f"_centred_triton.{name}_kernel",
        functools.partial(run, spec, decode),
        NUM_ROWS * spec.numel,
        spec.dtype.itemsize,
        2 * spec.dtype.itemsize,  # a token's means come from the GPU's cache
    )
    for label, spec in (("bf16", BF16), ("small", SMALL))
    for name, decode in (("take_off", False), ("put_back", True))
]
