"""Installs packages of plug-ins into a directory, as a user does into an environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE = EXAMPLES / "cost-estimator"


def install(place: Path, *sources: Path) -> Path:
    """Install packages with pip, from copies of their sources. Returns the directory to import from."""
    copies = [shutil.copytree(source, place / "sources" / source.name) for source in sources]
    site = place / "site"
    arguments = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(site))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *arguments, *map(str, copies)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return site


def write_package(place: Path, name: str, code: str, group: str, offers: dict[str, str]) -> Path:
    """Write the sources of a package of one module. ``offers``: its entry points."""
    source = place / name
    source.mkdir(parents=True)
    (source / f"{name}.py").write_text(code)
    entries = "\n".join(f'{offered} = "{name}:{attribute}"' for offered, attribute in offers.items())
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=70.1"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "{name}"\nversion = "1.0"\n'
        f'[project.entry-points."{group}"]\n{entries}\n'
        f'[tool.setuptools]\npy-modules = ["{name}"]\n'
    )
    return source


def import_from(patch: pytest.MonkeyPatch, site: Path) -> None:
    """Make what is installed there importable, in this process and in those that it starts."""
    patch.syspath_prepend(str(site))
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))))
