"""Puts the C++ extensions into the wheel when torch and a compiler are there.

torch is no build requirement: pip would fetch one only to build against another than the installed one. What
counts is the torch of the environment that is being installed into. Without it, or without a compiler, the
wheel holds the sources alone, and the extensions are built when they are first wanted.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from djinn_lab.native.building import Builder, BuildFailed, WantedBuild  # noqa: E402
from djinn_lab.native.compiler import find_compiler  # noqa: E402
from djinn_lab.native.extensions import EXTENSIONS  # noqa: E402
from djinn_lab.native.places import BUILT  # noqa: E402
from djinn_lab.native.sources import units  # noqa: E402
from djinn_lab.native.target import environment_target  # noqa: E402

PACKAGE = HERE / "djinn_lab"
TARGET = environment_target()
COMPILER = find_compiler() if TARGET.has_python_headers else None
WANTED = [
    WantedBuild(extension, extension.variant())
    for extension in EXTENSIONS.values()
    if units(extension, PACKAGE) and (TARGET.torch is not None or not extension.needs_torch)
]
BUILDS = (
    bool(WANTED)
    and COMPILER is not None
    and os.environ.get("DJINN_LAB_NATIVE", "").lower() != "off"
    and "editable_wheel" not in sys.argv  # a checkout keeps its files beside the package: make install
)


class MaybeBinary(Distribution):
    """A wheel for one platform when it holds extensions."""

    def has_ext_modules(self) -> bool:
        return BUILDS or super().has_ext_modules()


class BuildWithExtensions(build_py):
    def run(self) -> None:
        super().run()
        if not BUILDS:
            self.announce(
                "djinn-lab: installed without its C++ extensions (djinn-lab doctor says why)", level=3
            )
            return
        with tempfile.TemporaryDirectory(prefix="djinn-native-") as folder:
            assert COMPILER is not None
            builder = Builder(PACKAGE, Path(folder), TARGET, COMPILER)
            try:
                builder.build(WANTED, lambda line: self.announce(line, level=3))
            except BuildFailed as error:
                self.announce(f"djinn-lab: not every C++ extension was built\n{error}", level=3)
            target = Path(self.build_lib) / "djinn_lab" / BUILT
            target.mkdir(parents=True, exist_ok=True)
            for file in Path(folder).glob("*.so"):
                shutil.copy(file, target)


setup(distclass=MaybeBinary, cmdclass={"build_py": BuildWithExtensions})
