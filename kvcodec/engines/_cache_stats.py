"""Counters of a compressed cache, and what it holds right now."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache did since it was made, then (`live_*`, `hot_nbytes`) what it holds now.

    A block is counted once for keys and once for values. A live row that several sequences share
    is counted once. Stats of several layers add up with `+`.

    bypassed: encoded blocks whose row came out no smaller than the block.
    encode_seconds, decode_seconds: host time; on a GPU the launches, not the kernels.
    hot_nbytes: uncompressed tokens that the cache keeps.
    """

    blocks_encoded: int = 0
    blocks_decoded: int = 0
    bypassed: int = 0
    raw_nbytes: int = 0
    encoded_nbytes: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    live_rows: int = 0
    live_numel: int = 0
    live_raw_nbytes: int = 0
    live_nbytes: int = 0
    hot_nbytes: int = 0

    def __add__(self, other: CacheStats) -> CacheStats:
        names = [f.name for f in fields(self)]
        return CacheStats(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def ratio(self) -> float:
        """Raw bytes over encoded bytes of the live rows; NaN without any."""
        return self.live_raw_nbytes / self.live_nbytes if self.live_nbytes else math.nan

    @property
    def bits_per_element(self) -> float:
        """Bits of the live rows, side information included, per element; NaN without any."""
        return 8 * self.live_nbytes / self.live_numel if self.live_numel else math.nan
