"""split on a GPU: three launches each way, five with a profile, for any batch; no host sync."""

from __future__ import annotations

from typing import Any, cast

import torch
import triton

from kvcodec import rans
from kvcodec.bits import int_view
from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec
from kvcodec.codecs.split import Split
from kvcodec.kernels import _profile_triton
from kvcodec.kernels._bits_triton import format_constants, plane_constants
from kvcodec.kernels._rows_triton import check_rows, neighbours, scratch
from kvcodec.kernels._split_decode_triton import decode_kernel, fill_kernel, slots_kernel
from kvcodec.kernels._split_encode_triton import count_kernel, encode_kernel, write_kernel
from kvcodec.kernels._triton import TritonKernel
from kvcodec.row import align
from kvcodec.tables import Tables

TILE_COUNT = 2048  # elements that a histogram takes in one go: 16 a thread
TILE = 1024  # bytes, words or elements that a program moves in the copying launches: 8 a thread


def max_words(spec: BlockSpec) -> int:
    """Words that fit a row shorter than a raw one, rounded up to 16 bytes.

    A raw row spends E + M + 1 bits on an element. A coded row spends M + 1 of them too, less the
    2 bytes a lane that ride in its 4-byte state: what is left for words is under E bits each.
    """
    return align(-(-spec.numel * spec.format.exponent_bits // 8)) // 2


def encode_scratch(codec: Codec, spec: BlockSpec, n: int) -> tuple[int, ...]:
    """Bytes of the tables, sizes, states and words of n rows on their way; centred, of origins."""
    lanes, symbols = rans.num_lanes(spec.nbytes), 1 << spec.format.exponent_bits
    origins = (spec.token_numel + 2) * n if is_centred(codec) else 0
    return 4 * symbols * n, 8 * n, 4 * lanes * n, 2 * max_words(spec) * n, origins


def decode_scratch(codec: Codec, spec: BlockSpec, n: int) -> tuple[int, ...]:
    """Bytes of the expanded tables of n rows; centred, of origins."""
    return 4 * rans.TOTAL * n, spec.token_numel * n if is_centred(codec) else 0


def is_centred(codec: Codec) -> bool:
    """Whether rows may be in mode 2."""
    return cast(Split, codec).model != "plain"


def profile_of(codec: Codec) -> Tables | None:
    """The tables of rows that may be in mode 3."""
    split = cast(Split, codec)
    return split.held() if split.model == "profile" else None


def workspace_nbytes(codec: Codec, spec: BlockSpec, num_blocks: int) -> int:
    """Scratch of `compress` or `decompress`, whichever takes more."""
    encode, decode = (
        encode_scratch(codec, spec, num_blocks),
        decode_scratch(codec, spec, num_blocks),
    )
    if cast(Split, codec).model == "profile":
        encode += _profile_triton.encode_scratch(spec, num_blocks)
        decode += _profile_triton.decode_scratch(spec, num_blocks)
    return max(sum(map(align, each)) for each in (encode, decode))


def constants(spec: BlockSpec) -> tuple[dict[str, int], dict[str, int]]:
    """Constants of the blocks, and of the rows' planes."""
    shape = {"T": spec.block_size, "H": spec.num_kv_heads, "D": spec.head_dim}
    lanes = {"LANES": rans.num_lanes(spec.nbytes)}
    return {**shape, **format_constants(spec.format)}, {**plane_constants(spec.format), **lanes}


def compress(
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    num_valid: torch.Tensor | None,
    out: EncodedBlocks,
    *,
    workspace: torch.Tensor | None,
    **unused: Any,
) -> None:
    """Encode a batch: count exponents, code them, choose the mode and write the row.

    With a profile, code again under its tables and write the rows that become shorter.

    The coder needs one program per row, whose states depend on each other step by step; the writing
    launch spreads a row over many.

    Traffic: reads the blocks three times, the second and third time from the L2 cache unless the
    batch outgrows it; writes the rows; words cross the workspace once.
    """
    spec, n = out.spec, len(out)
    check_rows(out.payload)
    block, planes = constants(spec)
    block["HAS_VALID"] = num_valid is not None
    coder = {k: planes[k] for k in ("W0", "Q", "LANES")}
    limit = max_words(spec)
    needed = encode_scratch(out.codec, spec, n)
    profile = profile_of(out.codec)
    more = _profile_triton.encode_scratch(spec, n) if profile else ()
    pieces = scratch(workspace, cache.device, *needed, *more)
    tables, sizes, states, words, origins = pieces[:5]
    # an argument only of those launches that use it, so that plain kernels stay what they are
    centring = {"origins_ptr": origins, "CENTRED": True} if is_centred(out.codec) else {}
    ids = block_ids.contiguous()
    valid = ids if num_valid is None else num_valid.contiguous()
    source = int_view(cache), ids, valid, tables.view(torch.uint32), sizes.view(torch.int32)
    coded = states.view(torch.uint32), words.view(torch.uint16)
    count_kernel[(n,)](*source, *cache.stride(), **block, TILE=TILE_COUNT, **centring)
    encode_kernel[(n,)](
        *source, *coded, *cache.stride(), **block, **coder, MAX_WORDS=limit, num_warps=1, **centring
    )
    write_kernel[(n, triton.cdiv(spec.numel + 16, TILE))](
        *source, *coded, out.payload, out.nbytes,
        *cache.stride(), out.payload.stride(0), out.nbytes.stride(0),
        **block, **planes, MAX_WORDS=limit, TILE=TILE, **centring,
    )  # fmt: skip
    if profile is not None:
        given = None if num_valid is None else valid
        _profile_triton.compress(cache, ids, given, out, profile, pieces[5:])


def decompress(
    encoded: EncodedBlocks,
    cache: torch.Tensor,
    block_ids: torch.Tensor,
    *,
    workspace: torch.Tensor | None,
    **unused: Any,
) -> None:
    """Decode a batch: expand the symbol tables, decode coded rows, fill in everything else.

    Rows of a profile's mode are filled with zeros first, and decoded then.

    A damaged row whose sizes do not tile it decodes to zeros; any other damage gives wrong values.
    Neither loads leave the row nor stores the block, and loops are bounded by the block's size.

    Traffic: reads the rows once and writes the blocks once; the expanded tables, 16 KiB a row, are
    written to and read from the workspace, in cache if the batch is not thousands of rows.
    """
    spec, n, rows = encoded.spec, len(encoded), encoded.payload
    check_rows(rows)
    block, planes = constants(spec)
    profile = profile_of(encoded.codec)
    more = _profile_triton.decode_scratch(spec, n) if profile else ()
    pieces = scratch(workspace, cache.device, *decode_scratch(encoded.codec, spec, n), *more)
    slots, origins = pieces[:2]
    centred: dict[str, Any] = {"CENTRED": True} if is_centred(encoded.codec) else {}
    centring = {"origins_ptr": origins, **centred} if centred else {}
    slots = slots.view(torch.uint32)
    ids, target = block_ids.contiguous(), int_view(cache)
    sizes = rows.stride(0), encoded.nbytes.stride(0), rows.shape[1]
    slots_kernel[(n,)](
        rows, encoded.nbytes, slots, *sizes, **block, **planes, num_warps=8, **centring
    )
    # 7 bits of mantissa: a field is a byte, and four of them a word
    groups = neighbours(target, 4) if spec.format.mantissa_bits == 7 else None
    into = target if groups is None else groups
    decode_kernel[(n,)](
        rows, encoded.nbytes, slots, into, ids, *sizes, *into.stride(),
        **block, **planes, GROUPED=groups is not None, num_warps=1, **centring,
    )  # fmt: skip
    fill_kernel[(n, triton.cdiv(spec.numel, TILE))](
        rows,
        encoded.nbytes,
        target,
        ids,
        *sizes,
        *cache.stride(),
        **block,
        **planes,
        TILE=TILE,
        **centred,
    )
    if profile is not None:
        _profile_triton.decompress(encoded, cache, ids, profile, pieces[2:])


KERNEL = TritonKernel(compress, decompress, workspace_nbytes)
