"""A test that takes one of these arguments runs once for every case it applies to.

In Triton's interpreter, examples after a codec's first run only where a kernel is compared with the
reference: equal bytes and equal bits carry every other promise over.
"""

from conformance.cases import all_cases

ARGUMENTS = {
    "case": lambda case: True,
    "codec_case": lambda case: case.impl == "reference",
    "kernel_case": lambda case: case.impl != "reference",
    "host_case": lambda case: case.impl != "triton",
    "lossless_case": lambda case: case.codec.lossless,
    "lossy_case": lambda case: not case.codec.lossless,
    "idempotent_case": lambda case: case.codec.idempotent,
    "fixed_size_case": lambda case: case.codec.fixed_size,
    "splittable_case": lambda case: case.codec.head_splittable,
}


def pytest_generate_tests(metafunc):
    for name in ARGUMENTS.keys() & set(metafunc.fixturenames):
        cases = all_cases(ARGUMENTS[name])
        if name != "kernel_case":
            cases = [case for case in cases if case.first or not case.slow]
        metafunc.parametrize(name, cases, ids=str)
