"""A profile's tables on a GPU, and how rows of mode 3 (formats/split.md) are launched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import triton

from kvcodec import contexts, rans
from kvcodec.bits import FORMATS, int_view, plane_widths
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codecs.split import seeded
from kvcodec.kernels._bits_triton import format_constants
from kvcodec.kernels._profile_decode_triton import profile_decode_kernel, profile_join_kernel
from kvcodec.kernels._profile_encode_triton import profile_encode_kernel, profile_write_kernel
from kvcodec.row import align
from kvcodec.tables import Tables

TILE = 1024  # words or elements that a program moves in the launches beside the coder: 8 a thread


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """What the kernels load; entries of tables are `frequency | first slot << 16`.

    channels: int32 [5, live]: number, class, exponent of symbol 0, flip and sign class.
    dead: int32 [channels - live], numbers.
    exponents: uint32 [K, 25]. mantissas: uint32 [K, 25, 8]. begins: int32 [S, 5], of set signs.
    slots: uint32 [K, 4096], `symbol | frequency - 1 << 8 | slot - first << 20`.
    """

    channels: torch.Tensor
    dead: torch.Tensor
    exponents: torch.Tensor
    mantissas: torch.Tensor
    begins: torch.Tensor
    slots: torch.Tensor


@lru_cache(maxsize=256)
def device_tables(tables: Tables, device: torch.device) -> DeviceTables:
    """Made once for a plane and kept; about 0.2 MB each."""
    model = contexts.Model(tables, FORMATS_BY_NAME[tables.geometry[0]])
    lowest = model.centre - contexts.BELOW
    channels = np.stack([model.channels, model.kind, lowest, model.flip, model.sign_kind])
    dead = np.flatnonzero(tables.arrays["class"].reshape(-1) == 255)
    exponents = model.exponents[:, contexts.NONE]
    begins = rans.starts(exponents)
    symbols = np.tile(np.arange(exponents.shape[1]), (len(exponents), 1))
    repeat = exponents.reshape(-1)
    freqs, firsts, symbol = (x.reshape(-1).repeat(repeat) for x in (exponents, begins, symbols))
    bias = np.tile(np.arange(rans.TOTAL), len(exponents)) - firsts
    made = (
        channels,
        dead,
        exponents | begins << 16,
        model.mantissas | rans.starts(model.mantissas) << 16,
        rans.TOTAL - tables.arrays["signs"][:, 0].astype(np.int64),
        symbol | (freqs - 1) << 8 | bias << 20,
    )
    tensors = [torch.from_numpy(a.astype(np.uint32).view(np.int32)).to(device) for a in made]
    for i in (2, 3, 5):
        tensors[i] = tensors[i].view(torch.uint32)
    return DeviceTables(*tensors)


FORMATS_BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}


def constants(spec: BlockSpec) -> dict[str, int]:
    """Constants of the blocks, their fields and the planes of their low mantissa bits."""
    fmt = spec.format
    low = contexts.low_bits(fmt)
    widths = plane_widths(low) if low else ()
    w0, w1, w2 = (*widths, 0, 0, 0)[:3]
    q = seeded(contexts.low_format(fmt))[1] if low else 0
    shape = {"T": spec.block_size, "H": spec.num_kv_heads, "D": spec.head_dim}
    planes = {"LOW": low, "W0": w0, "W1": w1, "W2": w2, "Q": q}
    return {**shape, **format_constants(fmt), **planes, "LANES": rans.num_lanes(spec.nbytes)}


def max_words(spec: BlockSpec) -> int:
    """Words of a row that is shorter than a raw one, rounded up to 16 bytes."""
    return align(spec.nbytes) // 2


def encode_scratch(spec: BlockSpec, n: int) -> tuple[int, ...]:
    """Bytes of the sizes, states and words of n rows on their way."""
    return 4 * n, 4 * rans.num_lanes(spec.nbytes) * n, 2 * max_words(spec) * n


def decode_scratch(spec: BlockSpec, n: int) -> tuple[int, ...]:
    """Bytes of the last states of n rows."""
    return (4 * rans.num_lanes(spec.nbytes) * n,)


def compress(
    cache: torch.Tensor,
    ids: torch.Tensor,
    num_valid: torch.Tensor | None,
    out: EncodedBlocks,
    tables: Tables,
    pieces: tuple[torch.Tensor, ...],
) -> None:
    """Code blocks whose rows are written already, and write those that become shorter.

    Traffic: reads the blocks twice more; words cross the workspace once; writes the rows again.
    """
    spec, t = out.spec, device_tables(tables, cache.device)
    sizes, states, words = pieces
    valid = ids if num_valid is None else num_valid
    live, dead = t.channels.shape[1], len(t.dead)
    source = int_view(cache), ids, valid, t.channels
    coded = sizes.view(torch.int32), states.view(torch.uint32), words.view(torch.uint16)
    strides, each, limit = cache.stride(), constants(spec), max_words(spec)
    each["HAS_VALID"] = num_valid is not None
    profile_encode_kernel[(len(out),)](
        *source, t.dead, t.exponents, t.begins, t.mantissas, out.nbytes, *coded,
        live, dead, *strides, out.nbytes.stride(0), **each, MAX_WORDS=limit, num_warps=1,
    )  # fmt: skip
    profile_write_kernel[(len(out), triton.cdiv(spec.numel + 16, TILE))](
        *source, out.payload, *coded,
        live, *strides, out.payload.stride(0), **each, MAX_WORDS=limit, TILE=TILE,
    )  # fmt: skip


def decompress(
    encoded: EncodedBlocks,
    cache: torch.Tensor,
    ids: torch.Tensor,
    tables: Tables,
    pieces: tuple[torch.Tensor, ...],
) -> None:
    """Decode the rows of mode 3 into blocks that hold zeros; leaves the others alone.

    Traffic: reads the rows once; writes the blocks, and reads and writes them again where low
    mantissa bits are stored, from the L2 cache unless the batch outgrows it.
    """
    spec, n, rows = encoded.spec, len(encoded), encoded.payload
    t, each, target = device_tables(tables, cache.device), constants(spec), int_view(cache)
    (states,) = pieces
    source = rows, encoded.nbytes, target, ids, t.channels
    last, live = states.view(torch.uint32), t.channels.shape[1]
    sizes = rows.stride(0), encoded.nbytes.stride(0), rows.shape[1]
    profile_decode_kernel[(n,)](
        *source, t.slots, t.begins, t.mantissas, last,
        live, *sizes, *cache.stride(), **each, num_warps=1,
    )  # fmt: skip
    if each["LOW"]:
        profile_join_kernel[(n, triton.cdiv(spec.numel, TILE))](
            *source, last, live, *sizes, *cache.stride(), **each, TILE=TILE
        )
