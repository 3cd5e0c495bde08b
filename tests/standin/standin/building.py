"""Builds the device's C++ by the project's own builder, a file for each state of the sources; loads it."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch

from djinn_lab.native.building import Builder, WantedBuild
from djinn_lab.native.compiler import Compiler, find_compiler
from djinn_lab.native.extensions import NativeExtension
from djinn_lab.native.sources import file_name
from djinn_lab.native.target import BuildTarget, this_target

SOURCES = Path(__file__).resolve().parents[1]
BUILT = SOURCES.parents[1] / "build" / "standin"
EXTENSION = NativeExtension("standin", "standin_native", "native", needs_torch=True)


class CannotBuild(Exception):
    """The machine lacks what a build needs; the message says what."""


def build() -> Path:
    """Return the built file; where these sources were not compiled for this torch, compile them in a minute.

    Raises CannotBuild without a compiler or Python.h, and BuildFailed where the compiler fails.
    """
    target = this_target()
    file = BUILT / file_name(EXTENSION, "", target, SOURCES)
    if file.is_file():
        return file
    builder = Builder(SOURCES, BUILT, target, _compiler_for(target))
    return builder.build([WantedBuild(EXTENSION, "")])[0]


def load() -> ModuleType:
    """Return the extension module, loaded once a process. Raises as :func:`build` does."""
    known = sys.modules.get(EXTENSION.module)
    if known is not None:
        return known
    assert torch.__version__  # its libraries are what the extension is linked to
    spec = spec_from_file_location(EXTENSION.module, build())
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[EXTENSION.module] = module
    return module


def _compiler_for(target: BuildTarget) -> Compiler:
    compiler = find_compiler()
    if compiler is None:
        raise CannotBuild("there is no C++ compiler (apt install g++)")
    if not target.has_python_headers:
        raise CannotBuild(f"{target.include}/Python.h is missing (apt install python3-dev)")
    return compiler
