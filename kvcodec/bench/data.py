"""Blocks that a benchmark runs on: synthetic, or cut from a captured cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kvcodec.block import BlockSpec
from kvcodec.errors import InvalidInputError, MissingExtraError, UnsupportedSpecError

SHAPE = (8, 128)  # heads and head_dim of synthetic blocks
_NAME = re.compile(r"layers\.(\d+)\.(key|value)")


@dataclass(frozen=True, slots=True)
class Dataset:
    """Blocks of one spec.

    blocks: [n, block_size, num_kv_heads, head_dim], contiguous, on the CPU.
    positions: int64 [n], where in its sequence each block begins.
    """

    name: str
    blocks: torch.Tensor
    positions: torch.Tensor

    @property
    def spec(self) -> BlockSpec:
        """Spec of the blocks."""
        return BlockSpec.of(self.blocks)

    def take(self, n: int) -> Dataset:
        """n blocks, taken evenly: the layers of a model differ. More than there are repeat them."""
        size = len(self.blocks)
        chosen = torch.arange(n) % size if n > size else torch.arange(n) * size // n
        return Dataset(self.name, self.blocks[chosen], self.positions[chosen])


def synthetic(block_nbytes: int, total_nbytes: int, seed: int = 0) -> Dataset:
    """bf16 blocks of 8 heads x 128: Gaussian values under a log-normal scale of each channel."""
    tokens = _tokens(block_nbytes, 2 * SHAPE[0] * SHAPE[1])
    n = max(1, total_nbytes // (2 * tokens * SHAPE[0] * SHAPE[1]))
    draw = torch.Generator().manual_seed(seed)
    scales = torch.exp(0.5 * torch.randn(SHAPE, generator=draw))
    blocks = (torch.randn(n, tokens, *SHAPE, generator=draw) * scales).to(torch.bfloat16)
    return Dataset("synthetic", blocks, torch.arange(n) * tokens)


def load_file(
    path: Path,
    block_nbytes: int,
    total_nbytes: int,
    *,
    begin: int = 0,
    layers: Sequence[int] | None = None,
) -> list[Dataset]:
    """Keys and values of a captured cache, as two datasets named after the file.

    path: safetensors with `layers.<i>.key` and `layers.<i>.value`, each [tokens, num_kv_heads,
        head_dim] of one shape and type. Blocks hold as many whole tokens as fit `block_nbytes`;
        blocks are taken evenly from all layers and positions, up to `total_nbytes` for each.
    begin: first position to take. layers: those to take; all when None.

    Raises:
        InvalidInputError: no such file, or it holds something else.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtraError("--data needs safetensors: pip install safetensors") from error
    found: dict[str, dict[int, torch.Tensor]] = {"key": {}, "value": {}}
    try:
        with safe_open(str(path), "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if (match := _NAME.fullmatch(name)) is None:
                    raise InvalidInputError(
                        f"{str(path)!r} holds a tensor {name!r}, wanted layers.<i>.key and "
                        "layers.<i>.value of shape [tokens, num_kv_heads, head_dim]"
                    )
                found[match[2]][int(match[1])] = file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise InvalidInputError(f"data {str(path)!r} cannot be read: {error}") from error
    planes = [plane for layers in found.values() for plane in layers.values()]
    kinds = {(tuple(plane.shape), plane.dtype) for plane in planes}
    if len(kinds) != 1 or planes[0].dim() != 3 or not all(found.values()):
        raise InvalidInputError(
            f"{str(path)!r}: tensors of {sorted(map(str, kinds))}, wanted keys and values of one "
            "shape [tokens, num_kv_heads, head_dim] and one type"
        )
    return [
        _cut(
            f"{path.stem} {kind}",
            [of[i] for i in (sorted(of) if layers is None else layers)],
            begin,
            block_nbytes,
            total_nbytes,
        )
        for kind, of in found.items()
    ]


def _cut(
    name: str, planes: list[torch.Tensor], begin: int, block_nbytes: int, total_nbytes: int
) -> Dataset:
    token_nbytes = planes[0][0].numel() * planes[0].dtype.itemsize
    tokens = _tokens(block_nbytes, token_nbytes)
    here = len(planes[0]) - begin
    per_plane = max(0, here) // tokens
    if per_plane == 0:
        raise InvalidInputError(
            f"{name}: {here} tokens do not fill a block of {tokens}; "
            "take a longer cache or a smaller --block-nbytes"
        )
    n = per_plane * len(planes)
    wanted = min(n, max(1, total_nbytes // (tokens * token_nbytes)))
    chosen = [i * n // wanted for i in range(wanted)]
    cut = torch.stack(
        [planes[i // per_plane][begin + i % per_plane * tokens :][:tokens] for i in chosen]
    )
    begins = torch.tensor([begin + i % per_plane * tokens for i in chosen])
    try:
        BlockSpec.of(cut)
    except InvalidInputError as error:
        raise UnsupportedSpecError(f"{name}: {error}") from error
    return Dataset(name, cut, begins)


def _tokens(block_nbytes: int, token_nbytes: int) -> int:
    if block_nbytes < token_nbytes:
        raise InvalidInputError(
            f"--block-nbytes {block_nbytes} is less than a token of {token_nbytes} bytes"
        )
    return min(block_nbytes // token_nbytes, 0xFFFF)
