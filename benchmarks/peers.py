"""Other lossless compressors, each on bit patterns of bf16 elements: what it takes, what it gives.

Everything runs on one thread. A peer is imported only when it is measured; one that is not there is
reported with how to install it. Sizes include what a reader needs: tables, headers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

INSTALL = "pip install --target build/peers --no-deps -r requirements/peers.txt"


@dataclass(frozen=True)
class Codec:
    """compress: uint16 [n] -> anything with a size; decompress: its inverse.

    clone: whether `compress` destroys its input, so that it must be given a copy.
    """

    compress: Callable[[Any], Any]
    decompress: Callable[[Any], Any]
    size: Callable[[Any], int] = len
    clone: bool = False


@dataclass(frozen=True)
class Peer:
    """name, the package it needs, and how to set it up; whole: may take a buffer of many MiB."""

    name: str
    package: str
    make: Callable[[Any], Codec]
    whole: bool = True

    def load(self) -> Codec | str:
        """The codec, or why it is missing."""
        try:
            return self.make(importlib.import_module(self.package))
        except ImportError as error:
            return f"missing ({error}): {INSTALL}"


def zstd_planes(zstandard: Any) -> Codec:
    encoder, decoder = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()

    def compress(x: np.ndarray) -> tuple[bytes, bytes]:
        high, low = (x >> 8).astype(np.uint8), x.astype(np.uint8)
        return encoder.compress(high.data), encoder.compress(low.data)

    def decompress(planes: tuple[bytes, bytes]) -> np.ndarray:
        high, low = (np.frombuffer(decoder.decompress(plane), np.uint8) for plane in planes)
        return high.astype(np.uint16) << 8 | low

    return Codec(compress, decompress, lambda planes: sum(map(len, planes)))


def zstd_raw(zstandard: Any) -> Codec:
    encoder, decoder = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    return Codec(
        lambda x: encoder.compress(x.view(np.uint8).data),
        lambda blob: np.frombuffer(decoder.decompress(blob), np.uint16),
    )


def zipnn(module: Any) -> Codec:
    """Overwrites what it is given, and aborts the process on truncated input: it gets neither."""
    codec = module.ZipNN(input_format="torch", bytearray_dtype="bfloat16", threads=1)

    def compress(x: np.ndarray) -> bytes:
        return codec.compress(torch.from_numpy(x.view(np.int16)).view(torch.bfloat16))

    def decompress(blob: bytes) -> np.ndarray:
        return codec.decompress(blob).view(torch.int16).numpy().view(np.uint16).reshape(-1)

    return Codec(compress, decompress, clone=True)


def openzl(graph: str) -> Callable[[Any], Codec]:
    def make(ext: Any) -> Codec:
        compressor = ext.Compressor()
        store = ext.graphs.Store()(compressor)
        entropy = getattr(ext.graphs, graph)()(compressor)
        node = ext.nodes.BFloat16Deconstruct()
        compressor.select_starting_graph(node(compressor, sign_frac=store, exponent=entropy))
        compressor.set_parameter(ext.CParam.FormatVersion, ext.MAX_FORMAT_VERSION)
        encoder, decoder = ext.CCtx(), ext.DCtx()

        def compress(x: np.ndarray) -> bytes:
            encoder.ref_compressor(compressor)  # a context forgets it after every call
            return encoder.compress([ext.Input(ext.Type.Numeric, x)])

        def decompress(blob: bytes) -> np.ndarray:
            return decoder.decompress(blob)[0].content.as_nparray().view(np.uint16)

        return Codec(compress, decompress)

    return make


def blosc2(codec: str, level: int, shuffle: str) -> Callable[[Any], Codec]:
    def make(module: Any) -> Codec:
        options = {
            "typesize": 2,
            "codec": getattr(module.Codec, codec),
            "clevel": level,
            "filters": [getattr(module.Filter, shuffle)],
            "nthreads": 1,
        }
        return Codec(
            lambda x: module.compress2(x, **options),
            lambda blob: np.frombuffer(module.decompress2(blob, nthreads=1), np.uint16),
        )

    return make


def pcodec(module: Any) -> Codec:
    config = module.ChunkConfig()
    return Codec(
        lambda x: module.standalone.simple_compress(x, config),
        lambda blob: module.standalone.simple_decompress(blob),
    )


def constriction(module: Any) -> Codec:
    """Exponents by ANS under the block's own counts; 3 bytes a symbol for the table."""
    stack, models = module.stream.stack, module.stream.model

    def model(counts: np.ndarray) -> Any:
        return models.Categorical(counts.astype(np.float32) / counts.sum(), perfect=False)

    def compress(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        exponent = (x >> 7 & 0xFF).astype(np.int32)
        counts = np.bincount(exponent, minlength=256)
        coder = stack.AnsCoder()
        coder.encode_reverse(exponent, model(counts))
        raw = (x >> 8 & 0x80 | x & 0x7F).astype(np.uint8)
        return coder.get_compressed(), raw, counts

    def decompress(parts: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
        words, raw, counts = parts
        exponent = stack.AnsCoder(words).decode(model(counts), raw.size).astype(np.uint16)
        field = raw.astype(np.uint16)
        return (field & 0x80) << 8 | exponent << 7 | field & 0x7F

    def size(parts: tuple[np.ndarray, np.ndarray, np.ndarray]) -> int:
        return parts[0].nbytes + parts[1].nbytes + 3 * int((parts[2] > 0).sum())

    return Codec(compress, decompress, size)


PEERS = (
    Peer("openzl bf16, Huffman", "openzl.ext", openzl("Huffman")),
    Peer("openzl bf16, FSE", "openzl.ext", openzl("Fse")),
    Peer("zipnn bf16", "zipnn", zipnn),
    Peer("zstd 1 on byte planes", "zstandard", zstd_planes),
    Peer("zstd 1", "zstandard", zstd_raw),
    Peer("blosc2 zstd 1, shuffle", "blosc2", blosc2("ZSTD", 1, "SHUFFLE")),
    Peer("blosc2 lz4, bitshuffle", "blosc2", blosc2("LZ4", 5, "BITSHUFFLE")),
    Peer("pcodec", "pcodec", pcodec),
    Peer("constriction ANS of exponents", "constriction", constriction, whole=False),
)
CENTRED = Peer("openzl bf16, FSE, centred exponents", "openzl.ext", openzl("Fse"))


def centred(blocks: np.ndarray) -> np.ndarray:
    """Blocks [n, tokens, heads, dim] with each channel's mean exponent taken to 127, modulo 256.

    The means are of each block itself. A reader would need them too, one byte a channel, which is
    not counted: the result bounds what centring could give this coder.
    """
    exponent = (blocks >> 7 & 0xFF).astype(np.int64)
    shift = np.rint(exponent.mean(1, keepdims=True)).astype(np.int64) - 127
    moved = ((exponent - shift) & 0xFF).astype(np.uint16)
    return blocks & 0x807F | moved << 7
