"""``python tests/touched.py``: print the folders of tests for changed files, for ``make check``.

Changed are files in commits since the last one in common with origin/main (without one, since HEAD), in the
working tree, and new files. A package's tests lie in the folder of its name.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
ELSEWHERE = {
    "kernels": "notebooks",
    "release": "packaging",
    "setup.py": "packaging",
    "README.md": "docs",
    "CHANGELOG.md": "docs",
    "CONTRIBUTING.md": "docs",
}
"""Folders of tests for parts without a folder of their own name."""


def folder_of(path: str) -> str | None:
    """Return the folder of tests for a file of the repository, None for a file without tests."""
    parts = path.split("/")
    if parts[0] in ("djinn_lab", "tests") and len(parts) > 2:
        parts = parts[1:]
    has_tests = any((TESTS / parts[0]).glob("test_*.py"))
    return ELSEWHERE.get(parts[0], parts[0] if has_tests else None)


def folders_of(paths: Iterable[str]) -> list[str]:
    """Return the folders of tests for ``paths``, each once, as arguments of pytest."""
    return sorted({f"tests/{folder}" for path in paths if (folder := folder_of(path)) is not None})


def changed() -> list[str]:
    """Return the paths of changed files."""
    base = _git("merge-base", "origin/main", "HEAD") or ["HEAD"]
    return [*_git("diff", "--name-only", base[0]), *_git("ls-files", "--others", "--exclude-standard")]


def _git(*arguments: str) -> list[str]:
    """Return git's output as lines, none when git fails."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


if __name__ == "__main__":
    print(" ".join(folders_of(changed())))
