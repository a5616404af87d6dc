"""Frames that lie, each with right checksums, and a piece of the error that each must raise."""

from __future__ import annotations

from typing import Any

from hostile.frames import FP8, HEADER, RAW, ROW, SPEC, build, entry, text


def header(**changes: Any) -> bytes:
    return build({**HEADER, **changes})


def identity(**changes: Any) -> bytes:
    return header(identity={**HEADER["identity"], **changes})


def spec(**changes: Any) -> bytes:
    return header(specs=[{**SPEC, **changes}])


def codec(**changes: Any) -> bytes:
    return header(codecs=[{**RAW, **changes}])


def fp8(**params: Any) -> dict[str, Any]:
    config = {**FP8, "params": {**FP8["params"], **params}}
    return {**HEADER, "codecs": [config], "identity": {"exact": False}}


PLAIN = text(HEADER)
SPACES = b" " * (1 - len(PLAIN) % 16 + 16)
NINE = text(fp8(given=[9]))

CORRUPT: dict[str, tuple[bytes, str]] = {
    "other_magic": (build(magic=b"\x89KVC\n\n\x1a\n"), "not a frame"),
    "version_0": (build(version=0), "version 0"),
    "version_2": (build(version=2), "version 2"),
    "reserved_0": (build(reserved=(1, 0, 0)), "reserved"),
    "reserved_1": (build(reserved=(0, 1, 0)), "reserved"),
    "reserved_2": (build(reserved=(0, 0, 1)), "reserved"),
    "claims_2_60_bytes": (build(total=1 << 60), "says it has 1152921504606846976"),
    "claims_one_byte_less": (build(total=len(build()) - 1), "says it has"),
    "claims_4_billion_rows": (build(num_rows=0xFFFFFFFF), "index entries end"),
    "claims_one_row_more": (build(num_rows=2), "rows end at"),
    "claims_no_row": (build(num_rows=0), "rows end at"),
    "header_of_4_gib": (build(header_nbytes=0xFFFFFFFF), "at most 65536"),
    "header_of_64_kib_and_more": (build(PLAIN + b" " * 65536), "at most 65536"),
    "header_past_the_end": (build(header_nbytes=4096), "index entries end"),
    "header_padding": (build(PLAIN + SPACES, padding=b" "), "padding"),
    "row_of_4_gib": (build(index=entry(ROW, nbytes=0xFFFFFFF0)), "rows end at"),
    "rows_that_wrap_32_bits": (
        build(index=entry(ROW, nbytes=0xFFFFFFF0) + entry(ROW, nbytes=48)),
        "rows end at",
    ),
    "gap_before_a_row": (build(index=entry(ROW), rows=bytes(16) + ROW), "rows end at"),
    "row_of_0_bytes": (build(index=entry(b""), rows=b""), "0 bytes, wanted"),
    "row_not_of_16s": (build(rows=ROW[:24]), "24 bytes, wanted a multiple"),
    "row_over_the_bound": (build(rows=ROW + bytes(16)), "in [16, 32]"),
    "codec_id_out_of_range": (build(index=entry(ROW, codec=1)), "codec 1"),
    "spec_id_out_of_range": (build(index=entry(ROW, spec=1)), "spec 1"),
    "no_codec_for_a_row": (header(codecs=[]), "codec 0"),
    "not_json": (build(b"{"), "JSON"),
    "empty_header": (build(b""), "JSON"),
    "not_utf8": (build(b'{"\xff": 1}'), "JSON"),
    "utf16": (build(PLAIN.decode().encode("utf-16")), "JSON"),
    "byte_order_mark": (build(b"\xef\xbb\xbf" + PLAIN), "JSON"),
    "header_is_a_list": (build([HEADER]), "wanted the fields"),
    "header_lacks_a_field": (build({"codecs": [RAW], "specs": [SPEC]}), "wanted the fields"),
    "unknown_field": (header(extra=1), "wanted the fields"),
    "key_twice": (build(PLAIN[:-1] + b',"codecs":[]}'), "'codecs' stands twice"),
    "nested_key_twice": (
        build(PLAIN.replace(b'"exact":true', b'"exact":false,"exact":true')),
        "'exact' stands twice",
    ),
    "nan": (build(NINE.replace(b"9", b"NaN")), "NaN"),
    "infinity": (build(NINE.replace(b"9", b"-Infinity")), "Infinity"),
    "float_past_infinity": (build(NINE.replace(b"9", b"1e999")), "1e999"),
    "endless_integer": (build(NINE.replace(b"9", b"9" * 5000)), "5000 digits"),
    "integer_past_64_bits": (spec(head_dim=10**20), "21 digits"),
    "nested_without_end": (build(b"[" * 60000), "JSON"),
    "lone_surrogate": (build(PLAIN.replace(b"raw", b"\\ud800")), "JSON"),
    "codecs_are_an_object": (header(codecs={}), "wanted a list"),
    "encoding_is_a_list": (spec(encoding=[]), "encoding"),
    "encoding_is_auto": (spec(encoding="auto"), "auto"),
    "head_dim_is_0": (spec(head_dim=0), "head_dim"),
    "head_dim_is_a_float": (spec(head_dim=4.0), "head_dim"),
    "head_dim_is_true": (spec(head_dim=True), "head_dim"),
    "block_of_2_60_elements": (spec(head_dim=1 << 60), "at most 16777216"),
    "spec_lacks_a_field": (header(specs=[{"block_size": 2}]), "BlockSpec"),
    "spec_is_null": (header(specs=[None]), "BlockSpec"),
    "spec_the_codec_cannot_hold": (
        build({**fp8(), "specs": [{**SPEC, "encoding": "e5m2"}]}),
        "cannot hold",
    ),
    "identity_is_a_list": (header(identity=[]), "identity"),
    "unknown_identity_field": (identity(color="red"), "color"),
    "identity_field_is_null": (identity(lora=None), "null"),
    "layer_is_a_string": (identity(layer="1"), "layer"),
    "layer_is_negative": (identity(layer=-1), "layer"),
    "rope_scaling_is_an_object": (identity(rope_scaling={}), "rope_scaling"),
    "exact_is_missing": (header(identity={}), "exact"),
    "exact_is_1": (identity(exact=1), "exact"),
    "lossy_codec_says_exact": (build({**fp8(), "identity": {"exact": True}}), "exact is True"),
    "dtype_is_not_the_spec": (identity(dtype="fp16"), "dtype is fp16"),
    "heads_are_not_the_spec": (identity(head_start=0, head_stop=2), "2 heads"),
}

UNKNOWN: dict[str, tuple[bytes, str]] = {
    "codec_is_a_string": (header(codecs=["raw"]), "config"),
    "codec_of_another_library": (codec(name="zfp"), "zfp"),
    "import_path_as_name": (codec(name="os.system"), "os.system"),
    "name_is_a_list": (codec(name=[]), "codec"),
    "codec_version_99": (codec(version=99), "99"),
    "codec_version_is_true": (codec(version=True), "version"),
    "unknown_parameter": (codec(params={"__class__": "x"}), "__class__"),
    "parameters_are_a_list": (codec(params=[]), "params"),
    "parameter_is_a_list": (build(fp8(dtype=["e4m3"])), "dtype"),
    "parameter_out_of_range": (build(fp8(dtype="e3m4")), "e3m4"),
    "scales_are_an_object": (build(fp8(given={})), "given"),
    "scales_are_null": (build(fp8(given=None)), "given"),
    "scale_is_true": (build(fp8(given=[True])), "given"),
    "scale_is_negative": (build(fp8(given=[-1.0])), "given"),
    "needs_a_profile": (header(profiles=["ab"]), "profiles"),
}
