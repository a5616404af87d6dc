"""Golden vectors of the rANS coder, and the integer generator behind every golden file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvcodec import rans
from kvcodec.bits import UInt


def integers(seed: int, n: int) -> UInt:
    """n 64-bit integers: a counter, scrambled by odd multipliers and shifts."""
    x = np.arange(1, n + 1, dtype=np.uint64) + np.uint64(seed << 32)
    for multiplier, shift in ((0x9E6D62D06F6A9A9B, 31), (0xD6E8FEB86659FD93, 29)):
        x *= np.uint64(multiplier)
        x ^= x >> np.uint64(shift)
    return x * np.uint64(0xA24BAED4963EE407) ^ np.uint64(seed)


def geometric(draws: UInt, most: int) -> UInt:
    """0 with probability 1/2, 1 with 1/4, ...: trailing zero bits, at most `most`."""
    return sum((draws % np.uint64(1 << k) == 0).astype(np.uint64) for k in range(1, most + 1))


def to_json(fields: dict[str, Any]) -> bytes:
    """One field to a line."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def files() -> Iterator[tuple[str, bytes]]:
    """Name and content of every vector: frequencies, and planes that share one stream."""
    counts = {
        "one": {7: 3},
        "two_equal": {0: 5, 255: 5},
        "three_equal": {1: 1, 2: 1, 3: 1},
        "all_equal": dict.fromkeys(range(256), 9),
        "seven_equal": dict.fromkeys(range(10, 17), 1),
        "rare_raised_to_1": {0: 10**6, 1: 999_999} | dict.fromkeys(range(2, 202), 1),
    }
    yield "rans/v1/frequencies.json", to_json({k: frequencies(v) for k, v in counts.items()})
    skewed, flat = geometric(integers(1, 150), 12), np.arange(256, dtype=np.uint64)
    for name, lanes, seeded, planes in (
        ("skewed-32-lanes", 32, True, [skewed + np.uint64(120)]),
        ("skewed-64-lanes", 64, False, [geometric(integers(2, 600), 20)]),
        ("one-symbol", 32, True, [np.full(70, 9, np.uint64)]),
        ("two-symbols", 32, False, [integers(3, 100) % np.uint64(2) * np.uint64(255)]),
        ("every-symbol-once", 32, True, [flat]),
        ("three-symbols-long", 32, True, [np.array([5, 5, 6], np.uint64)]),
        ("two-planes", 32, True, [skewed, integers(4, 131) % np.uint64(5)]),
    ):
        yield f"rans/v1/{name}.json", to_json(coded(lanes, seeded, planes))


def frequencies(counts: dict[int, int]) -> dict[str, Any]:
    """[symbol, count] pairs, the [symbol, frequency] pairs they become, and the table's bytes."""
    dense = np.zeros(256, np.int64)
    dense[list(counts)] = list(counts.values())
    freqs = rans.normalize(dense)
    return {
        "counts": pairs(dense),
        "freqs": pairs(freqs),
        "table": rans.pack_table(freqs).tobytes().hex(),
    }


def pairs(values: UInt) -> list[list[int]]:
    """[index, value] of what is not zero."""
    return [[int(i), int(values[i])] for i in np.flatnonzero(values)]


def coded(lanes: int, seeded: bool, planes: list[UInt]) -> dict[str, Any]:
    """Planes coded one after the other, each under the table of its own histogram."""
    freqs, begins, tables = [], [], []
    for symbols in planes:
        table = rans.normalize(np.bincount(symbols.astype(np.int64), minlength=256))
        grid = rans.to_grid(symbols, lanes, fill=-1)
        freqs.append(np.where(grid >= 0, table[grid], 0))
        begins.append(np.where(grid >= 0, rans.starts(table)[grid], 0))
        tables.append(pairs(table))
    seeds = (integers(5, lanes) % np.uint64(1 << 16) * np.uint64(seeded)).astype(np.int64)
    states, words = rans.encode(np.concatenate(freqs), np.concatenate(begins), seeds)
    return {
        "lanes": lanes,
        "seeds": seeds.tolist(),
        "tables": tables,
        "symbols": [symbols.tolist() for symbols in planes],
        "states": states.tolist(),
        "words": words.tolist(),
    }
