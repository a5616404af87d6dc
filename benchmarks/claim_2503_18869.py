"""Does channel-major order, base-delta exponents and bit planes reach 1.88 on a bf16 KV cache?

arXiv:2503.18869 reports 46.9 % less memory for a KV cache: tokens of a group are laid out channel
by channel, the exponents of a channel in a group become differences to a base, the words are cut
into bit planes, and those go through LZ4 or zstd. This script does that to captured caches:

    python benchmarks/claim_2503_18869.py --site build/peers

The transform is inverted and compared before a size counts; bases count one byte each. LZ4 comes
from blosc2, without filters; its 32-byte header is not counted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import capture
import numpy as np
import zstandard
from safetensors import safe_open

from kvcodec.bits import to_bits

BLOCK = 4096  # bytes that are compressed together: a page, as in the paper


def load(paths: list[Path], kind: str, every: int) -> list[np.ndarray]:
    """uint16 [tokens, channels] of every so-manieth layer."""
    planes = []
    for path in paths:
        with safe_open(str(path), "pt") as file:
            names = [name for name in sorted(file.keys()) if name.endswith(kind)]
            planes += [to_bits(file.get_tensor(name)) for name in names[::every]]
    return [plane.reshape(len(plane), -1) for plane in planes]


def bases(exponent: np.ndarray, how: str) -> np.ndarray:
    """One exponent for each channel of [channels, tokens]."""
    if how == "min":
        return exponent.min(1)
    if how == "mode":
        return np.array([np.bincount(row, minlength=256).argmax() for row in exponent])
    return np.zeros(len(exponent), np.int64)


def forward(group: np.ndarray, how: str) -> tuple[np.ndarray, np.ndarray]:
    """[tokens, channels] -> bit planes uint8 [16, channels * tokens / 8], bases [channels]."""
    words = np.ascontiguousarray(group.T)
    exponent = (words >> 7 & 0xFF).astype(np.int64)
    base = bases(exponent, how)
    delta = ((exponent - base[:, None]) & 0xFF).astype(np.uint16)
    words = words & 0x807F | delta << 7
    planes = [np.packbits(words.reshape(-1) >> bit & 1) for bit in range(15, -1, -1)]
    return np.stack(planes), base


def inverse(planes: np.ndarray, base: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Inverse of `forward`; shape: (tokens, channels)."""
    words = np.zeros(shape[0] * shape[1], np.uint16)
    for plane in planes:
        words = words << 1 | np.unpackbits(plane)
    words = words.reshape(shape[::-1])
    exponent = ((words >> 7 & 0xFF) + base[:, None].astype(np.uint16)) & 0xFF
    return (words & 0x807F | exponent.astype(np.uint16) << 7).T


def compressors(blosc2: object, levels: list[int]) -> dict[str, object]:
    """Name -> bytes of a compressed buffer; never more than the buffer, as a page would be kept."""
    lz4 = {"typesize": 1, "clevel": 9, "nthreads": 1}
    lz4 |= {"codec": blosc2.Codec.LZ4, "filters": [blosc2.Filter.NOFILTER]}
    made = {"lz4": lambda data: len(blosc2.compress2(data, **lz4)) - 32}
    for level in levels:
        encoder = zstandard.ZstdCompressor(level=level)
        made[f"zstd {level}"] = lambda data, encoder=encoder: len(encoder.compress(data))
    return made


def size(data: np.ndarray, compress: object, block: int | None) -> int:
    """Bytes of a buffer compressed block by block, or whole."""
    raw = data.reshape(-1)
    step = block or raw.size
    pieces = [raw[i : i + step].tobytes() for i in range(0, raw.size, step)]
    return sum(min(compress(piece), len(piece)) for piece in pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", action="append", default=[])
    parser.add_argument("--captured", type=Path, default=capture.cache_dir())
    parser.add_argument("--texts", nargs="+", default=list(capture.TEXTS))
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--every", type=int, default=6, help="take each so-manieth layer")
    parser.add_argument("--levels", type=int, nargs="+", default=[3], help="of zstd")
    args = parser.parse_args()
    sys.path.extend(args.site)
    import blosc2

    named = compressors(blosc2, args.levels)
    paths = [capture.capture(name, args.tokens, args.captured) for name in args.texts]
    print("kind   tokens  base   unit      " + "".join(f"{name:>9}" for name in named))
    for kind in ("key", "value"):
        planes = load(paths, kind, args.every)
        raw = sum(plane.nbytes for plane in planes)
        for unit, block in (("4 KiB", BLOCK), ("group", None)):
            sizes = [sum(size(p.view(np.uint8), c, block) for p in planes) for c in named.values()]
            line = "".join(f"{raw / total:9.3f}" for total in sizes)
            print(f"{kind:6} {'as it is':14} {unit:8} {line}", flush=True)
        for tokens in (64, 512, args.tokens):
            for how in ("none", "min", "mode"):
                made = []
                for plane in planes:
                    for begin in range(0, len(plane) - tokens + 1, tokens):
                        group = plane[begin : begin + tokens]
                        cut, base = forward(group, how)
                        if not np.array_equal(inverse(cut, base, group.shape), group):
                            raise SystemExit("the transform does not invert")
                        made.append((cut, 0 if how == "none" else base.size))
                side = sum(extra for _, extra in made)
                for unit, block in (("4 KiB", BLOCK), ("group", None)):
                    sizes = [sum(size(cut, c, block) for cut, _ in made) for c in named.values()]
                    line = "".join(f"{raw / (total + side):9.3f}" for total in sizes)
                    print(f"{kind:6} {tokens:6}  {how:6} {unit:8} {line}", flush=True)


if __name__ == "__main__":
    main()
