"""The one-line form."""

from __future__ import annotations

from typing import Any

import torch

from kvcodec.block import EncodedBlocks
from kvcodec.codec import Codec, IntArray
from kvcodec.registry import get_codec


def compress(
    cache: torch.Tensor, block_ids: IntArray, codec: str | Codec = "lossless", **options: Any
) -> EncodedBlocks:
    """Encode blocks of a plane; `codec` is a spec string, a preset or a codec.

    Args and errors: `Codec.compress`.
    """
    return get_codec(codec).compress(cache, block_ids, **options)


def decompress(
    encoded: EncodedBlocks, cache: torch.Tensor, block_ids: IntArray, **options: Any
) -> torch.cuda.Event | None:
    """Decode rows into `cache[block_ids]`, in place. Args and errors: `Codec.decompress`."""
    return encoded.codec.decompress(encoded, cache, block_ids, **options)
