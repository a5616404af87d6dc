"""Engine tensors become planes: the right elements, always views, never by guessing."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcodec import BlockSpec
from kvcodec.errors import InvalidInputError, LayoutError
from kvcodec.layout import LAYOUTS, plane, planes, reinterpret

B, N, H, D, L = 3, 4, 2, 8, 5
SPEC = BlockSpec(N, H, D, torch.float32)


def numbered(*shape):
    """A tensor whose element is its own position, so that an index shows where it was read."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def fill(view, kv=0, layer=0):
    """Write into a plane a value that names its place."""
    b, n, h, d = torch.meshgrid(*(torch.arange(s) for s in view.shape), indexing="ij")
    view.copy_(((((kv * 10 + layer) * 10 + b) * 10 + n) * 10 + h) * 1000 + d)
    return view


# layout, tensor shape, element (k, b, n, h, d) of the tensor
PAIRS = [
    ("stacked_nhd", (2, B, N, H, D), lambda t, k, b, n, h, d: t[k, b, n, h, d]),
    ("stacked_hnd", (2, B, H, N, D), lambda t, k, b, n, h, d: t[k, b, h, n, d]),
    ("packed_nhd", (B, N, H, 2 * D), lambda t, k, b, n, h, d: t[b, n, h, k * D + d]),
    ("packed_hnd", (B, H, N, 2 * D), lambda t, k, b, n, h, d: t[b, h, n, k * D + d]),
    ("vllm_nhd", (B, N, H, 2 * D), lambda t, k, b, n, h, d: t[b, n, h, k * D + d]),
    ("vllm_hnd", (B, H, N, 2 * D), lambda t, k, b, n, h, d: t[b, h, n, k * D + d]),
    ("flashinfer_nhd", (B, 2, N, H, D), lambda t, k, b, n, h, d: t[b, k, n, h, d]),
    ("flashinfer_hnd", (B, 2, H, N, D), lambda t, k, b, n, h, d: t[b, k, h, n, d]),
    ("trtllm", (B, 2, H, N, D), lambda t, k, b, n, h, d: t[b, k, h, n, d]),
    (
        "blocks (kv heads) tokens dim",
        (B, 2 * H, N, D),
        lambda t, k, b, n, h, d: t[b, k * H + h, n, d],
    ),
    (
        "blocks heads (kv tokens) dim",
        (B, H, 2 * N, D),
        lambda t, k, b, n, h, d: t[b, h, k * N + n, d],
    ),
]
SINGLES = [
    ("nhd", (B, N, H, D), lambda t, b, n, h, d: t[b, n, h, d]),
    ("hnd", (B, H, N, D), lambda t, b, n, h, d: t[b, h, n, d]),
    ("tgi_value", (B, H, D, N), lambda t, b, n, h, d: t[b, h, d, n]),
]


@pytest.mark.parametrize(("layout", "shape", "element"), PAIRS, ids=[p[0] for p in PAIRS])
def test_planes_hold_the_elements_the_layout_names(layout, shape, element):
    tensor = numbered(*shape)
    found = planes(tensor, layout, spec=SPEC)
    assert list(found) == ["key", "value"]
    for k, view in enumerate(found.values()):
        for index in [(0, 0, 0, 0), (2, 3, 1, 7), (1, 2, 0, 5)]:
            assert view[index] == element(tensor, k, *index)


@pytest.mark.parametrize(("layout", "shape", "element"), SINGLES, ids=[s[0] for s in SINGLES])
def test_plane_holds_the_elements_the_layout_names(layout, shape, element):
    tensor = numbered(*shape)
    view = plane(tensor, layout, spec=SPEC)
    for index in [(0, 0, 0, 0), (2, 3, 1, 7), (1, 2, 0, 5)]:
        assert view[index] == element(tensor, *index)


@pytest.mark.parametrize(("layout", "shape"), [p[:2] for p in PAIRS], ids=[p[0] for p in PAIRS])
def test_keys_and_values_are_views_that_cover_the_tensor_once(layout, shape):
    tensor = torch.full(shape, -1.0)
    for k, view in enumerate(planes(tensor, layout).values()):
        assert view.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        fill(view, kv=k)
    assert tensor.min() >= 0
    assert tensor.unique().numel() == tensor.numel()


