"""Products of 16-bit models in fp32: what is rounded, where, and what stays as it was."""

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from eval.tiny import tiny_config
from kvcodec.eval.precision import use_fp32_products


class Headed(nn.Module):
    """The least a causal model offers: layers, and which of them is the head."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(512, 4, dtype=dtype)
        self.head = nn.Linear(4, 3, bias=False, dtype=dtype)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_sums_exactly_and_rounds_once(dtype):
    model = Headed(dtype)
    x = torch.randint(-2, 3, (5, 512)).to(dtype)
    with torch.no_grad():
        model.layer.weight.copy_(torch.randint(-2, 3, (4, 512)))
        model.layer.bias.copy_(torch.tensor([256.0, 257.0, 0.5, -1000.0]))
    weight, bias = model.layer.weight.double(), model.layer.bias.double()
    use_fp32_products(model)
    # Integers below 2^24: every partial sum is exact in fp32, whatever the order.
    assert torch.equal(model.layer(x), (x.double() @ weight.T + bias).to(dtype))


def test_the_head_is_not_rounded():
    model = Headed(torch.bfloat16)
    weight = model.head.weight.double()
    use_fp32_products(model)
    x = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 2.0**-7, 0.0, 0.0]]).bfloat16()
    got = model.head(x)
    assert got.dtype == torch.float32
    assert torch.equal(got, (x.double() @ weight.T).float())


def test_an_embedding_that_shares_the_heads_weight_keeps_its_type():
    model = LlamaForCausalLM(tiny_config()).bfloat16()
    embedding = model.get_input_embeddings()
    before = embedding.weight.clone()
    use_fp32_products(model)
    assert embedding.weight.dtype == torch.bfloat16
    assert torch.equal(embedding.weight, before)
    assert model.dtype == torch.bfloat16


def test_the_cache_of_a_bf16_model_stays_bf16():
    model = LlamaForCausalLM(tiny_config()).bfloat16()
    use_fp32_products(model)
    with torch.no_grad():
        cache = model(torch.tensor([[0, 5, 6]]), use_cache=True).past_key_values
    assert {cache.layers[0].keys.dtype, cache.layers[1].values.dtype} == {torch.bfloat16}


def test_an_fp32_model_is_left_alone():
    model = Headed(torch.float32)
    weight = model.layer.weight
    use_fp32_products(model)
    assert model.layer.weight is weight
    assert not model.layer._forward_hooks
