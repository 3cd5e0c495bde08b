"""Builds the extensions while a session runs without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BUILD_LOG = "background.log"

# The shell ends at once and leaves the build to init: no child of the session, and none to wait for.
_DETACHED = 'log=$1; shift; nice -n 10 "$@" >"$log" 2>&1 </dev/null &'


def start_build(folder: Path) -> None:
    """Start ``python -m djinn_lab.native build`` as a process of its own, at low priority.

    Builders take turns by the folder's lock, so a second call only starts a process that finds the work done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "djinn_lab.native", "build", "--optional"]
    subprocess.run(
        ["/bin/sh", "-c", _DETACHED, "sh", str(folder / BUILD_LOG), *command],
        check=True,
        start_new_session=True,
    )
