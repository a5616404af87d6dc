"""Golden files: inputs made by a fixed integer generator, and the bytes they must give for ever.

    python tests/golden.py

writes the files that are missing under formats/golden. A file that exists is never touched; when
the library no longer gives its bytes, that is an error and the format needs a new version.

`<case>.kvc` is a frame; `<case>.in` the bit patterns of its blocks, row after row, little-endian;
`<case>.out` what they decode to, for lossy codecs. rans/v1 holds vectors of the coder
itself (golden_rans.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import golden_rans
import numpy as np
import torch
from golden_rans import geometric, integers, to_json

from kvcodec import BlockSpec, EncodedBlocks, get_codec
from kvcodec.bits import DTYPES, FloatFormat, UInt, from_bits, to_bits
from kvcodec.frame import dumps, loads
from kvcodec.identity import Identity

ROOT = Path(__file__).parents[1] / "formats" / "golden"


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
    as the format goes; "edges" repeats `specials`; "zeros" is zeros.
    """
    fmt, draws = spec.format, integers(seed, spec.numel)
    m, e = fmt.mantissa_bits, fmt.exponent_bits
    if kind == "zeros":
        draws[:] = 0
    elif kind == "edges":
        draws = np.resize(specials(fmt), spec.numel)
    elif kind in ("cache", "tiny"):
        base = (1 << e) // 2 if kind == "cache" else max(7, (1 << e) // 2 - 98)
        level = integers(seed + 1000, spec.token_numel) % np.uint64(3) + np.uint64(base)
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


@dataclass(frozen=True)
class Case:
    """One frame, `<path>.kvc`, and its inputs and outputs."""

    path: str
    batches: tuple[Batch, ...]
    identity: Identity | None = None

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of every file, from the reference."""
        batches, inputs = [], b""
        for batch in self.batches:
            kinds = enumerate(batch.blocks, len(inputs))
            cache = torch.stack([make_block(kind, batch.spec, i) for i, (kind, _) in kinds])
            valid = [valid for _, valid in batch.blocks]
            batches.append(
                get_codec(batch.codec).compress(
                    cache, range(len(cache)), num_valid=valid, impl="reference"
                )
            )
            inputs += little_endian(cache)
        frame = dumps(batches, self.identity)
        yield f"{self.path}.kvc", frame
        yield f"{self.path}.in", inputs
        if not all(batch.codec.lossless for batch in batches):
            yield f"{self.path}.out", b"".join(map(decode, batches))
        if self.identity is not None:
            stamped = loads(frame).identity
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


def cases() -> Iterator[Case]:
    """Every frame: each codec and element type, partial blocks, special values, raw fallbacks."""
    for name in ("bf16", "fp16", "fp32", "e4m3fn", "e5m2"):
        small, large = BlockSpec(4, 3, 8, DTYPES[name]), BlockSpec(16, 2, 32, DTYPES[name])
        yield Case(f"raw/v1/{name}", (Batch("raw", small, (("edges", 4), ("noise", 3))),))
        blocks = (("edges", 16), ("cache", 16), ("cache", 11), ("noise", 16), ("zeros", 16))
        yield Case(f"split/v1/{name}", (Batch("split", large, (*blocks, ("noise", 0))),))
    opaque = BlockSpec(4, 3, 8, DTYPES["u8"])
    yield Case("raw/v1/u8", (Batch("raw", opaque, (("noise", 4), ("noise", 0))),))
    wide = BlockSpec(64, 1, 128, DTYPES["bf16"])  # 16 KiB: 64 lanes, the last round partly filled
    yield Case("split/v1/bf16-64-lanes", (Batch("split", wide, (("cache", 61),)),))
    for name, codec, source in (
        ("e4m3-bf16", "fp8", "bf16"),
        ("e4m3-fp16", "fp8", "fp16"),
        ("e4m3-fp32", "fp8", "fp32"),
        ("e5m2-bf16", "fp8:dtype=e5m2", "bf16"),
        ("e5m2-fp16", "fp8:dtype=e5m2", "fp16"),
        ("e5m2-fp32", "fp8:dtype=e5m2", "fp32"),
        ("e4m3-head-bf16", "fp8:scale=head", "bf16"),
        ("e4m3-block-fp16", "fp8:scale=block", "fp16"),
        ("e4m3-block-given-fp32", "fp8:scale=block,given=0.75", "fp32"),
        ("e5m2-head-given-bf16", "fp8:dtype=e5m2,scale=head,given=1.0/0.3/3e-05", "bf16"),
    ):
        spec = BlockSpec(4, 3, 16, DTYPES[source])
        blocks = (
            ("edges", 4), ("cache", 4), ("cache", 3), ("noise", 4), ("zeros", 4), ("tiny", 4)
        )  # fmt: skip
        yield Case(f"fp8/v1/{name}", (Batch(codec, spec, (*blocks, ("noise", 0))),))
    yield Case("frame/v1/empty", (), Identity(model="empty"))
    narrow, odd = BlockSpec(16, 2, 32, DTYPES["bf16"]), BlockSpec(16, 1, 48, DTYPES["bf16"])
    yield Case(
        "frame/v1/mixed",
        (
            Batch("split", narrow, (("cache", 16),)),
            Batch("fp8:scale=head", narrow, (("cache", 16), ("cache", 7))),
            Batch("fp8:scale=head", odd, (("cache", 16),)),
            Batch("split", narrow, (("edges", 2),)),
        ),
        Identity(
            tenant="t1",
            salt="",
            model="kvcodec/größe",
            revision="0" * 40,
            weight_format="q8_0",
            rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta": [32, 1.5]},
            layer=3,
            kind="key",
            block_key="5f2e00ff",
            num_heads=8,
            tp_rank=1,
            tp_size=4,
            pp_rank=0,
            pp_size=1,
            layout="nhd",
            rotation="none",
            rotation_version=0,
            profile_hash="",
            lora="",
        ),
    )


def files() -> Iterator[tuple[str, bytes]]:
    """Every golden file of this version: path under the root, and content."""
    for case in cases():
        yield from case.files()
    yield from golden_rans.files()


def write_missing(root: Path) -> tuple[list[str], list[str]]:
    """Write what is missing; returns the paths written, and those that exist and differ."""
    written, differing = [], []
    for name, content in files():
        path = root / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:  # fails rather than overwrites
                file.write(content)
            written.append(name)
        elif path.read_bytes() != content:
            differing.append(name)
    return written, differing


def main() -> None:
    """Write what is missing under formats/golden, or say what would have to change."""
    written, differing = write_missing(ROOT)
    print(f"{len(written)} golden files written", *written, sep="\n  ")
    if differing:
        sys.exit(
            "these files hold other bytes than the library gives; they are never overwritten, "
            "a change of bytes is a new version of the format:\n  " + "\n  ".join(differing)
        )


if __name__ == "__main__":
    main()
