"""Which machine a figure is of."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from kvcodec.eval.provenance import provenance
from kvcodec.kernels._native_call import num_cores


def cpu_name() -> str:
    """Model of the processor, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe(device: torch.device) -> dict[str, Any]:
    """JSON-able: processor, cores, instruction sets of the native kernels, GPU, versions."""
    try:
        from kvcodec.kernels._native_call import extension

        isas = [name for _, name in extension().isas()]
    except ImportError:
        isas = []
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "cpu": cpu_name(),
        "cores": num_cores(),
        "native": isas,
        "gpu": gpu,
        "cuda": torch.version.cuda,
        **provenance(),
    }
