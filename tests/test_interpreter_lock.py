"""Native kernels let other Python threads run: an engine's scheduler must not wait for a codec."""

import threading
import time

import pytest
import torch

from kvcodec import BlockSpec, EncodedBlocks, codec_names, get_codec
from kvcodec.registry import load_kernel, why_unavailable

SPEC = BlockSpec(128, 2, 128, torch.bfloat16)
CPU = torch.device("cpu")
NATIVE = [n for n in codec_names() if why_unavailable(get_codec(n), "native", CPU) is None]
LONG = 4.0  # seconds in which a busy machine gives every thread a turn


def ticks_inside(call) -> tuple[float, int]:
    """Seconds that `call` lasts in another thread, and wake-ups of this one in its middle half."""
    span: list[float] = []

    def work() -> None:
        begin = time.monotonic()
        call()
        span.extend((begin, time.monotonic()))

    worker, ticks = threading.Thread(target=work), []
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        ticks.append(time.monotonic())
    begin, end = span
    quarter = (end - begin) / 4
    return end - begin, sum(begin + quarter < tick < end - quarter for tick in ticks)


@pytest.mark.parametrize("way", ["compress", "decompress"])
@pytest.mark.parametrize("name", NATIVE)
def test_other_threads_run_while_a_kernel_works(name, way):
    codec = get_codec(name)
    if codec.supports(SPEC) is not None:
        pytest.skip(codec.supports(SPEC))
    kernel = load_kernel(codec, "native")
    block = torch.randn(1, *SPEC.shape).to(SPEC.dtype)
    one = codec.compress(block, [0], impl="native")
    options = {"positions": None, "workspace": None, "num_threads": 1}
    n, seconds, ticks = 256, 0.0, 0
    while (ticks == 0 or seconds < 0.05) and seconds < LONG:
        n *= 4
        cache, ids = block.expand(n, -1, -1, -1), torch.arange(n)
        rows = EncodedBlocks(codec, SPEC, one.payload.expand(n, -1), one.nbytes.repeat(n))
        if way == "compress":
            seconds, ticks = ticks_inside(
                lambda: kernel.compress(cache, ids, None, rows, **options)  # noqa: B023
            )
        else:
            seconds, ticks = ticks_inside(
                lambda: kernel.decompress(rows, cache, ids, **options)  # noqa: B023
            )
    assert ticks > 0, f"{n} blocks took {seconds:.2f} s, and no other thread ran"
