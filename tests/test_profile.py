"""Profiles: what is saved is loaded, what is damaged is refused, and hashes name the content."""

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from profiles import make_profile, make_tables
from safetensors.numpy import save

from kvcodec import BlockSpec, Profile
from kvcodec.errors import CorruptDataError, InvalidInputError
from kvcodec.tables import RULES, Tables

SPEC = BlockSpec(4, 2, 8, torch.bfloat16)
WIDE = BlockSpec(4, 1, 16, torch.float16)


@pytest.fixture
def profile():
    planes = {
        (0, "key"): make_tables(SPEC, 1, dead=(3,)),
        (0, "value"): make_tables(SPEC, 2),
        (10, "key"): make_tables(WIDE, 3),
    }
    return Profile(planes, {"model": "größe", "texts": [{"tokens": 8192}]})


@pytest.fixture
def path(profile, tmp_path):
    profile.save(tmp_path / "a.profile")
    return tmp_path / "a.profile"


def test_a_profile_comes_back_from_its_file(profile, path):
    back = Profile.load(path)
    assert (back.hash, back.about) == (profile.hash, profile.about)
    assert list(back.planes) == [(0, "key"), (0, "value"), (10, "key")]
    for place, tables in profile.planes.items():
        got = back.planes[place]
        assert (got.hash, got.geometry, got.profile) == (tables.hash, tables.geometry, profile.hash)
        assert got.arrays.keys() == tables.arrays.keys()
        for name, array in tables.arrays.items():
            assert got.arrays[name].dtype == array.dtype
            assert np.array_equal(got.arrays[name], array)


def test_equal_profiles_are_equal_files(profile, path, tmp_path):
    planes = dict(reversed(profile.planes.items()))
    Profile(planes, profile.about).save(tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == path.read_bytes()


def framed(data):
    return struct.pack("<I", len(data)) + data


def test_hashes_are_what_the_page_says(profile):
    import hashlib

    lines = "kvcodec profile 1\n"
    for (layer, kind), tables in profile.planes.items():
        digest = hashlib.sha256(b"kvcodec tables 1\n")
        for part in tables.geometry:
            digest.update(framed(str(part).encode()))
        for name in sorted(tables.arrays):
            array = tables.arrays[name]
            shape = ",".join(str(n) for n in array.shape)
            for part in (name, f"u{array.itemsize}", shape):
                digest.update(framed(part.encode()))
            digest.update(
                framed(b"".join(int(v).to_bytes(array.itemsize, "little") for v in array.flat))
            )
        assert tables.hash == digest.hexdigest()
        lines += f"{layer} {kind} {tables.hash}\n"
    assert profile.hash == hashlib.sha256(lines.encode()).hexdigest()


def test_a_hash_is_the_same_in_another_process(path, profile):
    code = "import sys, kvcodec; print(kvcodec.Profile.load(sys.argv[1]).hash)"
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, env=env
    )
    assert done.stdout.strip() == profile.hash


def test_the_hash_of_made_up_tables_never_changes():
    """The generator, the checks and the hash together, frozen."""
    assert make_tables(SPEC).hash == (
        "ef60d570cd6494ec30d1765736d92ed3edd8f9651e3a6a5367c977027d269bc4"
    )


@pytest.mark.parametrize("name", RULES)
def test_every_table_is_in_the_hash(name):
    tables = make_tables(SPEC)
    changed = tables.arrays[name].copy()
    flat = changed.reshape(-1)
    if RULES[name].wanted.startswith("frequencies of"):
        at = np.flatnonzero(flat > 1)[:1]
        flat[at] -= 1
        flat[at + 1] += 1
    else:
        flat[0] = (flat[0] == 0) if name in ("flip", "sign_class", "class") else flat[0] + 1
    other = Tables(tables.geometry, {**tables.arrays, name: changed})
    assert other.hash != tables.hash
    names = tuple(n for n in RULES if n != name)
    assert other.select(names).hash == tables.select(names).hash


