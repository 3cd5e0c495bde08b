"""Which recording the dashboard shows in place of a pool."""

from __future__ import annotations

import os
from pathlib import Path

FILE_VARIABLE = "DJINN_RECORDING"
"""Path of the recording, a pool's database; ``djinn-lab dashboard --file`` sets it."""


def recording_path() -> Path | None:
    """Return the recording that this process shows, None for a live pool."""
    named = os.environ.get(FILE_VARIABLE)
    return Path(named) if named else None
