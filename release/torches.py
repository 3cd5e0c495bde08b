"""The interpreters and the releases of torch to build for. Only headers and libraries of torch are needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from release.running import CannotRelease, run

LOOK = """
import json, sys, sysconfig
from djinn_lab.native.target import this_target
torch = this_target().torch
print(json.dumps([f"cp{sys.version_info.major}{sys.version_info.minor}",
                  torch and [torch.version, str(torch.directory.parent)]]))
"""
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Interpreter:
    """``torch``: the version and the site-packages of the torch that it would import, if it has one."""

    executable: str
    tag: str
    torch: tuple[str, Path] | None

    @classmethod
    def at(cls, executable: str) -> Interpreter:
        """Raises CannotRelease where there is no such Python."""
        try:
            tag, torch = json.loads(run([executable, "-c", LOOK], folder=ROOT))
        except OSError as error:
            raise CannotRelease(f"There is no Python at {executable} ({error}).") from None
        return cls(executable, tag, torch and (torch[0], Path(torch[1])))


def installed_torch(python: Interpreter) -> dict[str, Path]:
    """Return the installed torch's version and folder. Raises CannotRelease without one."""
    if python.torch is None:
        raise CannotRelease(f"{python.executable} has no torch: name releases, as in --torch 2.13.0")
    version, folder = python.torch
    return {version: folder}


def torch_folder(python: Interpreter, version: str, scratch: Path) -> Path:
    """Install a release of torch, without what it depends on, into a folder of its own; once.

    Raises CannotRelease when the registry has no such release for the interpreter.
    """
    folder = scratch / python.tag / version
    if not (folder / "torch" / "version.py").is_file():
        pip = [python.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--target", str(folder), f"torch=={version}"])
    return folder
