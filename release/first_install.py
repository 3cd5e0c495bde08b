"""A first-time install: a new environment without a compiler, the README's cell, and the dashboard."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from release.dashboard import open_dashboard
from release.running import CannotRelease, run
from release.torches import Interpreter

FIRST_CELL = Path(__file__).with_name("first_cell.py")
FIRST_VALUE_MAX_S = 60.0


@dataclass(frozen=True)
class FirstInstall:
    """``pip_s`` includes downloads; ``first_value_s`` counts from pip's end to the cell's value."""

    wheel: str
    torch: str
    pip_s: float
    first_value_s: float

    @property
    def sentence(self) -> str:
        return (
            f"checked {self.wheel} with torch {self.torch}: pip {self.pip_s:.0f} s, "
            f"then {self.first_value_s:.1f} s to the first value; extensions and dashboard work"
        )


def first_install(python: Interpreter, wheel: Path, torch: str, readme: Path) -> FirstInstall:
    """Install the wheel into a new environment, run the README's cell on a pool, and open the dashboard.

    Raises CannotRelease when a part fails, an extension is not that of the wheel, or the first value takes
    longer than ``FIRST_VALUE_MAX_S``.
    """
    with tempfile.TemporaryDirectory(prefix="djinn-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        began_s = time.monotonic()
        binaries = _environment_with(python, wheel, torch, place)
        pip_s = time.monotonic() - began_s
        environment = _bare(place, binaries)
        try:
            first_value_s = _first_value(binaries, environment, readme, place)
        finally:
            run([str(binaries / "djinn-lab"), "pool", "stop"], environment, place)
        open_dashboard([str(binaries / "djinn-lab")], [str(binaries / "panel")], environment, place)
        return FirstInstall(wheel.name, torch, pip_s, first_value_s)


def _environment_with(python: Interpreter, wheel: Path, torch: str, place: Path) -> Path:
    run([python.executable, "-m", "venv", str(place / "venv")])
    binaries = place / "venv" / "bin"
    pip = [str(binaries / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    without_python = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    run([*pip, str(wheel), f"torch=={torch}"], {**without_python, "PATH": str(binaries)})
    return binaries


def _bare(place: Path, binaries: Path) -> dict[str, str]:
    """Return an environment with a home of its own and no program but those that the wheel brought."""
    runtime = place / "run"
    runtime.mkdir(mode=0o700)
    return {"PATH": str(binaries), "HOME": str(place), "XDG_RUNTIME_DIR": str(runtime), "LANG": "C.UTF-8"}


def _first_value(binaries: Path, environment: dict[str, str], readme: Path, place: Path) -> float:
    """Return the seconds to the first value. Raises CannotRelease."""
    command = [str(binaries / "python"), str(FIRST_CELL), str(readme.resolve()), str(time.monotonic())]
    found = json.loads(run(command, environment, place).splitlines()[-1])
    others = {
        name: file for name, file in found["extensions"].items() if not file.startswith(str(place / "venv"))
    }
    if others or found["compiler"]:
        raise CannotRelease(f"Not loaded from the wheel: {others}; compiler: {found['compiler'] or 'none'}")
    if not found["shown"].startswith("tensor("):
        raise CannotRelease(f"The README's cell showed {found['shown']!r} in place of a tensor.")
    if found["seconds"] > FIRST_VALUE_MAX_S:
        raise CannotRelease(
            f"The first value took {found['seconds']:.0f} s, more than {FIRST_VALUE_MAX_S:.0f} s."
        )
    return float(found["seconds"])
