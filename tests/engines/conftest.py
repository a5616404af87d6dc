import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Tensors here are small; a second thread would only spin beside the other workers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct on the CPU, with its tokenizer."""
    from kvcodec.eval.model import load_model

    return load_model("smollm2-135m", device="cpu")
