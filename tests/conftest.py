"""What every test runs under: Triton's interpreter without a GPU, poisoned memory, fixed seeds."""

import os
import random
import socket

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is first imported

settings.register_profile(
    "fixed",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("fixed"), derandomize=False)
settings.load_profile("fixed")

POISON = 0xA5  # integers; floats get NaN


def _poison_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type in ("cpu", "cuda") and tensor.dtype != torch.bool:
        tensor.untyped_storage().fill_(0xFF if tensor.dtype.is_floating_point else POISON)
    return tensor


def _poison_array(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "iuf":
        array.ravel("K").view(np.uint8).fill(0xFF if array.dtype.kind == "f" else POISON)
    return array


def _poisoned(allocate, poison):
    def poisoned(*args, **kwargs):
        return poison(allocate(*args, **kwargs))

    return poisoned


@pytest.fixture(scope="session", autouse=True)
def _poison_fresh_memory():
    """Uninitialised memory holds NaN or 0xA5, so that reading it shows."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (torch, "empty"),
            (torch, "empty_like"),
            (torch, "empty_strided"),
            (torch.Tensor, "new_empty"),
            (torch.Tensor, "new_empty_strided"),
        ):
            patch.setattr(owner, name, _poisoned(getattr(owner, name), _poison_tensor))
        for name in ("empty", "empty_like"):
            patch.setattr(np, name, _poisoned(getattr(np, name), _poison_array))
        yield


@pytest.fixture(autouse=True)
def _seed():
    """A test that draws from a global generator draws the same every time."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct and its tokenizer on the CPU, loaded where a connection is an error.

    Loading takes most of a minute: tests that ask for it run in one worker (see below).
    """
    from kvcodec.eval.model import load_model

    def refuse(*args):
        raise AssertionError(f"a connection was opened: {args}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        return load_model("smollm2-135m", "cpu")


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items):
    """With `--dist loadgroup` everything that needs the model runs in one worker."""
    for item in items:
        if "smollm2" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("smollm2"))
