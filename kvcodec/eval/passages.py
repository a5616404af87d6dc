"""A text cut into overlapping passages, so that every token is scored once with a long past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcodec.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Cut:
    """How a text is cut.

    window: tokens that a passage feeds to the model, its BOS included.
    prefix: so many of them go to the cache first and through the codec; whole blocks. 0: all go
        through it while the model runs.
    block_size: tokens of a block.
    tokens: at most so many are scored; all when None.
    """

    window: int = 1024
    prefix: int = 512
    block_size: int = 64
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.prefix < 0 or self.prefix % self.block_size:
            raise InvalidInputError(
                f"prefix {self.prefix} is not a multiple of the block size {self.block_size}: "
                "every block of the prefix must be full to be compressed"
            )
        if self.prefix >= self.window:
            raise InvalidInputError(
                f"prefix {self.prefix} is not below window {self.window}: nothing would be scored"
            )
        if self.tokens is not None and self.tokens < 1:
            raise InvalidInputError(f"tokens is {self.tokens}, wanted at least 1")

    @property
    def whole(self) -> bool:
        """Whether every key and value is replaced while the model runs."""
        return self.prefix == 0

    @property
    def mode(self) -> str:
        """Name of the method, see docs/evaluation.md."""
        return "whole-sequence" if self.whole else "cached-prefix"


@dataclass(frozen=True, slots=True)
class Passage:
    """Token ids: `prefix` fills the cache; each token of `fed` predicts that of `targets`."""

    prefix: tuple[int, ...]
    fed: tuple[int, ...]
    targets: tuple[int, ...]


def cut_passages(ids: Sequence[int], bos: int | None, cut: Cut) -> list[Passage]:
    """Passages of `cut.window` tokens, `window - prefix` apart; the last may be shorter.

    A passage begins with `bos`, if there is one, whatever comes before it in the text. All tokens
    but those of the first prefix and the one fed after it are targets, each of them once; without a
    prefix, all that something is fed before.

    Raises:
        InvalidInputError: the text does not fill a passage.
    """
    front = [] if bos is None else [bos]
    stride, held = cut.window - cut.prefix, cut.prefix - len(front)
    if len(ids) < held + stride + 1:
        raise InvalidInputError(
            f"the text has {len(ids)} tokens, a window of {cut.window} needs "
            f"{held + stride + 1}; take a longer text or a smaller --window"
        )
    first = held + 1  # the first target
    end = len(ids) if cut.tokens is None else min(len(ids), first + cut.tokens)
    passages = []
    for begin in range(first, end, stride):
        stop = min(begin + stride, end)
        run = (*front, *ids[begin - first : stop - 1])
        passages.append(Passage(run[: cut.prefix], run[cut.prefix :], tuple(ids[begin:stop])))
    return passages