def test_every_named_layout_is_an_axis_string_that_parses():
    sizes = {"blocks": B, "tokens": N, "heads": H, "dim": D, "kv": 2, "layers": L, "parts": 2}
    for name, text in LAYOUTS.items():
        left = text.partition("->")[0]
        names = left.replace("(", "").replace(")", "").split()
        tensor = numbered(*[{**sizes, "batch": 1}[n] for n in names])
        spread = " ".join(names) + text[len(left.rstrip()) :]
        views = planes(tensor, spread) if "kv" in names else {"": plane(tensor, spread)}
        assert all(view.dim() == 4 for view in views.values()), name


def test_the_documentation_lists_every_layout():
    listed = {}
    for line in (Path(__file__).parents[1] / "docs/layouts.md").read_text().splitlines():
        cells = [re.findall("`([^`]+)`", cell) for cell in line.split("|")[1:4]]
        if len(cells) == 3 and line.startswith("| `"):
            listed.update(dict.fromkeys(cells[0], cells[2][0]))
    assert listed == LAYOUTS


def test_axis_order_is_the_callers_when_sizes_cannot_tell():
    square = numbered(B, 4, 4, D)  # num_heads == block_size: both readings fit
    spec = BlockSpec(4, 4, D, torch.float32)
    nhd, hnd = plane(square, "nhd", spec=spec), plane(square, "hnd", spec=spec)
    assert torch.equal(nhd.transpose(1, 2), hnd)
    assert not torch.equal(nhd, hnd)


def test_a_wrong_reading_of_an_ambiguous_shape_raises():
    cache = torch.zeros(5, 16, 2, 256)
    spec = BlockSpec(16, 2, 256, torch.float32)
    assert plane(cache, "nhd", spec=spec).shape == (5, 16, 2, 256)
    with pytest.raises(LayoutError, match="reads 2 tokens, 16 heads, head_dim 256"):
        plane(cache, "hnd", spec=spec)
    packed = BlockSpec(16, 2, 128, torch.float32)
    assert planes(cache, "packed_nhd", spec=packed)["value"].shape == (5, 16, 2, 128)
    with pytest.raises(LayoutError, match="the engine says 16, 2, 128"):
        plane(cache, "nhd", spec=packed)
    with pytest.raises(LayoutError, match="reads 2 tokens, 16 heads"):
        planes(cache, "packed_hnd", spec=packed)


def test_a_wrong_element_type_raises():
    with pytest.raises(LayoutError, match="reinterpret"):
        plane(torch.zeros(B, N, H, D, dtype=torch.float16), "nhd", spec=SPEC)


def test_keys_and_values_of_different_head_dim():
    tensor = numbered(B, H, N, 20)
    specs = {"key": BlockSpec(N, H, 12, torch.float32), "value": BlockSpec(N, H, 8, torch.float32)}
    found = planes(tensor, "vllm_hnd", head_dim_key=12, spec=specs)
    assert torch.equal(found["key"], tensor[..., :12].transpose(1, 2))
    assert torch.equal(found["value"], tensor[..., 12:].transpose(1, 2))
    for wrong in (0, 20, -3):
        with pytest.raises(LayoutError, match="head_dim_key"):
            planes(tensor, "vllm_hnd", head_dim_key=wrong)
    with pytest.raises(LayoutError, match=r"needs a \(kv dim\) axis"):
        planes(tensor, "blocks heads (kv tokens) dim", head_dim_key=1)
    with pytest.raises(LayoutError, match="wanted key and value"):
        planes(tensor, "vllm_hnd", spec={"keys": SPEC, "values": SPEC})


