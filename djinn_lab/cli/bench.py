"""``djinn-lab bench``: the repository's benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from djinn_lab.errors import UserError


def run_benchmarks(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks to run. Default: all.")] = None,
) -> None:
    """Run a checkout's benchmarks, each beside its baseline; results go to benchmarks/results."""
    root = benchmark_root()
    code = subprocess.run(
        [sys.executable, "-m", "benchmarks", *(names or ())], cwd=root, check=False
    ).returncode
    if code != 0:
        raise UserError(f"The benchmarks ended with code {code}.")


def benchmark_root() -> Path:
    """The checkout that holds ``benchmarks/__main__.py``. Raises UserError when there is none."""
    import djinn_lab

    packages = [Path(place).resolve().parent for place in djinn_lab.__path__]
    for root in (Path.cwd(), *packages):
        if (root / "benchmarks" / "__main__.py").is_file():
            return root
    raise UserError(
        "The benchmarks are not part of the installed package.",
        "Run this command, or make bench, in a checkout of the repository.",
    )
