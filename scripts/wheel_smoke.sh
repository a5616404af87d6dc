#!/usr/bin/env bash
# Build the wheel, install it with its dependencies into a fresh environment, and use it from
# outside the checkout: a missing file or dependency shows here and nowhere else.
set -euo pipefail
python=$(realpath -s "${1:?usage: wheel_smoke.sh PYTHON}")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m build --wheel --outdir "$work/dist" "$root" >"$work/build.log" 2>&1 ||
    { cat "$work/build.log"; exit 1; }
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check install --quiet \
    -c "$root/constraints.txt" "$work"/dist/*.whl
cp "$root/scripts/smoke.py" "$work/"
cd "$work"
venv/bin/python smoke.py "$root"
venv/bin/kvcodec list >/dev/null
echo "wheel smoke test passed"
