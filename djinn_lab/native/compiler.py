"""The compiler and its command lines."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from djinn_lab.native.extensions import NativeExtension
from djinn_lab.native.sources import TORCH_LIBRARIES, flags
from djinn_lab.native.target import BuildTarget

CANDIDATES = ("g++", "c++", "clang++")


class CompilationFailed(Exception):
    """Holds the compiler's output."""


@dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]

    def compile(
        self,
        extension: NativeExtension,
        variant: str,
        target: BuildTarget,
        package: Path,
        unit: Path,
        result: Path,
    ) -> None:
        """Compile one source to an object file. Raises CompilationFailed."""
        includes = [target.include]
        if extension.needs_torch:
            assert target.torch is not None
            torch = target.torch.directory
            includes += [torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include"]
        system = [part for path in includes for part in ("-isystem", str(path))]
        arguments = [*flags(extension, variant), f"-I{package}", *system, "-c", str(unit)]
        self._run(*arguments, "-o", str(result))

    def link(
        self, extension: NativeExtension, target: BuildTarget, objects: list[Path], result: Path
    ) -> None:
        """Link object files to an extension module. Raises CompilationFailed."""
        libraries: tuple[str, ...] = ()
        if extension.needs_torch:  # no rpath: torch is imported first, and the file may be used elsewhere
            assert target.torch is not None
            libraries = (f"-L{target.torch.directory / 'lib'}", *TORCH_LIBRARIES)
        if sys.platform == "darwin":  # Python's own functions are in the interpreter, not in a library
            libraries += ("-undefined", "dynamic_lookup")
        self._run("-shared", *map(str, objects), *libraries, "-o", str(result))

    def _run(self, *arguments: str) -> None:
        command = [*self.command, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if ran.returncode:
            raise CompilationFailed(f"{shlex.join(command)}\n{ran.stderr}{ran.stdout}")


def find_compiler() -> Compiler | None:
    """Return what ``CXX`` names, else the first C++ compiler on the path."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        return Compiler(tuple(chosen)) if shutil.which(chosen[0]) else None
    return next((Compiler((name,)) for name in CANDIDATES if shutil.which(name)), None)
