"""The Python and the torch that an extension is built for. Torch is looked at on disk and never imported."""

from __future__ import annotations

import re
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_FOR_CPU_OR_CUDA = re.compile(r"\+(cpu|cu\d+)$")


@dataclass(frozen=True)
class Torch:
    """``version`` is the full one, such as ``2.13.0+cpu``."""

    directory: Path
    version: str

    @property
    def api(self) -> str:
        """The version without ``+cpu`` or ``+cu130``: PyTorch's builds of one release for CPUs and for CUDA
        have the same C++ interface. Other local versions stay: builds for ROCm, or from changed sources."""
        return _FOR_CPU_OR_CUDA.sub("", self.version)


@dataclass(frozen=True)
class BuildTarget:
    """``tag`` names interpreter and platform, as in ``cpython-311-x86_64-linux-gnu``."""

    tag: str
    include: Path
    torch: Torch | None

    @property
    def has_python_headers(self) -> bool:
        return (self.include / "Python.h").is_file()


def this_target() -> BuildTarget:
    """Return the target of the running interpreter, with the torch that it would import."""
    spec = find_spec("torch")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return target_with(Path(places[0]) if places else None)


def environment_target() -> BuildTarget:
    """Return the target of the environment that a package is being installed into.

    pip builds in an isolated environment that does not import what the real one has, yet with the real one's
    interpreter: ``sysconfig`` still names the real site-packages.
    """
    for kind in ("platlib", "purelib"):
        directory = Path(sysconfig.get_paths()[kind]) / "torch"
        if directory.is_dir():
            return target_with(directory)
    return this_target()


def target_with(torch_directory: Path | None) -> BuildTarget:
    """Return the target of this interpreter and of the torch package in ``torch_directory``."""
    paths = sysconfig.get_paths()
    tag = str(sysconfig.get_config_var("SOABI"))
    return BuildTarget(tag, Path(paths["include"]), _torch_in(torch_directory) if torch_directory else None)


def _torch_in(directory: Path) -> Torch | None:
    """Read the version from torch's own file; None when this is not a torch to compile against."""
    try:
        text = (directory / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return Torch(directory, found.group(1)) if found else None
