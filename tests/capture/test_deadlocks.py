"""The GIL and the recorder's lock are taken by many threads at once and never wait for each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_threads_that_record_read_drop_and_collect_at_once_all_finish(recorder_kind: str) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "deadlock_rounds.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE.parent)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
