"""One environment for each version of torch, on top of the one that runs this."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import torch

NEWEST = "newest"
BASE = "base.pth"
PURELIB = "import sysconfig; print(sysconfig.get_paths()['purelib'])"


class Environment(NamedTuple):
    """``problem``: why it cannot be used, empty where it can."""

    version: str
    python: Path
    problem: str = ""


def resolved(wanted: str) -> str:
    """Return the version that pip would install: of ``newest``, the newest that it may take here."""
    if wanted != NEWEST:
        return wanted
    options = ("--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-")
    done = _run([sys.executable, "-m", "pip", "install", *options, "torch"])
    found: str = json.loads(done.stdout)["install"][0]["metadata"]["version"]
    return found.split("+")[0]


def environment(version: str, cache: Path) -> Environment:
    """Make the environment of a version below ``cache``, unless it is there, and build the extensions for it.
    The version that runs this needs none of its own."""
    if version == str(torch.__version__).split("+")[0]:
        return Environment(version, Path(sys.executable))
    folder = cache / f"torch-{version}"
    python = folder / "bin" / "python"
    try:
        if not (folder / ".installed").is_file():
            _install(version, folder, python)
        print(f"building the extensions for torch {version}", flush=True)
        _run([str(python), "-m", "djinn_lab.native", "build"])
    except subprocess.CalledProcessError as error:
        return Environment(
            version, python, f"{' '.join(error.cmd[1:4])}: {(error.stderr or error.stdout)[-1000:]}"
        )
    return Environment(version, python)


def _install(version: str, folder: Path, python: Path) -> None:
    print(f"installing torch {version} into {folder}", flush=True)
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    own = Path(_run([str(python), "-c", PURELIB]).stdout.strip())
    base = sysconfig.get_paths()["purelib"]
    (own / BASE).write_text(f"import site; site.addsitedir({base!r})\n")
    _run([str(python), "-m", "pip", "install", "--quiet", f"torch=={version}"])
    (folder / ".installed").touch()


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True)
