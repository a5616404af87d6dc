"""The rotation: orthonormal, its own inverse, and the bits that formats/rotation.md states."""

import hashlib
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from rationals import round_to, value_of

from kvcodec import rotation
from kvcodec.errors import InvalidInputError

PAGE = (Path(__file__).parents[1] / "formats" / "rotation.md").read_text()
HEAD_DIMS = (64, 80, 96, 100, 112, 128, 192, 256, 512, 576)
ROWS = re.findall(r"\| (\d+) \| ([\d, ]+) \| `(\w{16})` \| `(\w{16})` \|", PAGE)


def fl(value: Fraction) -> Fraction:
    """Nearest fp32."""
    nearest = value_of(round_to(abs(value), "fp32"), "fp32")
    return nearest if value >= 0 else -nearest


def page_sign(i: int) -> int:
    z = (i + 1) * 0x9E3779B97F4A7C15 % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ z >> shift) * factor % 2**64
    return -1 if (z ^ z >> 31) >> 63 else 1


def page_hadamard(x: list[Fraction]) -> list[Fraction]:
    """H x by the page, one rational at a time."""
    out: list[Fraction] = []
    for k in range(16, 0, -1):
        if not len(x) >> k & 1:
            continue
        block = x[len(out) : len(out) + 2**k]
        for s in (2**j for j in range(k)):
            for p in (p for p in range(2**k) if not p & s):
                a, b = block[p], block[p + s]
                block[p], block[p + s] = fl(a + b), fl(a - b)
        factor = value_of(0x3F3504F3 if k % 2 else 0x3F800000, "fp32") / 2 ** (k // 2)
        out += [fl(v * factor) for v in block]
    return out


def as_fractions(x: np.ndarray) -> list[Fraction]:
    return [Fraction(float(v)) for v in x]


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_matrix_is_orthonormal(head_dim):
    matrix = rotation.rotate(np.eye(head_dim, dtype=np.float32)).astype(np.float64)
    # entries are +-c with c a rounded 2^(-k/2): c^2 2^k is 1 within 2^-23
    assert np.abs(matrix @ matrix.T - np.eye(head_dim)).max() < 2.0**-23
    assert np.abs(matrix.T @ matrix - np.eye(head_dim)).max() < 2.0**-23


@pytest.mark.parametrize("head_dim", [*HEAD_DIMS, 2, 6, 62, 1022])
def test_unrotate_inverts_rotate(head_dim):
    x = np.random.default_rng(1).standard_normal((3, 5, head_dim)).astype(np.float32)
    back = rotation.unrotate(rotation.rotate(x)).astype(np.float64)
    # each stage errs by 2^-24 of the vector's norm at most, twice 9 stages and products
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    assert (np.abs(back - x) <= 20 * 2.0**-24 * norm).all()


def test_blocks_are_the_powers_of_two_of_head_dim_largest_first():
    assert rotation.block_sizes(80) == (64, 16)
    assert rotation.block_sizes(100) == (64, 32, 4)
    assert rotation.block_sizes(576) == (512, 64)
    assert rotation.block_sizes(2) == (2,)
    for head_dim in (0, 1, 65, -2):
        with pytest.raises(InvalidInputError, match=f"head_dim is {head_dim}, wanted an even"):
            rotation.block_sizes(head_dim)


def test_signs_are_those_of_the_page():
    assert rotation.signs(1024).tolist() == [page_sign(i) for i in range(1024)]
    bits = np.packbits(rotation.signs(128) < 0, bitorder="little").tobytes().hex()
    assert f"    {bits}\n" in PAGE
    assert bits == "89fa7a730431cc9ee86ec11ab6055e36"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_check_values_of_the_page(row):
    head_dim, blocks, rotated, unrotated = row
    x = (np.arange(int(head_dim)) * 37 % 64 - 31).astype(np.float32)
    assert ", ".join(map(str, rotation.block_sizes(int(head_dim)))) == blocks
    for function, digits in ((rotation.rotate, rotated), (rotation.unrotate, unrotated)):
        data = function(x).astype("<f4").tobytes()
        assert hashlib.sha256(data).hexdigest()[:16] == digits


def test_the_page_has_check_values_of_every_usual_head_dim():
    assert [int(row[0]) for row in ROWS] == list(HEAD_DIMS)


@pytest.mark.parametrize("head_dim", [2, 14, 64, 100, 128])
def test_every_rounding_is_that_of_the_page(head_dim):
    """Values of many magnitudes, so that another order of additions would show."""
    rng = np.random.default_rng(head_dim)
    x = (rng.standard_normal(head_dim) * 2.0 ** rng.integers(-12, 12, head_dim)).astype(np.float32)
    signs = [page_sign(i) for i in range(head_dim)]
    exact = as_fractions(x)
    rotated = page_hadamard([s * v for s, v in zip(signs, exact, strict=True)])
    unrotated = [s * v for s, v in zip(signs, page_hadamard(exact), strict=True)]
    assert as_fractions(rotation.rotate(x)) == rotated
    assert as_fractions(rotation.unrotate(x)) == unrotated


def test_a_batch_is_rotated_vector_by_vector():
    x = np.random.default_rng(2).standard_normal((2, 3, 4, 80)).astype(np.float32)
    kept = x.copy()
    y = rotation.rotate(x)
    for index in np.ndindex(2, 3, 4):
        assert np.array_equal(y[index], rotation.rotate(x[index]))
    assert np.array_equal(x, kept)
    assert rotation.rotate(x[:0]).shape == (0, 3, 4, 80)
