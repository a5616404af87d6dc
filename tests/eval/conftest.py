"""The small model, saved and loaded; text that it wrote; the real model."""

import pytest
import torch
from transformers import LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from eval.tiny import ALPHABET, char_tokenizer, tiny_config
from kvcodec.eval.model import load_model
from kvcodec.eval.replay import forward


@pytest.fixture(scope="package", autouse=True)
def _one_thread():
    """Tensors here are small; a second thread would only spin beside the other workers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="package")
def model_dir(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tiny-llama")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LlamaForCausalLM(tiny_config()).bfloat16().save_pretrained(path)
    char_tokenizer().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="package")
def tiny(model_dir):
    return load_model(model_dir, "cpu")


@pytest.fixture(scope="package")
def sample(tiny) -> str:
    """192 characters drawn from the model itself, so that its own prediction is the best there is.

    Any other prediction, such as one through a damaged cache, has a higher expected loss: by the
    KL divergence.
    """
    ids, cache = torch.zeros(1, 1, dtype=torch.int64), DynamicCache(config=tiny.model.config)
    draw = torch.Generator().manual_seed(2)
    with torch.inference_mode():
        for _ in range(192):
            logits = forward(tiny.model, ids[0, -1:].tolist(), cache)[0]
            logits[:2] = -torch.inf  # characters only
            chosen = torch.multinomial(logits.softmax(-1), 1, generator=draw)
            ids = torch.cat([ids, chosen[None]], 1)
    return "".join(ALPHABET[i - 2] for i in ids[0, 1:].tolist())
