"""Loading extensions: a file of exactly this fingerprint or none, and a sentence that says why none.
Meanwhile they are built in the background."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from djinn_lab.native.building import is_building, log_of
from djinn_lab.native.compiler import Compiler, find_compiler
from djinn_lab.native.extensions import EXTENSIONS, NativeExtension, UnknownVariant
from djinn_lab.native.places import BuildFolders, places
from djinn_lab.native.sources import file_name, units
from djinn_lab.native.target import BuildTarget, this_target
from djinn_lab.system.processes import start_detached

BUILD_LOG = "background.log"


def start_build(folder: Path) -> None:
    """Start ``python -m djinn_lab.native build`` as a process of its own, at low priority.

    Builders take turns by the folder's lock, so a second call only starts a process that finds the work done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "djinn_lab.native", "build", "--optional"]
    start_detached(command, folder / BUILD_LOG)


SWITCH = "DJINN_LAB_NATIVE"
BUILD = "python -m djinn_lab.native build"


@dataclass(frozen=True)
class Finding:
    """The file to load, or the problem and its cure. ``can_build``: a build now would make the file."""

    file: Path | None = None
    problem: str = ""
    cure: str = ""
    can_build: bool = False

    @property
    def sentence(self) -> str:
        return (": ".join(part for part in (self.problem, self.cure) if part) + ".") if self.problem else ""


class Loader:
    """Loads each extension at most once; what was decided holds until the process ends."""

    def __init__(
        self,
        extensions: dict[str, NativeExtension] = EXTENSIONS,
        where: Callable[[], BuildFolders] = places,
        target: Callable[[], BuildTarget] = this_target,
        compiler: Callable[[], Compiler | None] = find_compiler,
        start: Callable[[Path], None] = start_build,
    ) -> None:
        self._extensions = extensions
        self._where = where
        self._target = target
        self._compiler = compiler
        self._start = start
        self._lock = threading.Lock()
        self._loaded: dict[str, tuple[ModuleType | None, Finding]] = {}
        self._started = False

    def load(self, name: str) -> ModuleType | None:
        """Return the extension, or None; then :meth:`why_missing` has the sentence."""
        extension = self._extensions[name]
        if _is_off():
            return None
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._attempt(extension)
            return self._loaded[name][0]

    def why_missing(self, name: str) -> str:
        """Say why the extension is not there and what to do; empty when it is."""
        with self._lock:
            known = None if _is_off() else self._loaded.get(name)
        return (known[1] if known is not None else self.find(name)).sentence

    def find(self, name: str) -> Finding:
        """Look for the file without loading it and without starting a build."""
        extension = self._extensions[name]
        if _is_off():
            return Finding(None, f"{_the(extension)} is switched off", f"unset {SWITCH}")
        try:
            variant = extension.variant()
        except UnknownVariant as error:
            return Finding(None, f"{_the(extension)} is not used", f"{error}")
        where, target = self._where(), self._target()
        if not units(extension, where.package):
            return Finding(None, f"{_the(extension)} is not part of this version of Djinn Lab")
        if extension.needs_torch and target.torch is None:
            return Finding(None, f"{_the(extension)} needs torch", f"pip install torch, then {BUILD}")
        wanted = file_name(extension, variant, target, where.package)
        for folder in where.search:
            if (folder / wanted).is_file():
                return Finding(folder / wanted)
        return self._not_built(extension, target, where.into / wanted)

    def _not_built(self, extension: NativeExtension, target: BuildTarget, file: Path) -> Finding:
        if is_building(file.parent):
            return _being_built(extension)
        made_for = "these sources"
        if extension.needs_torch and target.torch is not None:
            made_for = f"torch {target.torch.version} and {made_for}"
        problem = f"{_the(extension)} is not built for {made_for}"
        if self._compiler() is None:
            return Finding(None, f"{problem}, and there is no C++ compiler", f"apt install g++, then {BUILD}")
        if not target.has_python_headers:
            return Finding(
                None, f"{problem}, and Python.h is missing", f"apt install python3-dev, then {BUILD}"
            )
        if log_of(file).is_file():
            return Finding(None, f"{problem}, as the compiler failed, see {log_of(file)}", BUILD)
        return Finding(None, problem, BUILD, can_build=True)

    def _attempt(self, extension: NativeExtension) -> tuple[ModuleType | None, Finding]:
        finding = self.find(extension.name)
        if finding.file is not None:
            return self._import(extension, finding.file)
        if not finding.can_build:
            return None, finding
        try:
            if not self._started:
                self._start(self._where().into)
                self._started = True
        except (OSError, subprocess.CalledProcessError) as error:
            return None, Finding(None, f"{finding.problem}, and no build could be started ({error})", BUILD)
        return None, _being_built(extension)

    def _import(self, extension: NativeExtension, file: Path) -> tuple[ModuleType | None, Finding]:
        try:
            if extension.needs_torch:
                torch, target = importlib.import_module("torch"), self._target()
                assert target.torch is not None
                running, installed = str(torch.__version__), target.torch.version
                if running != installed:
                    problem = f"{_the(extension)} is for torch {installed}, and torch {running} is running"
                    return None, Finding(None, problem, "restart the kernel")
            spec = spec_from_file_location(extension.module, file)
            assert spec is not None
            assert spec.loader is not None
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
        except (ImportError, OSError, RuntimeError, SystemError) as error:
            problem = f"{_the(extension)} cannot be loaded from {file} ({error})"
            return None, Finding(None, problem, f"{BUILD} --force")
        sys.modules[extension.module] = module
        return module, Finding(file)


def _is_off() -> bool:
    return os.environ.get(SWITCH, "").lower() == "off"


def _being_built(extension: NativeExtension) -> Finding:
    return Finding(None, f"{_the(extension)} is being built in the background", "the next session uses it")


def _the(extension: NativeExtension) -> str:
    return f"The {extension.name} extension"


_LOADER = Loader()


def load(name: str) -> ModuleType | None:
    """Return the extension called ``recorder``, ``executor`` or ``wire``, or None when it cannot be used.

    Never waits for a compiler: where one is there and the file is not, a build starts in the background.
    Torch is imported first for the extensions that need it, and only for those.
    """
    return _LOADER.load(name)


def why_missing(name: str) -> str:
    """Say in one sentence why :func:`load` returns None and what to do; empty when the extension is there."""
    return _LOADER.why_missing(name)


def find(name: str) -> Finding:
    """Return the file that :func:`load` would load, or the problem and its cure, without loading anything."""
    return _LOADER.find(name)
