"""What every Triton kernel module shares: availability, and the object the registry looks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton

if TYPE_CHECKING:
    from kvcodec.block import EncodedBlocks


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (TRITON_INTERPRET=1 before the first import)."""
    return bool(triton.knobs.runtime.interpret)


def no_workspace(codec: object, spec: object, num_blocks: int) -> int:
    """Workspace of kernels that need none."""
    return 0


@contextmanager
def launching(cache: torch.Tensor) -> Iterator[None]:
    """Launch on the cache's device, whichever is current; overflow is arithmetic, not a warning."""
    with torch.cuda.device_of(cache), np.errstate(all="ignore"):  # type: ignore[no-untyped-call]
        yield


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """Launchers with the arguments of `registry.Kernel`, made current on the cache's device."""

    launch_compress: Callable[..., None]
    launch_decompress: Callable[..., None]
    workspace_nbytes: Callable[..., int] = no_workspace

    def compress(self, cache: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """See `Codec.compress`."""
        with launching(cache):
            self.launch_compress(cache, *args, **kwargs)

    def decompress(
        self, encoded: EncodedBlocks, cache: torch.Tensor, *args: Any, **kwargs: Any
    ) -> None:
        """See `Codec.decompress`."""
        with launching(cache):
            self.launch_decompress(encoded, cache, *args, **kwargs)

    def unavailable(self, device: torch.device) -> str | None:
        """CPU tensors need the interpreter."""
        return availability(device)


def availability(device: torch.device) -> str | None:
    """None, or why Triton kernels cannot run on tensors of `device`."""
    if device.type == "cuda" and not interpreted():
        return None
    if device.type == "cpu" and interpreted():
        return None
    if device.type == "cpu":
        return "Triton needs a GPU; TRITON_INTERPRET=1 runs its interpreter on CPU tensors"
    return f"Triton kernels do not run on {device.type} tensors here"