def test_tgi_keys_are_heads_cut_in_parts():
    x = 4
    tensor = numbered(B, H, D // x, N, x)
    view = plane(tensor, "tgi_key", spec=BlockSpec(N, H * D // x, x, torch.float32))
    for b, n, h, d in [(0, 0, 0, 0), (2, 3, 1, 7), (1, 2, 0, 5)]:
        assert view[b, n, h * (D // x) + d // x, d % x] == tensor[b, h, d // x, n, d % x]


def test_contiguous_caches_are_blocks_of_one_sequence():
    tensor = numbered(1, H, 3 * N, D)
    view = plane(tensor, "contiguous", tokens=N, spec=SPEC)
    assert view.shape == (3, N, H, D)
    assert torch.equal(view[2, 1], tensor[0, :, 2 * N + 1])
    with pytest.raises(LayoutError, match="index batch first"):
        plane(numbered(2, H, 3 * N, D), "contiguous", tokens=N)
    assert plane(numbered(2, H, 3 * N, D)[1:], "contiguous", tokens=N)[0, 0, 0, 0] == 3 * N * H * D
    with pytest.raises(LayoutError, match="cut the tensor to whole blocks"):
        plane(numbered(1, H, 3 * N + 1, D), "contiguous", tokens=N)
    with pytest.raises(LayoutError, match="pass tokens="):
        plane(tensor, "contiguous")


def test_mla_vectors_have_one_head():
    tensor = numbered(B, 16, 576)
    view = plane(tensor, "mla", spec=BlockSpec(16, 1, 576, torch.float32))
    assert torch.equal(view[:, :, 0], tensor)
    latent = plane(tensor[..., :512], "mla", spec=BlockSpec(16, 1, 512, torch.float32))
    assert latent.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def test_byte_pages_are_one_token_of_one_head():
    pages = torch.arange(3 * 40, dtype=torch.uint8).view(3, 40)[:, :33]
    view = plane(pages, "bytes", spec=BlockSpec(1, 1, 33, torch.uint8))
    assert torch.equal(view[2, 0, 0], pages[2])


def test_flat_worker_pages_take_their_axes_from_keywords():
    elements = numbered(B, H * N * 2 * D).to(torch.bfloat16)
    pages = torch.zeros(B, elements.shape[1] * 2 + 64, dtype=torch.int8)
    pages[:, :-64] = elements.view(torch.int8)
    layout = "blocks (heads tokens kv dim)"
    tensor = reinterpret(pages, torch.bfloat16)[:, : H * N * 2 * D]
    found = planes(tensor, layout, heads=H, tokens=N, spec=BlockSpec(N, H, D, torch.bfloat16))
    expected = planes(elements.view(B, H, N, 2 * D), "vllm_hnd")
    assert torch.equal(found["key"], expected["key"])
    assert torch.equal(found["value"], expected["value"])
    with pytest.raises(LayoutError, match="heads or tokens or dim"):
        planes(tensor, layout)


def test_one_layer_of_a_cross_layer_buffer_is_a_plane():
    buffer = torch.full((B, L, H, N, 2 * D), -1.0)
    for layer in range(L):
        for k, view in enumerate(planes(buffer[:, layer], "vllm_hnd", spec=SPEC).values()):
            fill(view, kv=k, layer=layer)
    assert buffer.min() >= 0
    assert buffer.unique().numel() == buffer.numel()


def test_bundles_merge_layers_and_heads_where_strides_permit():
    spec = BlockSpec(N, L * H, D, torch.float32)
    buffer = numbered(B, L, H, N, D)
    view = plane(buffer, "bundle_hnd", spec=spec)
    assert torch.equal(view[1, 2, 3 * H + 1], buffer[1, 3, 1, 2])
    packed = numbered(B, L, H, N, 2 * D)
    found = planes(packed, "bundle_packed_hnd", spec=spec)
    assert torch.equal(found["value"][1, 2, 3 * H + 1], packed[1, 3, 1, 2, D:])
    heads_first = numbered(B, H, L, N, D)
    layout = "blocks heads layers tokens dim -> blocks tokens (heads layers) dim"
    view = plane(heads_first, layout, spec=spec)
    assert torch.equal(view[1, 2, 1 * L + 3], heads_first[1, 1, 3, 2])


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("blocks layers tokens heads dim -> blocks tokens (layers heads) dim", (B, L, N, H, D)),
        ("layers blocks heads tokens dim -> blocks tokens (layers heads) dim", (L, B, H, N, D)),
        ("blocks heads layers tokens dim -> blocks tokens (layers heads) dim", (B, H, L, N, D)),
    ],
)
def test_bundles_that_would_need_a_copy_name_the_axes(layout, shape):
    with pytest.raises(LayoutError, match=r"\(layers heads\) is no view.*layers steps by \d+"):
        plane(numbered(*shape), layout)


def test_an_axis_of_size_one_merges_with_anything():
    layout = "blocks layers tokens heads dim -> blocks tokens (layers heads) dim"
    assert plane(numbered(B, 1, N, H, D), layout).shape == (B, N, H, D)
    assert plane(numbered(B, L, N, 1, D), layout).shape == (B, N, L, D)


def test_engine_recipes_of_the_documentation():
    layer_first = numbered(2, L, 6 * N, H, D)
    view = planes(layer_first[:, 3], "kv (blocks tokens) heads dim", tokens=N)["value"]
    assert torch.equal(view[2, 1], layer_first[1, 3, 2 * N + 1])
    page_first = numbered(2, 6 * N, L, H, D)
    layout = "kv (blocks tokens) layers heads dim -> blocks tokens (layers heads) dim"
    view = planes(page_first, layout, tokens=N)["key"]
    assert torch.equal(view[2, 1, 3 * H + 1], page_first[0, 2 * N + 1, 3, 1])
    lmcache = numbered(2, L, 6 * N, H * D)
    layout = "kv (blocks tokens) (heads dim)"
    view = planes(lmcache[:, 3], layout, tokens=N, heads=H)["value"]
    assert torch.equal(view[2, 1, 1], lmcache[1, 3, 2 * N + 1, D:])


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("ndh", "unknown layout 'ndh'; known: nhd"),
        ("blocks tokens heads", "has 3 axes, the tensor 4"),
        ("blocks tokens heads layers", "index the others away"),
        ("blocks tokens tokens dim", "distinct axis names"),
        ("blocks tokens heads 1", "distinct axis names"),
        ("blocks tokens heads dim -> blocks tokens heads", "four axes after an arrow"),
        ("blocks tokens heads dim -> blocks tokens heads 1", "the plane takes"),
        ("blocks tokens heads dim -> blocks tokens (heads dim) dim", "the plane takes"),
        ("blocks, tokens, heads, dim", "not a list of names"),
        ("blocks tokens (heads dim", "not a list of names"),
        ("blocks tokens ((heads parts) dim) x", "not a list of names"),
        ("kv blocks tokens heads", "use planes"),
    ],
)
def test_malformed_axis_strings_say_what_is_wrong(layout, message):
    with pytest.raises(LayoutError, match=message):
        plane(numbered(B, N, H, D), layout)


def test_sizes_are_checked_against_the_tensor():
    tensor = numbered(2, B, N, H, D)
    assert planes(tensor, "stacked_nhd", tokens=N, heads=H)["key"].shape == (B, N, H, D)
    with pytest.raises(LayoutError, match="tokens=5"):
        planes(tensor, "stacked_nhd", tokens=5)
    with pytest.raises(LayoutError, match="no axis token"):
        planes(tensor, "stacked_nhd", token=N)
    with pytest.raises(LayoutError, match="kv=2"):
        planes(numbered(3, B, N, H, D), "stacked_nhd")
    with pytest.raises(LayoutError, match="kv=2"):
        planes(numbered(3, B, N, H, D), "stacked_nhd", kv=3)
    with pytest.raises(LayoutError, match="does not fit"):
        plane(numbered(1, H, 12, D), "contiguous", tokens=-4)
    with pytest.raises(LayoutError, match="use plane"):
        planes(numbered(B, N, H, D), "nhd")


def test_layout_errors_are_invalid_input():
    assert issubclass(LayoutError, InvalidInputError)


@given(st.permutations(["blocks", "tokens", "heads", "dim"]), st.lists(st.integers(0, 2)))
def test_any_axis_order_and_any_padding_is_a_view(order, gaps):
    sizes = {"blocks": B, "tokens": N, "heads": H, "dim": D}
    gaps = (gaps + [0] * 4)[:4]
    storage = numbered(*[sizes[a] + gap for a, gap in zip(order, gaps, strict=True)])
    tensor = storage[tuple(slice(gap, None) for gap in gaps)]
    view = plane(tensor, " ".join(order), spec=SPEC)
    assert view.data_ptr() == tensor.data_ptr()
    assert torch.equal(view.permute([list(sizes).index(a) for a in order]), tensor)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz])
def test_reinterpreted_bytes_keep_all_256_values(dtype):
    cache = torch.arange(256, dtype=torch.uint8).view(2, 4, 2, 16)
    fp8 = reinterpret(cache, dtype)
    assert fp8.dtype == dtype
    assert fp8.data_ptr() == cache.data_ptr()
    assert torch.equal(fp8.view(torch.uint8), cache)
    strided = reinterpret(cache.transpose(1, 2)[..., ::2], dtype)
    assert torch.equal(strided.view(torch.uint8), cache.transpose(1, 2)[..., ::2])


def test_reinterpreting_to_another_width_needs_whole_contiguous_elements():
    pages = torch.arange(64, dtype=torch.uint8).view(2, 32)
    assert reinterpret(pages, torch.float16).shape == (2, 16)
    for tensor in (pages[:, :31], pages[:, 1:], pages.t()):
        with pytest.raises(LayoutError, match="before slicing or permuting"):
            reinterpret(tensor, torch.float16)
    with pytest.raises(LayoutError, match="is not one of bf16"):
        reinterpret(pages, torch.int64)
