"""``python -m djinn_lab.native``: build the C++ extensions, or show which are built."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from djinn_lab.native.building import Builder, BuildFailed, WantedBuild
from djinn_lab.native.compiler import Compiler, find_compiler
from djinn_lab.native.extensions import EXTENSIONS, NativeExtension, UnknownVariant
from djinn_lab.native.loading import find
from djinn_lab.native.places import places
from djinn_lab.native.sources import units
from djinn_lab.native.target import BuildTarget, this_target


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, or 1 when something that was asked for was not built."""
    parser = argparse.ArgumentParser(prog="python -m djinn_lab.native", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    builds = commands.add_parser("build", help="build what is not built for this Python and torch")
    builds.add_argument("extension", nargs="*", help=f"of {', '.join(EXTENSIONS)}; default: all")
    builds.add_argument(
        "--variant", choices=sorted({v for e in EXTENSIONS.values() for v in e.variants if v})
    )
    builds.add_argument("--force", action="store_true", help="compile also what is there")
    builds.add_argument("--optional", action="store_true", help="succeed when there is no compiler or torch")
    commands.add_parser("status", help="each extension's file, or why it is missing")
    options = parser.parse_args(arguments)
    if options.command == "status":
        return _status()
    unknown = set(options.extension) - set(EXTENSIONS)
    if unknown:
        parser.error(f"no such extension: {', '.join(sorted(unknown))}")
    try:
        return _build(options.extension or list(EXTENSIONS), options.variant, options.force, options.optional)
    except UnknownVariant as error:
        parser.error(str(error))


def _status() -> int:
    for name in EXTENSIONS:
        finding = find(name)
        print(f"{name}: {finding.file or finding.sentence}")
    return 0


def _build(names: Sequence[str], variant: str | None, force: bool, optional: bool) -> int:
    where, target, compiler = places(), this_target(), find_compiler()
    wanted = [
        WantedBuild(extension, _variant(extension, variant))
        for extension in map(EXTENSIONS.__getitem__, names)
        if units(extension, where.package) and not (extension.needs_torch and target.torch is None)
    ]
    if not wanted:
        print("Nothing to build: no sources, or no torch for those that need it.")
        return 0
    problem = _problem(target, compiler)
    if compiler is None or problem:
        print(f"The C++ extensions are not built: {problem} The Python implementations are used.")
        return 0 if optional else 1
    try:
        Builder(where.package, where.into, target, compiler).build(wanted, print, force)
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _variant(extension: NativeExtension, asked: str | None) -> str:
    return asked if asked in extension.variants else extension.variant()


def _problem(target: BuildTarget, compiler: Compiler | None) -> str:
    if compiler is None:
        return "no C++ compiler is there (apt install g++)."
    if not target.has_python_headers:
        return f"{target.include}/Python.h is missing (apt install python3-dev)."
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
