"""Puts the C++ extensions into the wheel when torch and a compiler are there, and the commit into archives.

torch is no build requirement: pip would fetch one only to build against another than the installed one. What
counts is the torch of the environment that is being installed into. Without it, or without a compiler, the
wheel holds the sources alone, and the extensions are built when they are first wanted. ``DJINN_LAB_TORCHES``
names folders with a torch package each: the wheel then holds the extensions for all of them, or fails.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.dist import Distribution

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from djinn_lab.native.building import Builder, BuildFailed, WantedBuild  # noqa: E402
from djinn_lab.native.compiler import find_compiler  # noqa: E402
from djinn_lab.native.extensions import EXTENSIONS  # noqa: E402
from djinn_lab.native.places import BUILT  # noqa: E402
from djinn_lab.native.sources import units  # noqa: E402
from djinn_lab.native.target import BuildTarget, environment_target, target_with  # noqa: E402
from djinn_lab.system.commit import STAMP, commit  # noqa: E402
from djinn_lab.system.links import CannotLink, link_folders  # noqa: E402

PACKAGE = HERE / "djinn_lab"
TORCHES = "DJINN_LAB_TORCHES"
ASKED = [Path(folder) for folder in os.environ.get(TORCHES, "").split(os.pathsep) if folder]


def targets() -> list[BuildTarget]:
    if not ASKED:
        return [environment_target()]
    found = [target_with(folder / "torch") for folder in ASKED]
    missing = [str(folder) for folder, target in zip(ASKED, found, strict=True) if target.torch is None]
    if missing:
        sys.exit(
            f"{TORCHES}: no torch package in {', '.join(missing)}. Install torch there: pip install --target"
        )
    return found


def wanted(target: BuildTarget) -> list[WantedBuild]:
    return [
        WantedBuild(extension, extension.variant())
        for extension in EXTENSIONS.values()
        if units(extension, PACKAGE) and (target.torch is not None or not extension.needs_torch)
    ]


TARGETS = targets()
COMPILER = find_compiler() if TARGETS[0].has_python_headers else None
BUILDS = (
    any(wanted(target) for target in TARGETS)
    and COMPILER is not None
    and os.environ.get("DJINN_LAB_NATIVE", "").lower() != "off"
    and "editable_wheel" not in sys.argv  # a checkout keeps its files beside the package: make install
)
if ASKED and not BUILDS:
    sys.exit(
        f"{TORCHES} asks for C++ extensions: a compiler, Python.h and DJINN_LAB_NATIVE unset are needed."
    )


def stamp(package: Path) -> None:
    """Write the commit into a copy of the package."""
    (package / STAMP).parent.mkdir(parents=True, exist_ok=True)
    (package / STAMP).unlink(missing_ok=True)  # it may be a hard link to the original
    (package / STAMP).write_text(f"{commit(PACKAGE)}\n", encoding="utf-8")


class MaybeBinary(Distribution):
    """A wheel for one platform when it holds extensions."""

    def has_ext_modules(self) -> bool:
        return BUILDS or super().has_ext_modules()


class BuildWithExtensions(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "djinn_lab"
        stamp(package)
        if BUILDS:
            self.build_extensions(package / BUILT)
        else:
            self.announce("djinn-lab: built without its C++ extensions (djinn-lab doctor says why)", level=3)

    def build_extensions(self, into: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="djinn-native-") as folder:
            assert COMPILER is not None
            for target in TARGETS:
                builder = Builder(PACKAGE, Path(folder), target, COMPILER)
                try:
                    builder.build(wanted(target), lambda line: self.announce(line, level=3))
                except BuildFailed as error:
                    if ASKED:
                        raise
                    self.announce(f"djinn-lab: not every C++ extension was built\n{error}", level=3)
            into.mkdir(parents=True, exist_ok=True)
            for file in Path(folder).glob("*.so"):
                shutil.copy(file, into)


class StampedArchive(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        stamp(Path(base_dir) / "djinn_lab")


try:
    link_folders(PACKAGE)
except CannotLink as error:
    sys.exit(f"djinn-lab: {error}")
setup(
    distclass=MaybeBinary,
    cmdclass={"build_py": BuildWithExtensions, "sdist": StampedArchive},
)
