"""Matrix products of a 16-bit model in fp32, rounded once to the model's type."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def use_fp32_products(model: Any) -> None:
    """Let a bf16 or fp16 model's output head, and on a CPU all its linear layers, compute in fp32.

    Weights and activations keep their 16-bit values: a product of two of them is exact in fp32,
    sums are kept in fp32, and a layer's result is rounded once, as matrix units do. A CPU without
    16-bit units is several times faster this way, and all CPUs run the same steps. The head's
    result stays fp32: logits rounded to bf16 would add noise that belongs to no codec.
    """
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        if type(module) is not nn.Linear or module.weight.dtype not in (torch.bfloat16, torch.half):
            continue
        dtype = module.weight.dtype
        if module is head or module.weight.device.type == "cpu":
            # New parameters: an embedding that shares the head's weight must keep its type.
            module.weight = nn.Parameter(module.weight.detach().float(), requires_grad=False)
            if module.bias is not None:
                module.bias = nn.Parameter(module.bias.detach().float(), requires_grad=False)
            module.register_forward_pre_hook(_widen)
            if module is not head:
                module.register_forward_hook(_round_to(dtype))


def _widen(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(x.float() for x in inputs)


def _round_to(dtype: torch.dtype) -> Any:
    def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output.to(dtype)

    return hook
