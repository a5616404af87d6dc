"""What every Triton kernel module shares: availability, and the object the registry looks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (TRITON_INTERPRET=1 before the first import)."""
    return bool(triton.knobs.runtime.interpret)


def no_workspace(codec: object, spec: object, num_blocks: int) -> int:
    """Workspace of kernels that need none."""
    return 0


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """compress, decompress and workspace_nbytes of one codec; see `registry.Kernel`."""

    compress: Callable[..., None]
    decompress: Callable[..., None]
    workspace_nbytes: Callable[..., int] = no_workspace

    def unavailable(self, device: torch.device) -> str | None:
        """CPU tensors need the interpreter."""
        if device.type == "cuda" and not interpreted():
            return None
        if device.type == "cpu" and interpreted():
            return None
        if device.type == "cpu":
            return "Triton needs a GPU; TRITON_INTERPRET=1 runs its interpreter on CPU tensors"
        return f"Triton kernels do not run on {device.type} tensors here"
