"""What a golden case is, and the blocks it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from golden_rans import geometric, integers, to_json

from kvcodec import BlockSpec, EncodedBlocks, Profile, get_codec
from kvcodec.bits import FloatFormat, UInt, from_bits, to_bits
from kvcodec.frame import dumps, loads
from kvcodec.identity import Identity


def specials(fmt: FloatFormat) -> UInt:
    """Patterns at the edges of every field: zeros, subnormals, largest, infinities, NaNs."""
    m, e = fmt.mantissa_bits, fmt.exponent_bits
    exponents = {0, 1, (1 << e) // 2, max(0, (1 << e) - 2), (1 << e) - 1}
    mantissas = {0, 1, (1 << m) // 2, (1 << m) - 1}
    edges = [s << (m + e) | x << m | y for s in (0, 1) for x in exponents for y in mantissas]
    return np.array(sorted(edges), np.uint64)


def make_block(kind: str, spec: BlockSpec, seed: int) -> torch.Tensor:
    """Block [block_size, num_kv_heads, head_dim] of bit patterns.

    kind: "noise" is random bits; "cache" has random signs and mantissas, and exponents that fall
    off geometrically below a level of each channel's own; "tiny" is the same near 2^-98, or as low
    as the format goes; "channels" is "cache" with levels far apart; "edges" repeats
    `specials`; "zeros" is zeros.
    """
    fmt, draws = spec.format, integers(seed, spec.numel)
    m, e = fmt.mantissa_bits, fmt.exponent_bits
    if kind == "zeros":
        draws[:] = 0
    elif kind == "edges":
        draws = np.resize(specials(fmt), spec.numel)
    elif kind in ("cache", "tiny", "channels"):
        base = max(7, (1 << e) // 2 - 98) if kind == "tiny" else (1 << e) // 2
        spread = np.uint64(6 if kind == "channels" else 3)
        level = integers(seed + 1000, spec.token_numel) % spread + np.uint64(base)
        exponent = np.resize(level, spec.numel) - geometric(draws >> np.uint64(32), 6)
        sign_mantissa = draws & np.uint64((2 << m) - 1)
        draws = (sign_mantissa >> np.uint64(m) << np.uint64(m + e)) | exponent << np.uint64(m)
        draws |= sign_mantissa & np.uint64((1 << m) - 1)
    bits = draws.astype(f"u{fmt.itemsize}").reshape(spec.shape)
    return from_bits(bits, spec.dtype)


@dataclass(frozen=True)
class Batch:
    """Blocks of one codec and spec: what each looks like, and its valid tokens."""

    codec: str
    spec: BlockSpec
    blocks: tuple[tuple[str, int], ...]
    profile: Profile | None = None  # whose layer 0 keys the codec is bound to


@dataclass(frozen=True)
class Case:
    """One frame, `<path>.kvc`, and its inputs and outputs."""

    path: str
    batches: tuple[Batch, ...]
    identity: Identity | None = None

    @property
    def decode_only(self) -> bool:
        """Whether a library's version decides the frame's bytes: it is read for ever, no more."""
        return not all(get_codec(batch.codec).portable_bytes for batch in self.batches)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of every file, from the reference."""
        batches, inputs = [], b""
        for batch in self.batches:
            kinds = enumerate(batch.blocks, len(inputs))
            cache = torch.stack([make_block(kind, batch.spec, i) for i, (kind, _) in kinds])
            valid = [valid for _, valid in batch.blocks]
            codec = get_codec(batch.codec)
            if batch.profile is not None:
                codec = codec.bind(batch.profile, 0, "key")
            batches.append(
                codec.compress(cache, range(len(cache)), num_valid=valid, impl="reference")
            )
            inputs += little_endian(cache)
        frame = dumps(batches, self.identity)
        yield f"{self.path}.kvc", frame
        yield f"{self.path}.in", inputs
        for profile in {id(b.profile): b.profile for b in self.batches if b.profile}.values():
            yield f"{self.path}.profile", profile.to_bytes()
        if not all(batch.codec.lossless for batch in batches):
            yield f"{self.path}.out", b"".join(map(decode, batches))
        if self.identity is not None:
            profiles = [batch.profile for batch in self.batches if batch.profile]
            stamped = loads(frame, profiles=profiles).identity
            fields = {"fingerprint": stamped.fingerprint(), "identity": stamped.to_json()}
            yield f"{self.path}.json", to_json(fields)


def little_endian(blocks: torch.Tensor) -> bytes:
    """Bit patterns of contiguous blocks."""
    bits = to_bits(blocks)
    return bits.astype(bits.dtype.newbyteorder("<")).tobytes()


def decode(rows: EncodedBlocks) -> bytes:
    """Bit patterns that the reference decodes rows to."""
    cache = torch.zeros(len(rows), *rows.spec.shape, dtype=rows.spec.dtype)
    rows.codec.decompress(rows, cache, range(len(rows)), impl="reference")
    return little_endian(cache)
