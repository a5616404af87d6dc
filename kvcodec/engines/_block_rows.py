"""Encoded blocks as rows that block tables share, and the batched calls that make and read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcodec.block import BlockSpec, EncodedBlocks
from kvcodec.codec import Codec


@dataclass(frozen=True, slots=True, eq=False)
class BlockRow:
    """One encoded block in memory of its own, so that it is freed with its last reference.

    data: uint8 [nbytes], no reserved bytes. Compared by identity: sequences share rows.
    """

    codec: Codec
    data: torch.Tensor


BlockTable = list[list[BlockRow]]  # [num_blocks][batch]


def runs_of(tokens: torch.Tensor, block_size: int) -> torch.Tensor:
    """A plane whose blocks are the runs of `block_size` tokens, one starting at every token.

    tokens: [batch, num_kv_heads, num_tokens, head_dim], contiguous. The run that starts at token t
    of sequence b has the id `run_id(tokens, b, t)`. Runs overlap, those of a block table do not:
    so one call reads or writes them in place for a whole batch, whatever the number of tokens.
    """
    batch, heads, num_tokens, dim = tokens.shape
    last = run_id(tokens, batch - 1, num_tokens - block_size)
    return tokens.as_strided((last + 1, block_size, heads, dim), (dim, dim, num_tokens * dim, 1))


def run_id(tokens: torch.Tensor, sequence: int, at: int) -> int:
    """Id in `runs_of(tokens)` of the run that starts at token `at` of a sequence."""
    return sequence * tokens.shape[1] * tokens.shape[2] + at


def encode_blocks(
    tokens: torch.Tensor, codecs: list[Codec], first: int, block_size: int, impl: str
) -> BlockTable:
    """Rows of blocks `first`, `first + 1`, ... of every sequence; `codecs` has one per block.

    Cost: one compress call per distinct codec and one copy per row; waits for the device once per
    call, because rows are cut to their length.
    """
    batch = tokens.shape[0]
    made: dict[int, list[BlockRow]] = {}
    for codec in dict.fromkeys(codecs):
        indices = [first + k for k, c in enumerate(codecs) if c == codec]
        ats = [i * block_size for i in indices for _ in range(batch)]
        ids = [run_id(tokens, b, i * block_size) for i in indices for b in range(batch)]
        encoded = codec.compress(
            runs_of(tokens, block_size), ids, positions=torch.tensor(ats), impl=impl
        )
        sizes = encoded.nbytes.tolist()
        rows = [BlockRow(codec, encoded.payload[k, :n].clone()) for k, n in enumerate(sizes)]
        made.update({i: rows[k * batch : (k + 1) * batch] for k, i in enumerate(indices)})
    return [made[first + k] for k in range(len(codecs))]


def decode_blocks(
    table: BlockTable, tokens: torch.Tensor, first: int, block_size: int, impl: str
) -> int:
    """Write the blocks of `table` to the first tokens of `tokens`; returns how many were decoded.

    first: index in the sequence of the table's first block. A row that several sequences share is
    decoded once and copied. Cost: one decompress call per distinct codec.
    """
    places: dict[BlockRow, list[tuple[int, int]]] = {}  # row -> (sequence, index in table)
    for index, rows in enumerate(table):
        for sequence, row in enumerate(rows):
            places.setdefault(row, []).append((sequence, index))
    spec = BlockSpec(block_size, tokens.shape[1], tokens.shape[3], tokens.dtype)
    for codec in dict.fromkeys(row.codec for row in places):
        rows = [row for row in places if row.codec == codec]
        payload = tokens.new_empty(len(rows), codec.max_nbytes(spec), dtype=torch.uint8)
        for slot, row in zip(payload, rows, strict=True):
            slot[: row.data.numel()] = row.data
        sizes = torch.tensor([row.data.numel() for row in rows], dtype=torch.int32)
        encoded = EncodedBlocks(codec, spec, payload, sizes.to(tokens.device))
        homes = [places[row][0] for row in rows]
        ids = [run_id(tokens, b, i * block_size) for b, i in homes]
        ats = torch.tensor([(first + i) * block_size for _, i in homes])
        codec.decompress(encoded, runs_of(tokens, block_size), ids, positions=ats, impl=impl)
    for (source, index), *copies in places.values():
        span = slice(index * block_size, (index + 1) * block_size)
        for sequence, _ in copies:
            tokens[sequence, :, span] = tokens[source, :, span]
    return len(places)
