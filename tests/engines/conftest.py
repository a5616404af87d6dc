import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Tensors here are small; a second thread would only spin beside the other workers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
