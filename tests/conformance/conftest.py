"""A test that takes one of these arguments runs once for every case it applies to.

A codec's first example runs through the whole contract under every implementation, the others
under the reference. Where a kernel is compared with the reference every example runs: equal rows
and equal blocks, through any strides and fillings, carry the other promises over.

The whole contract takes minutes per codec in Triton's interpreter: `make interpreter` runs it for
all codecs, the suite for two. Of the comparisons with the reference the suite runs three there, of
first examples; none of a codec made of others, which has comparisons of its own.
"""

import pytest

from conformance.cases import all_cases

IN_THE_SUITE = ("raw", "fp8")  # codecs whose whole contract runs in the interpreter every time

COMPOSED = ("segments",)  # tests/test_segments_triton.py

COMPARED = (
    "test_rows_and_blocks_equal_the_references",
    "test_partly_filled_blocks_equal_the_references",
    "test_no_kernel_touches_memory_behind_its_tensors",
)

ARGUMENTS = {
    "case": lambda case: True,
    "codec_case": lambda case: case.impl == "reference",
    "kernel_case": lambda case: case.impl != "reference",
    "host_case": lambda case: case.impl != "triton",
    "lossless_case": lambda case: case.codec.lossless,
    "lossy_case": lambda case: not case.codec.lossless,
    "relative_case": lambda case: not case.centred,  # errors are relative to values
    "idempotent_case": lambda case: case.codec.idempotent,
    "fixed_size_case": lambda case: case.codec.fixed_size,
    "splittable_case": lambda case: case.codec.head_splittable,
}


def pytest_generate_tests(metafunc):
    for name in ARGUMENTS.keys() & set(metafunc.fixturenames):
        test = metafunc.function.__name__ if name == "kernel_case" else ""
        cases = [
            pytest.param(case, marks=pytest.mark.interpreter if waits(case, test) else ())
            for case in all_cases(ARGUMENTS[name])
            if test or case.first or case.impl == "reference"
        ]
        metafunc.parametrize(name, cases, ids=str)


def waits(case, comparison):
    """Whether a case is left to `make interpreter`; comparison: the test, if it is one."""
    if not case.slow or str(case.codec) in IN_THE_SUITE:
        return False
    return not case.first or comparison not in COMPARED or case.codec.name in COMPOSED
