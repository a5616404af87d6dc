"""A cache for Hugging Face transformers whose full-attention layers are compressed blocks."""

from __future__ import annotations

from typing import Any

import torch

from kvcodec.engines._cache_stats import CacheStats
from kvcodec.engines._paged_plane import PagedPlane
from kvcodec.errors import InvalidInputError, KVCodecError, MissingExtraError
from kvcodec.plan import KINDS, Plan

try:
    from transformers import PreTrainedConfig
    from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer
except ImportError as error:
    raise MissingExtraError(
        "kvcodec.engines.transformers needs transformers 5.19 or newer; "
        "pip install 'kvcodec-paged[eval]' brings it"
    ) from error


class PagedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer in blocks, behind the interface of the library's layers.

    `keys` and `values` stay None: no tensor of all tokens is kept. `fetch` makes them.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, plan: Plan, layer: int, **options: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.plan, self.layer, self.options = plan, layer, options
        self.planes: list[PagedPlane] = []  # keys, values; empty until the first states

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take shapes, dtype and device from the first states; errors: see PagedPlane."""
        self.planes = [
            PagedPlane(states, self.plan, self.layer, kind, **self.options)
            for kind, states in zip(KINDS, (key_states, value_states), strict=True)
        ]
        self.device = key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add tokens and return all keys and values, [batch, num_kv_heads, tokens, head_dim]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.planes
        return keys.append(key_states), values.append(value_states)

    def fetch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values as the next forward will see them; the layer holds some tokens."""
        keys, values = self.planes
        return keys.fetch(), values.fetch()

    def get_seq_length(self) -> int:
        """Tokens of every sequence."""
        return self.planes[0].length if self.planes else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Tokens that the next forward attends to, and their offset."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """-1: no maximum."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last `-tokens_to_remove` tokens.

        A block that is cut comes back as it decodes. What a lossy codec changed once is stored
        lossless from then on: cropping and refilling never changes an older token.
        """
        if tokens_to_remove > 0:
            raise InvalidInputError(
                f"crop({tokens_to_remove}): pass a negative number, the tokens to remove"
            )
        length = max(0, self.get_seq_length() + tokens_to_remove)
        for plane in self.planes:
            plane.crop(length)

    def reset(self) -> None:
        """Forget everything, shapes and counters included."""
        self.planes, self.is_initialized = [], False

    def _select(self, picks: Any) -> None:
        """`picks`: anything that indexes the batch axis."""
        for plane in self.planes:
            plane.select(torch.arange(plane.batch, device=self.device)[picks].tolist())

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Sequence i continues sequence `beam_idx[i]`; only references move."""
        self._select(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some sequences, by index or mask."""
        self._select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Make `repeats` sequences of each one; they share their blocks."""
        for plane in self.planes:
            plane.select([i for i in range(plane.batch) for _ in range(repeats)])

    def offload(self) -> None:
        """Not offered."""
        raise NotImplementedError(
            "KVCodecCache keeps its blocks compressed on the model's device and does not offload"
        )

    prefetch = offload


class KVCodecCache(Cache):
    """Pass it as `cache` (`past_key_values` before that name came) to forward or generate.

    Full-attention layers keep their tokens in compressed blocks. Sliding-window, linear-attention
    and hybrid layers keep the library's own layers. For inference: no gradient flows through
    compressed tokens.

    Args:
        config: the model's config; tells which layers are which.
        plan: a `Plan`, or the text of one: a preset, a codec, `key=SPEC,value=SPEC`.
        block_size: tokens of a block. A block is encoded when it is full.
        hot_tokens: so many newest tokens always stay uncompressed.
        impl: implementation of the codecs, as in `Codec.compress`.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        plan: Plan | str = "lossless",
        *,
        block_size: int = 64,
        hot_tokens: int = 0,
        impl: str = "auto",
    ) -> None:
        if block_size < 1 or hot_tokens < 0:
            raise InvalidInputError(
                f"KVCodecCache: block_size {block_size} and hot_tokens {hot_tokens}, wanted at "
                "least 1 and 0"
            )
        plan = Plan.parse(plan) if isinstance(plan, str) else plan
        options = {"block_size": block_size, "hot_tokens": hot_tokens, "impl": impl}
        layers = DynamicCache(config=config).layers
        super().__init__(
            layers=[
                PagedLayer(plan, index, **options) if type(layer) is DynamicLayer else layer
                for index, layer in enumerate(layers)
            ]
        )

    def layer_stats(self) -> dict[int, CacheStats]:
        """Stats of every layer that can hold blocks, by layer index; other layers are absent."""
        return {
            index: sum((plane.stats() for plane in layer.planes), CacheStats())
            for index, layer in enumerate(self.layers)
            if isinstance(layer, PagedLayer)
        }

    def stats(self) -> CacheStats:
        """Stats of all layers that can hold blocks, since the cache was made or reset."""
        return sum(self.layer_stats().values(), CacheStats())

    def assert_active(self) -> None:
        """Raise KVCodecError unless some block is smaller than it was."""
        stats = self.stats()
        if stats.blocks_encoded == stats.bypassed:
            raise KVCodecError(
                f"KVCodecCache compressed nothing: {self.get_seq_length()} tokens in "
                f"{len(self.layer_stats())} full-attention of {len(self.layers)} layers, "
                f"{stats.blocks_encoded} blocks encoded, {stats.bypassed} of them no smaller than "
                "raw; a block is encoded when it is full and older than hot_tokens"
            )
