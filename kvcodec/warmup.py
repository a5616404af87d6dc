"""Compile ahead of the first request: no kernel is built on the request path afterwards."""

from __future__ import annotations

import torch

from kvcodec.bits import int_view
from kvcodec.block import BlockSpec
from kvcodec.calibrated import Calibrated
from kvcodec.codec import Codec
from kvcodec.plan import Plan


def warmup(
    plan: Plan | Codec | str, like: BlockSpec | torch.Tensor, device: torch.device | str = "cpu"
) -> int:
    """Run every codec of a plan once each way, with and without `num_valid`, on scratch memory.

    Triton compiles a kernel for a block's shape, the element type and what it sees in the strides
    (which are 1, which multiples of 16). Give the plane itself where it is not contiguous: memory
    with its strides is allocated, one block of it, and the plane is neither read nor written.

    Args:
        plan: a plan, a codec, or the text of either.
        like: a plane [num_blocks, block_size, num_kv_heads, head_dim], or the spec of a contiguous
            one on `device`.

    Returns:
        How many codecs were run; those that do not support the spec are left out, as the first
        call would refuse them.
    Cost: on a GPU the compilation, seconds for a codec; then waits for the device.
    """
    if isinstance(plan, Codec):
        plan = Plan(plan, plan)
    elif isinstance(plan, str):
        plan = Plan.parse(plan)
    if isinstance(like, torch.Tensor):
        spec, device, strides = BlockSpec.of(like), like.device, like.stride()
    else:
        spec = like
        strides = (spec.numel, spec.token_numel, spec.head_dim, 1)
    plane = torch.empty_strided((1, *spec.shape), strides, dtype=spec.dtype, device=device)
    int_view(plane).zero_()
    codecs = [codec for codec in plan.codecs() if codec.supports(spec) is None]
    if any(_held(codec) for codec in codecs):  # a bound plan still names what it was bound from
        codecs = [codec for codec in codecs if _held(codec) or not codec.needs_profile]
    positions = torch.zeros(1, dtype=torch.int64)
    for codec in codecs:
        for num_valid in (None, [spec.block_size]):
            rows = codec.compress(plane, [0], num_valid=num_valid, positions=positions)
            codec.decompress(rows, plane, [0], positions=positions)
    if plane.is_cuda:
        torch.cuda.synchronize(plane.device)
    return len(codecs)


def _held(codec: Codec) -> bool:
    """Whether the codec holds tables of a profile."""
    return isinstance(codec, Calibrated) and codec.bound is not None
