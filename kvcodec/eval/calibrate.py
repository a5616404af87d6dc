"""A model's profile: run it over whole contexts, and count what its keys and values look like."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable

import torch

import kvcodec
from kvcodec.bits import FORMATS, UInt, to_bits
from kvcodec.calibration import make_tables
from kvcodec.errors import InvalidInputError, UnsupportedSpecError
from kvcodec.eval.model import LoadedModel
from kvcodec.eval.replay import record
from kvcodec.eval.text import Text
from kvcodec.profile import Kind, Profile
from kvcodec.tables import Tables

MOST = 8192  # tokens of a context unless the caller wants more
TYPES = (torch.bfloat16, torch.float16, torch.float32)


def calibrate(
    loaded: LoadedModel,
    text: Text,
    context: int | None = None,
    tokens: int | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Profile:
    """Profile of a model from windows of `context` tokens of a text, each with one BOS in front.

    Keys after RoPE drift with their position, so a window is as long as the sequences to come: the
    model's trained length, at most 8192, when `context` is None. So many whole windows are run as
    `tokens` fills, one when it is None.

    Cost: a run of the model over the tokens, and the memory of their cache.

    Raises:
        InvalidInputError: the text does not fill a window, or the model takes no such window.
        UnsupportedSpecError: the cache is in a type that no table is made for.
    """
    context = context or min(loaded.context or MOST, MOST)
    if loaded.context is not None and context > loaded.context:
        raise InvalidInputError(
            f"context {context} is over the {loaded.context} tokens that {loaded.name} takes"
        )
    front = [] if loaded.bos is None else [loaded.bos]
    ids, step = loaded.tokenize(text.content), context - len(front)
    if step < 1 or len(ids) < step:
        raise InvalidInputError(
            f"the text has {len(ids)} tokens, a context of {context} needs {max(1, step)}; take a "
            "longer text, or a smaller --context if sequences will be that short"
        )
    windows = max(1, min((tokens or context) // context, len(ids) // step))
    advance(0, windows + 1)
    seen: dict[tuple[int, Kind], list[UInt]] = {}
    with torch.inference_mode():
        for i in range(windows):
            states = record(loaded.model, [*front, *ids[i * step : (i + 1) * step]])
            for layer, pair in states.items():
                kinds: tuple[Kind, Kind] = ("key", "value")
                for kind, state in zip(kinds, pair, strict=True):
                    seen.setdefault((layer, kind), []).append(_bits(state))
            advance(i + 1, windows + 1)
    planes: dict[tuple[int, Kind], Tables] = {
        place: make_tables(found, FORMATS[next(iter(states.values()))[0].dtype])
        for place, found in seen.items()
    }
    advance(windows + 1, windows + 1)
    read = windows * step
    return Profile(
        planes,
        {
            "model": loaded.name,
            "revision": loaded.revision,
            "context": context,
            "windows": windows,
            "bos": loaded.bos is not None,
            "texts": [
                {"name": text.name, "source": text.source, "sha256": text.sha256, "tokens": read}
            ],
            "versions": {
                "kvcodec": kvcodec.__version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": importlib.metadata.version("transformers"),
            },
        },
    )


def _bits(state: torch.Tensor) -> UInt:
    """[1, heads, n, head_dim] -> bit patterns [n, heads, head_dim] on the host."""
    if state.dtype not in TYPES:
        raise UnsupportedSpecError(f"the cache is {state.dtype}, wanted one of {TYPES}")
    return to_bits(state[0].transpose(0, 1).contiguous().cpu())
