"""The compiled host kernels; everything else about the package stands in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("kernels/native")
SOURCES = sorted(p for p in NATIVE.glob("*.cpp") if p.name != "fuzz_decode.cpp")
FLAGS = "-std=c++17 -O3 -g0 -fvisibility=hidden -ffp-contract=off"
FLAGS += " -fno-trapping-math -fno-math-errno"

setup(
    ext_modules=[
        Extension(
            "kvcodec.kernels._native",
            sources=[str(path) for path in SOURCES],
            depends=sorted(map(str, [*NATIVE.glob("*.h"), *NATIVE.glob("*.inc")])),
            language="c++",
            # No -march: the instruction set is chosen when a call begins (kernels/native/isa.cpp).
            # -fno-trapping-math: code under a condition may run always, which vectorising needs.
            extra_compile_args=FLAGS.split(),
            extra_link_args=["-pthread"],
            py_limited_api=True,
            optional=True,  # without a compiler the package installs, and vector serves
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
