"""Running a program, with all of its output in the error when it fails."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class CannotRelease(Exception):
    """Something was not built or failed its check; the message holds the program's output."""


def run(
    command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> str:
    """Return what the program printed. Raises CannotRelease when it fails."""
    ran = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, env=environment, cwd=folder
    )
    if ran.returncode:
        raise CannotRelease(
            f"{shlex.join(command)} failed with code {ran.returncode}:\n{ran.stdout}{ran.stderr}"
        )
    return ran.stdout
