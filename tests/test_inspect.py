"""What `describe` says about sound and damaged frames."""

from __future__ import annotations

import json

import pytest
import torch
from hostile.attacks import CORRUPT, UNKNOWN
from strategies import make_cache

from kvcodec import BlockSpec, compress
from kvcodec.errors import InvalidInputError
from kvcodec.frame import dumps, loads
from kvcodec.identity import Identity
from kvcodec.inspect import describe

SPEC = BlockSpec(16, 2, 32, torch.bfloat16)
STEPS = ["sizes", "header", "checksum", "rows"]


def frame() -> bytes:
    cache = make_cache(SPEC, ("normal", "random_bits"))
    split = compress(cache, [0, 1], "split", num_valid=[16, 3])
    return dumps([split, compress(cache, [0], "fp8")], Identity(model="m", layer=1))


def verdicts(report: dict) -> dict[str, bool]:
    return {check["check"]: check["passed"] for check in report["checks"]}


def test_a_sound_frame_is_described_in_full():
    data = frame()
    report = json.loads(json.dumps(describe(data), allow_nan=False))
    loaded = loads(data)
    assert report["passed"]
    assert verdicts(report) == dict.fromkeys(STEPS, True)
    assert report["nbytes"] == len(data) == report["front_nbytes"] + report["rows_nbytes"]
    assert report["num_rows"] == 3
    assert report["raw_nbytes"] == 3 * SPEC.nbytes
    assert report["ratio"] == 3 * SPEC.nbytes / len(data)
    assert report["fingerprint"] == loaded.identity.fingerprint()
    header = report["header"]
    assert header["identity"] == {"dtype": "bf16", "exact": False, "layer": 1, "model": "m"}
    assert header["specs"] == [SPEC.to_json()]
    assert [codec["spec"] for codec in header["codecs"]] == ["split", "fp8"]
    assert header["codecs"][1]["params"]["dtype"] == "e4m3"
    for row, found in zip(report["rows"], loaded.rows, strict=True):
        assert data[row["offset"] : row["offset"] + row["nbytes"]] == found.data
        assert row["codec"] == str(found.codec)
        assert row["bits_per_element"] == 8 * len(found.data) / SPEC.numel
        assert row["error"] is None
    assert [(row["mode"], row["num_valid"]) for row in report["rows"]] == [(1, 16), (0, 3), (0, 16)]
    assert list(report["rows"][0]["parts"]) == ["table", "states", "words", "raw"]
    assert report["rows"][2]["parts"] == {"codes": SPEC.numel, "scales": 4 * 16 * 2}


def test_every_damaged_row_is_reported():
    data = bytearray(frame())
    rows = describe(bytes(data))["rows"]
    for i in (0, 2):
        data[rows[i]["offset"] + 20] ^= 1
    report = describe(bytes(data))
    assert verdicts(report) == {**dict.fromkeys(STEPS, True), "rows": False}
    assert report["checks"][-1]["error"] == "2 of 3 rows fail: [0, 2]"
    assert [bool(row["error"]) for row in report["rows"]] == [True, False, True]
    assert report["rows"][0]["error"].startswith("row 0: checksum")
    assert report["rows"][0]["codec"] == "split"
    assert not report["passed"]


def test_rows_are_still_checked_under_a_broken_header():
    data = bytearray(frame())
    data[50] ^= 0xFF
    report = describe(bytes(data))
    assert verdicts(report) == {"sizes": True, "header": False, "checksum": False, "rows": True}
    assert [row["nbytes"] for row in report["rows"]] == [
        len(row.data) for row in loads(frame()).rows
    ]
    assert "header" not in report


def test_a_malformed_row_with_a_right_checksum_is_reported():
    rows = compress(make_cache(SPEC, ("normal",)), [0], "split")
    rows.payload[0, 0] = 9
    report = describe(dumps(rows))
    assert loads(dumps(rows)).num_rows == 1
    assert report["rows"][0]["error"] == "split: mode 9, wanted 0 or 1"
    assert not report["passed"]


@pytest.mark.parametrize("name", [*CORRUPT, *UNKNOWN])
def test_hostile_frames_are_described_and_never_pass(name):
    data, piece = (CORRUPT | UNKNOWN)[name]
    report = json.loads(json.dumps(describe(data), allow_nan=False))
    assert not report["passed"]
    errors = [c["error"] for c in report["checks"]] + [row["error"] for row in report["rows"]]
    assert any(piece in error for error in errors if error)


def test_a_cut_frame_is_described_at_every_length():
    data = frame()
    for length in range(0, len(data), 7):
        assert verdicts(describe(data[:length])) == {"sizes": False}


def test_an_empty_frame_passes():
    report = describe(dumps([]))
    assert report["passed"]
    assert (report["num_rows"], report["ratio"]) == (0, 0.0)


def test_only_bytes_are_described():
    with pytest.raises(InvalidInputError, match="contiguous bytes"):
        describe("text")
