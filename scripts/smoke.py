"""Smoke test of an installed wheel: usage `smoke.py CHECKOUT`, run from outside the checkout."""

import sys
from pathlib import Path

import torch

import kvcodec
from kvcodec.bits import to_bits

checkout, package = Path(sys.argv[1]).resolve(), Path(kvcodec.__file__).resolve().parent
if checkout in package.parents and checkout / ".venv" not in package.parents:
    sys.exit(f"imported the checkout's {package}, not the installed wheel")
if not (package / "formats" / "rans.md").is_file() or (package / "kernels").is_symlink():
    sys.exit(f"{package} lacks the formats' pages or holds a symlink instead of the kernels")
if "kernels" in sys.modules or "formats" in sys.modules:
    sys.exit("kernels or formats was imported under a top-level name")

floats = torch.randn(4, 16, 2, 64).to(torch.bfloat16)
opaque = torch.randint(0, 99, (4, 16, 1, 656), dtype=torch.uint8)
for name in kvcodec.codec_names():
    takes_floats = kvcodec.get_codec(name).supports(kvcodec.BlockSpec.of(floats)) is None
    cache = floats if takes_floats else opaque
    rows = kvcodec.compress(cache, [1, 3], name)
    back = next(kvcodec.loads(kvcodec.dumps(rows)).batches())[1]
    target = torch.zeros_like(cache)
    kvcodec.decompress(back, target, [1, 3])
    wanted = cache[[1, 3]].double()
    error = target[[1, 3]].double() - wanted
    # 8 bits and more: an eighth of the largest values here at most, where mxfp8 saturates
    close = error.abs().max() < (0.6 if name == "mxfp8" else 0.3)
    if rows.total_nbytes() < wanted.numel():  # single values of 4 bits may be further off
        close = error.square().mean() < 0.05 * wanted.square().mean()
    exact = (to_bits(target)[[1, 3]] == to_bits(cache)[[1, 3]]).all()
    if not close or (rows.codec.lossless and not exact) or target[[0, 2]].any():
        sys.exit(f"{name}: a block did not come back")
print("codecs:", ", ".join(kvcodec.codec_names()))
