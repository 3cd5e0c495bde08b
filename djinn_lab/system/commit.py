"""The commit of this code: a stamp that the build left in the package, or what git says of the checkout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
STAMP = Path("system") / "commit.txt"
"""Relative to the package: where ``setup.py`` writes the commit for a package without git history."""
DIGITS = 12


def commit(package: Path = PACKAGE) -> str:
    """Return the commit, with ``-dirty`` where tracked files differ from it; empty where it is unknown."""
    if (package / STAMP).is_file():
        return (package / STAMP).read_text(encoding="utf-8").strip()
    checkout = package.parent
    if not (checkout / ".git").exists() or shutil.which("git") is None:
        return ""
    describe = ("describe", "--always", "--dirty", "--exclude=*", f"--abbrev={DIGITS}")
    command = ["git", "-C", str(checkout), *describe]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
