"""Public traces, where they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from djinn_lab.simulator.traces.lines import VARIABLE


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of public traces; without it the test is skipped."""
    folder = Path(os.environ.get(VARIABLE, ""))
    if VARIABLE not in os.environ or not folder.is_dir():
        pytest.skip(f"set {VARIABLE} to the folder that holds the public traces")
    return folder
