"""A prefix run once, and its keys and values given to any cache as the model would give them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from kvcodec.errors import UnsupportedSpecError

States = dict[int, tuple[torch.Tensor, torch.Tensor]]  # layer -> keys, values [1, heads, n, dim]


class Recorder(DynamicCache):
    """The library's cache, which also keeps what every layer was given."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.states: States = {}

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Cache.update`."""
        self.states[layer_idx] = (key_states, value_states)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


def forward(model: Any, ids: Sequence[int], cache: Cache, *, last: bool = False) -> torch.Tensor:
    """Logits [n, vocab] of a sequence that continues `cache`; of its last token only if `last`."""
    accepted = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in accepted else "past_key_values"  # renamed in transformers 5.2x
    keep = {"logits_to_keep": 1} if last and "logits_to_keep" in accepted else {}
    tokens = torch.tensor([ids], device=model.device)
    output = model(input_ids=tokens, use_cache=True, **{name: cache}, **keep)
    logits: torch.Tensor = output.logits[0]
    return logits


def record(model: Any, ids: Sequence[int]) -> States:
    """Keys and values that the model makes of a sequence, layer by layer.

    Raises:
        UnsupportedSpecError: a layer keeps something else, so that they would not be enough.
    """
    recorder = Recorder(model.config)
    forward(model, ids, recorder, last=True)
    for index, layer in enumerate(recorder.layers):
        # Layers that share another's keys and values hold nothing and were given nothing.
        known = type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
        if not known and type(layer).__name__ != "DummyLayer":
            raise UnsupportedSpecError(
                f"layer {index} ({type(layer).__name__}) keeps more than keys and values; "
                "cached-prefix evaluation takes models of full and sliding-window attention"
            )
    return recorder.states


def replay(states: States, cache: Cache) -> Cache:
    """The cache after it was given recorded states."""
    for layer, (keys, values) in states.items():
        cache.update(keys, values, layer)
    return cache
