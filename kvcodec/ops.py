"""compress and decompress as operators of torch, so that torch.compile and CUDA graphs hold them.

Importing this module registers them; the package itself does not.

    import kvcodec.ops
    payload, nbytes = torch.ops.kvcodec.compress(cache, block_ids, None, "split")
    torch.ops.kvcodec.decompress(payload, nbytes, cache, block_ids, "split")

Codecs are given as spec strings, so calibrated codecs, which hold tables, are not served here. An
operator allocates its rows and scratch from torch's allocator, makes no event and never waits for
the host on a GPU; block ids must be int64 tensors on the cache's device.
"""

from __future__ import annotations

import functools

import torch

from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.registry import get_codec

_parse = functools.lru_cache(maxsize=256)(get_codec)


def _codec_for(spec: BlockSpec, codec: str) -> Codec:
    found = _parse(codec)
    found.require(spec)
    return found


@torch.library.custom_op("kvcodec::compress", mutates_args=())
def compress(
    cache: torch.Tensor, block_ids: torch.Tensor, num_valid: torch.Tensor | None, codec: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of blocks of a plane: payload uint8 [n, row_nbytes] and nbytes int32 [n].

    Args and errors: `Codec.compress`.
    """
    rows = _codec_for(BlockSpec.of(cache), codec).compress(cache, block_ids, num_valid=num_valid)
    return rows.payload, rows.nbytes


@compress.register_fake
def _(
    cache: torch.Tensor, block_ids: torch.Tensor, num_valid: torch.Tensor | None, codec: str
) -> tuple[torch.Tensor, torch.Tensor]:
    spec, n = BlockSpec.of(cache), block_ids.shape[0]
    row_nbytes = _codec_for(spec, codec).max_nbytes(spec)
    payload = cache.new_empty((n, row_nbytes), dtype=torch.uint8)
    return payload, cache.new_empty((n,), dtype=torch.int32)


@torch.library.custom_op("kvcodec::decompress", mutates_args=("cache",))
def decompress(
    payload: torch.Tensor,
    nbytes: torch.Tensor,
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    codec: str,
) -> None:
    """Decode rows into `cache[block_ids]`, in place. Args and errors: `Codec.decompress`."""
    spec = BlockSpec.of(cache)
    found = _codec_for(spec, codec)
    found.decompress(EncodedBlocks(found, spec, payload, nbytes), cache, block_ids)


@decompress.register_fake
def _(
    payload: torch.Tensor,
    nbytes: torch.Tensor,
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    codec: str,
) -> None:
    return None
