"""Keys and values that SmolLM2-135M makes of real texts, kept on disk for the benchmarks.

    python benchmarks/capture.py

One safetensors file for each text: tensors `layers.<i>.key` and `layers.<i>.value`, bf16, of shape
[tokens, kv heads, head_dim], as the model gives them to its cache (keys after RoPE). Model and
texts come from installed packages (requirements/model.txt); a file that exists is not made again.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from kvcodec.errors import InvalidInputError
from kvcodec.eval.model import SMOLLM2, load_model
from kvcodec.eval.replay import record
from kvcodec.eval.text import NEWS, load_text, package_dir

TEXTS = {  # files under gensim/test/test_data
    "news": "lee_background.cor",
    "reviews": "alldata-id-10.txt",
    "encyclopedia": "para2para_text2.txt",
}


def cache_dir() -> Path:
    """The user's cache directory for captured caches."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvcodec" / "captured"


def capture(name: str, tokens: int, folder: Path) -> Path:
    """The file of the first `tokens` tokens of a text, made if it is missing."""
    path = folder / f"smollm2-135m-{name}-{tokens}.safetensors"
    if path.exists():
        return path
    data = package_dir("gensim", "gensim") / "test" / "test_data" / TEXTS[name]
    text = load_text(NEWS if name == "news" else str(data))
    loaded = load_model(SMOLLM2, "cpu")
    front = [] if loaded.bos is None else [loaded.bos]
    ids = (front + loaded.tokenize(text.content))[:tokens]
    if len(ids) < tokens:
        raise InvalidInputError(f"text {name!r} has {len(ids)} tokens, {tokens} were wanted")
    with torch.inference_mode():
        states = record(loaded.model, ids)
    tensors = {}
    for layer, pair in states.items():
        for kind, state in zip(("key", "value"), pair, strict=True):
            # [1, heads, tokens, head_dim] -> [tokens, heads, head_dim]
            tensors[f"layers.{layer}.{kind}"] = state[0].transpose(0, 1).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    save_file(tensors, temporary, {"model": loaded.revision, "text": text.source})
    temporary.replace(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", nargs="+", default=list(TEXTS), choices=list(TEXTS))
    parser.add_argument("--tokens", type=int, default=2048, help="length of the prefix")
    parser.add_argument("--folder", type=Path, default=cache_dir())
    args = parser.parse_args()
    for name in args.texts:
        print(capture(name, args.tokens, args.folder))


if __name__ == "__main__":
    main()
