"""The compiled host kernels; everything else about the package stands in pyproject.toml."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

NATIVE = Path("kernels/native")
SOURCES = sorted(p for p in NATIVE.glob("*.cpp") if p.name != "fuzz_decode.cpp")
FLAGS = "-std=c++17 -O3 -g0 -fvisibility=hidden -ffp-contract=off"
FLAGS += " -fno-trapping-math -fno-math-errno"


class ParallelBuild(build_ext):
    """One source file to a core: each instruction set takes as long as all the rest."""

    def build_extension(self, ext: Extension) -> None:
        """Compile what is out of date, then let setuptools link."""

        def compile_one(source: str) -> list[str]:
            return self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                debug=self.debug,
                extra_postargs=ext.extra_compile_args,
                depends=ext.depends,
            )

        if self.force or newer_group([*ext.sources, *ext.depends], self.get_ext_fullpath(ext.name)):
            with ThreadPoolExecutor() as pool:  # a compiler is a process
                for objects in pool.map(compile_one, ext.sources):
                    ext.extra_objects += objects
            ext.sources = []
        super().build_extension(ext)


setup(
    cmdclass={"build_ext": ParallelBuild},
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