def test_where_a_profile_comes_from_is_not_hashed(profile):
    assert Profile(profile.planes, {}).hash == profile.hash
    moved = {(1, kind): tables for (_, kind), tables in profile.planes.items()}
    assert Profile(moved, profile.about).hash != profile.hash


def test_a_plane_is_found_or_the_ones_there_are_named(profile):
    assert profile.plane(0, "key") is profile.planes[0, "key"]
    with pytest.raises(
        InvalidInputError, match=r"no key tables of layer 5, wanted one of \[0, 10\]"
    ):
        profile.plane(5, "key")
    with pytest.raises(InvalidInputError, match="no query tables of layer 0"):
        profile.plane(0, "query")


def test_tables_cannot_be_written_to(profile):
    with pytest.raises(ValueError, match="read-only"):
        profile.plane(0, "key").arrays["centre"][0, 0] = 1


def test_missing_tables_are_named(profile):
    some = profile.plane(0, "key").select(("centre", "class"))
    with pytest.raises(
        InvalidInputError, match="tables signs are missing, the plane has centre, class"
    ):
        some.select(("centre", "signs"))


def bad(name, change, dtype=None):
    tables = make_tables(SPEC)
    array = tables.arrays[name].copy()
    array = change(array) if callable(change) else array
    return {**tables.arrays, name: array if dtype is None else array.astype(dtype)}


def put(value, at=0):
    def change(array):
        array.reshape(-1)[at] = value
        return array

    return change


BAD = {
    "an infinite mean": (bad("mean", put(0x7F80)), "'mean' holds other values than finite"),
    "a NaN mean": (bad("mean", put(0xFFC0)), "'mean' holds other"),
    "a class too many": (bad("class", put(3)), "'class' holds other values than numbers below"),
    "a sign class too many": (bad("sign_class", put(2)), "'sign_class' holds other"),
    "a flip of 2": (bad("flip", put(2)), "0 or 1"),
    "a zero frequency": (bad("exponents", put(0)), "'exponents' holds other values than freq"),
    "a sum over 4096": (bad("mantissas", lambda a: a + 1), "'mantissas' holds other"),
    "a sure sign": (bad("signs", put(0)), "from 1 to 4095"),
    "an impossible sign": (bad("signs", put(4096)), "from 1 to 4095"),
    "a lost channel": (bad("centre", lambda a: a[:, 1:]), r"uint8 \(2, 7\), wanted uint8 \(2, 8\)"),
    "a long table": (bad("exponents", None, "<u4"), "'exponents' is uint32"),
    "too many classes": (bad("exponents", lambda a: a.repeat(22, 0)), "66 classes, wanted 1 to 64"),
    "no class": (bad("exponents", lambda a: a[:0]), "0 classes"),
    "other classes": (bad("mantissas", lambda a: a[:2]), r"\(2, 25, 8\), wanted uint16 \(3, 25"),
    "an unknown table": ({"centres": np.zeros((2, 8), "u1")}, "table 'centres' is unknown"),
}


@pytest.mark.parametrize("what", BAD)
def test_impossible_tables_are_refused(what):
    arrays, message = BAD[what]
    with pytest.raises(InvalidInputError, match=message):
        Tables(("bf16", 2, 8), arrays)


@pytest.mark.parametrize("what", BAD)
def test_a_file_of_impossible_tables_is_refused_by_file_and_plane(what, tmp_path):
    arrays = BAD[what][0]
    planes = [[0, "key", "bf16", 2, 8]]
    header = {"format": 1, "hash": "", "planes": planes, "about": {}}
    file = tmp_path / "bad"
    file.write_bytes(
        save({f"0.key.{n}": a for n, a in arrays.items()}, {"kvcodec": json.dumps(header)})
    )
    with pytest.raises(CorruptDataError, match=rf"profile '{file}': ") as caught:
        Profile.load(file)
    known = set(arrays) <= set(RULES) and all(a.dtype == RULES[n].dtype for n, a in arrays.items())
    assert not known or "layer 0 key: " in str(caught.value)


