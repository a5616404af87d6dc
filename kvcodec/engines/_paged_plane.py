"""Keys or values of one attention layer: encoded blocks, then the hot tail of recent tokens."""

from __future__ import annotations

import time

import torch

from kvcodec.block import BlockSpec
from kvcodec.codec import Codec, Kind
from kvcodec.engines._block_rows import BlockTable, decode_blocks, encode_blocks
from kvcodec.engines._cache_stats import CacheStats
from kvcodec.errors import InvalidInputError
from kvcodec.plan import EXACT, Plan
from kvcodec.registry import find_kernel, get_codec


class PagedPlane:
    """Tokens of all sequences of a batch; full blocks that left the hot tail are encoded.

    Args:
        states: [batch, num_kv_heads, any, head_dim], for shape, dtype and device only.
        hot_tokens: so many newest tokens always stay as they are.

    Raises:
        UnsupportedSpecError, ImplementationUnavailableError: the plan cannot serve this plane.
    """

    def __init__(
        self,
        states: torch.Tensor,
        plan: Plan,
        layer: int,
        kind: Kind,
        *,
        block_size: int,
        hot_tokens: int,
        impl: str,
    ) -> None:
        self.plan, self.layer, self.kind = plan, layer, kind
        self.block_size, self.hot_tokens, self.impl = block_size, hot_tokens, impl
        self.table: BlockTable = []
        self.hot = states[:, :, :0].detach().clone()  # [batch, num_kv_heads, tokens, head_dim]
        self.totals = CacheStats()
        # Hot tokens before this position have been through a lossy codec; once is enough.
        self.exact_until = 0
        self.spec = BlockSpec(block_size, states.shape[1], states.shape[3], states.dtype)
        for index in (0, plan.first_blocks):
            codec = plan.codec(layer, kind, index)
            codec.require(self.spec)
            find_kernel(codec, impl, states.device)

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.hot.shape[0]

    @property
    def hot_begin(self) -> int:
        """Position of the first token that is not encoded."""
        return len(self.table) * self.block_size

    @property
    def length(self) -> int:
        """Tokens of every sequence."""
        return self.hot_begin + self.hot.shape[2]

    def append(self, states: torch.Tensor) -> torch.Tensor:
        """Add tokens and return all, the new ones as they came; then encode what is due.

        states: [batch, num_kv_heads, added, head_dim]. The result is contiguous: attention kernels
        may sum in another order for other strides.
        """
        held, added = self.length, states.shape[2]
        if states[:, :, :0].shape != self.hot[:, :, :0].shape:
            raise InvalidInputError(
                f"layer {self.layer} {self.kind}: states of shape {tuple(states.shape)} after "
                f"{tuple(self.hot.shape)}; batch, heads and head_dim must stay, reset() first"
            )
        tokens = self.fetch(room=added)
        tokens[:, :, held:] = states
        self._encode(tokens.detach(), (held + added - self.hot_tokens) // self.block_size)
        self.hot = tokens[:, :, self.hot_begin :].detach().clone()
        return tokens

    def fetch(self, room: int = 0) -> torch.Tensor:
        """All tokens as attention sees them, [batch, num_kv_heads, length + room, head_dim]."""
        tokens = self._decode(self.table, 0, self.length + room)
        tokens[:, :, self.hot_begin : self.length] = self.hot
        return tokens

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens; a block that is cut becomes hot again as it decodes."""
        self.exact_until = min(self.exact_until, length)
        if length < self.hot_begin:
            index, kept = divmod(length, self.block_size)
            cut = self.table[index : index + 1] if kept else []
            self.hot = self._decode(cut, index, len(cut) * self.block_size)
            del self.table[index:]
            if cut and not cut[0][0].codec.lossless:
                self.exact_until = length
        self.hot = self.hot[:, :, : length - self.hot_begin].clone()

    def select(self, sequences: list[int]) -> None:
        """Sequence i becomes what `sequences[i]` was; rows are shared, not copied."""
        self.table = [[rows[i] for i in sequences] for rows in self.table]
        self.hot = self.hot[sequences]

    def stats(self) -> CacheStats:
        """Totals so far, and what is live."""
        rows = {row for block in self.table for row in block}
        return self.totals + CacheStats(
            live_rows=len(rows),
            live_numel=len(rows) * self.spec.numel,
            live_raw_nbytes=len(rows) * self.spec.nbytes,
            live_nbytes=sum(row.data.numel() for row in rows),
            hot_nbytes=self.hot.numel() * self.hot.dtype.itemsize,
        )

    def _codec(self, index: int) -> Codec:
        codec = self.plan.codec(self.layer, self.kind, index)
        if index * self.block_size < self.exact_until and not codec.lossless:
            return get_codec(EXACT)
        return codec

    def _encode(self, tokens: torch.Tensor, end: int) -> None:
        """Encode blocks up to index `end`, where they are not yet."""
        begun, first = time.perf_counter(), len(self.table)
        codecs = [self._codec(index) for index in range(first, end)]
        made = encode_blocks(tokens, codecs, first, self.block_size, self.impl)
        self.table += made
        sizes = [row.data.numel() for rows in made for row in rows]
        self.totals += CacheStats(
            blocks_encoded=len(sizes),
            bypassed=sum(n >= self.spec.nbytes for n in sizes),
            raw_nbytes=len(sizes) * self.spec.nbytes,
            encoded_nbytes=sum(sizes),
            encode_seconds=time.perf_counter() - begun,
        )

    def _decode(self, table: BlockTable, first: int, num_tokens: int) -> torch.Tensor:
        """A tensor of `num_tokens` tokens that begins with the blocks of `table`."""
        begun = time.perf_counter()
        _, heads, _, dim = self.hot.shape
        tokens = self.hot.new_empty(self.batch, heads, num_tokens, dim)
        decoded = decode_blocks(table, tokens, first, self.block_size, self.impl)
        seconds = time.perf_counter() - begun
        self.totals += CacheStats(blocks_decoded=decoded, decode_seconds=seconds)
        return tokens
