"""A cache that gives a model what its keys and values decode to, while it runs."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from kvcodec.bits import int_view
from kvcodec.eval.tally import Tally, now
from kvcodec.plan import KINDS, Plan
from kvcodec.profile import Kind


class DecodedCache(DynamicCache):
    """The library's cache, whose full-attention layers replace what they are given.

    Every key and value of a sequence goes through encode and decode, block by block, before any
    token attends to it; the codec sees each block once. For one sequence in one pass: blocks begin
    at the first token of an update.
    """

    def __init__(self, config: Any, plan: Plan, block_size: int, tally: Tally) -> None:
        super().__init__(config=config)
        self.plan, self.block_size, self.tally = plan, block_size, tally

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Cache.update`."""
        states = key_states, value_states
        if type(self.layers[layer_idx]) is DynamicLayer:
            key, value = KINDS
            states = (
                self._through(key_states, layer_idx, key),
                self._through(value_states, layer_idx, value),
            )
        return super().update(*states, layer_idx, *args, **kwargs)

    def _through(self, states: torch.Tensor, layer: int, kind: Kind) -> torch.Tensor:
        """States [1, heads, n, head_dim] as they come back from their rows."""
        _, heads, n, dim = states.shape
        num_blocks = -(-n // self.block_size)
        plane = states.new_zeros(num_blocks * self.block_size, heads, dim)
        plane[:n] = states[0].transpose(0, 1)
        plane = plane.view(num_blocks, self.block_size, heads, dim)
        valid = [min(self.block_size, n - i * self.block_size) for i in range(num_blocks)]
        codecs = [self.plan.codec(layer, kind, i) for i in range(num_blocks)]
        for codec in dict.fromkeys(codecs):
            ids = [i for i, of in enumerate(codecs) if of == codec]
            at = torch.tensor([i * self.block_size for i in ids])
            begun = now(states.device)
            rows = codec.compress(plane, ids, num_valid=[valid[i] for i in ids], positions=at)
            encoded = now(states.device)
            codec.decompress(rows, plane, ids, positions=at)
            self.tally.encode_seconds += encoded - begun
            self.tally.decode_seconds += now(states.device) - encoded
            self.tally.encoded_nbytes += rows.total_nbytes()
        decoded = plane.flatten(0, 1)[:n].transpose(0, 1)[None].contiguous()
        self.tally.numel += states.numel()
        self.tally.raw_nbytes += states.numel() * states.dtype.itemsize
        self.tally.bit_equal &= torch.equal(int_view(decoded), int_view(states.contiguous()))
        return decoded
