"""A minute of the sweep of chaos (``make sweep-chaos``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.processes


def test_sessions_survive_kills_stops_and_full_file_systems() -> None:
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False).returncode:
        pytest.skip("file systems can only be mounted, and filled, by root")
    command = [sys.executable, "-W", "ignore", "-m", "sweeps.chaos", "--kills", "4", "--clients", "3"]
    path = f"{ROOT}:{ROOT / 'tests'}"
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
