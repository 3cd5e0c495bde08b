"""``python -m release``: build the source archive and the wheels, and check each in a clean environment."""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from release.archives import build_sdist, build_wheel, repair
from release.first_install import first_install
from release.running import CannotRelease
from release.torches import Interpreter, installed_torch, torch_folder

ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, or 1 when something was not built or failed its check."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="folder for the files (default: dist)"
    )
    parser.add_argument(
        "--python", action="append", help="interpreter to build for, repeatable (default: this one)"
    )
    parser.add_argument(
        "--torch",
        action="append",
        help="release of torch to build for, repeatable (default: the installed one)",
    )
    parser.add_argument(
        "--build-only", action="store_true", help="leave out the checks in clean environments"
    )
    options = parser.parse_args(arguments)
    try:
        _release(options.out.resolve(), options.python or [sys.executable], options.torch, options.build_only)
    except CannotRelease as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _release(out: Path, pythons: Sequence[str], torches: Sequence[str] | None, build_only: bool) -> None:
    scratch = ROOT / "build" / "release"
    shutil.rmtree(scratch / "raw", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    archive = build_sdist(ROOT, out)
    print(f"built {archive.name}", flush=True)
    print(f"built {build_wheel(archive, Interpreter.at(sys.executable), (), out).name}", flush=True)
    for python in map(Interpreter.at, pythons):
        folders = _torch_folders(python, torches, scratch / "torches")
        raw = build_wheel(archive, python, list(folders.values()), scratch / "raw")
        wheel = repair(raw, out) if platform.system() == "Linux" else Path(shutil.copy(raw, out))
        print(f"built {wheel.name} for torch {', '.join(folders)}", flush=True)
        for version in () if build_only else folders:
            print(first_install(python, wheel, version, ROOT / "README.md").sentence, flush=True)


def _torch_folders(python: Interpreter, torches: Sequence[str] | None, scratch: Path) -> dict[str, Path]:
    if torches is None:
        return installed_torch(python)
    return {version: torch_folder(python, version, scratch) for version in torches}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