@pytest.mark.parametrize("of", [("bf17", 2, 8), ("bf16", 0, 8), ("bf16", 1 << 12, 1 << 12)])
def test_impossible_geometry_is_refused(of):
    with pytest.raises(InvalidInputError, match="geometry is"):
        Tables(of, {})


def rewritten(path, change):
    """The file with another header; the tensors stay."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    front = json.loads(data[8 : 8 + size])
    header = json.loads(front["__metadata__"]["kvcodec"])
    change(header, front)
    if "__metadata__" in front and "kvcodec" in front["__metadata__"]:
        front["__metadata__"]["kvcodec"] = json.dumps(header)
    text = json.dumps(front).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


CHANGES = {
    "another format": (lambda h, _: h.update(format=2), "format is 2, this library reads 1"),
    "another hash": (lambda h, _: h.update(hash="00"), "hash is .*, wanted 00"),
    "a field more": (lambda h, _: h.update(extra=1), "wanted .*'about', 'format'"),
    "a field less": (lambda h, _: h.pop("about"), "header has"),
    "about a list": (lambda h, _: h.update(about=[]), r"about is \[\], wanted an object"),
    "planes an object": (lambda h, _: h.update(planes={}), "planes are {}"),
    "a plane too short": (lambda h, _: h["planes"][0].pop(), "wanted a new"),
    "a plane twice": (lambda h, _: h["planes"].append(h["planes"][0]), "wanted a new"),
    "true for a layer": (lambda h, _: h["planes"][0].__setitem__(0, True), "wanted a new"),
    "a plane without tensors": (
        lambda h, _: h["planes"].append([9, "key", "bf16", 1, 1]),
        "hash is",
    ),
    "a plane of nothing": (lambda h, _: h["planes"].append([9, "head", "bf16", 1, 1]), "no .layer"),
    "a plane of another shape": (
        lambda h, _: h["planes"][0].__setitem__(4, 9),
        r"wanted uint8 \(2, 9",
    ),
    "tensors without a plane": (lambda h, _: h["planes"].pop(), "belongs to no plane"),
    "no metadata": (lambda _, f: f.pop("__metadata__"), "metadata has the entries"),
    "other metadata": (lambda _, f: f["__metadata__"].update(x="1"), "metadata has the entries"),
    "another type": (lambda _, f: f["0.key.mean"].update(dtype="BF16"), "is BF16, wanted U16"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_file_that_contradicts_itself_is_refused(what, path):
    change, message = CHANGES[what]
    rewritten(path, change)
    with pytest.raises(CorruptDataError, match=message) as caught:
        Profile.load(path)
    assert f"profile '{path}'" in str(caught.value)


def test_a_file_cut_anywhere_is_refused(path):
    data = path.read_bytes()
    for length in [*range(0, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(CorruptDataError):
            Profile.load(path)


def test_a_changed_table_is_noticed(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of a frequency: the sum or the hash
    path.write_bytes(data)
    with pytest.raises(CorruptDataError):
        Profile.load(path)


def test_a_huge_file_is_not_read(tmp_path):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate((1 << 30) + 1)
    with pytest.raises(CorruptDataError, match="at most 1073741824"):
        Profile.load(tmp_path / "huge")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"profile '.*none' cannot be read: No such file"):
        Profile.load(tmp_path / "none")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        Profile.load(tmp_path)


def test_a_failed_save_leaves_the_old_file(profile, path, monkeypatch):
    before = path.read_bytes()

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InvalidInputError, match="No space left"):
        make_profile(SPEC).save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_about_must_be_json(tmp_path):
    with pytest.raises(InvalidInputError, match="about is not JSON"):
        Profile({}, {"x": float("nan")}).save(tmp_path / "x")
    assert os.listdir(tmp_path) == []
