"""The dashboard's server, found or started from a notebook."""

from __future__ import annotations

import atexit
import subprocess
import sys
import tempfile
import time
from typing import IO

import httpx

from djinn_lab.errors import PoolError
from djinn_lab.magics.progress import WaitLine
from djinn_lab.protocol.dashboard_login import with_code

URL = "http://127.0.0.1:5006/dashboard"
START_TIMEOUT_S = 120.0
STOP_GRACE_S = 5.0
ANSWER_TIMEOUT_S = 2.0


class DashboardProcess:
    """One per notebook. What it started ends with the notebook; one that ran already is left alone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def open(self) -> str:
        """Return the URL of a running dashboard, started if none runs; a line of progress is shown where this
        takes longer than a moment. Raises PoolError when none answers and none can be started."""
        if _answers():
            return with_code(URL)
        process = (
            self._process if self._process is not None and self._process.poll() is None else self._start()
        )
        began = time.monotonic()
        line = WaitLine("The dashboard starts", START_TIMEOUT_S)
        while process.poll() is None and time.monotonic() < began + START_TIMEOUT_S:
            if _answers():
                line.finish("The dashboard runs")
                return with_code(URL)
            line.tick()
            time.sleep(0.1)
        still = "" if process.poll() is not None else f"It does not answer after {START_TIMEOUT_S:.0f} s. "
        self.close()
        line.finish("The dashboard did not start", failed=True)
        raise PoolError(
            f"the dashboard did not start. {still}{self._printed()}".strip(),
            "Try `djinn-lab dashboard` in a terminal.",
        )

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "djinn_lab.cli", "dashboard", "--no-show", "--with-parent"]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe that is not read would fill up
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=self._errors, start_new_session=True
        )
        atexit.register(self.close)
        return self._process

    def _printed(self) -> str:
        """Return the end of what the process wrote to its standard error."""
        if self._errors is None:
            return ""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-500:]

    def close(self) -> None:
        """End what this notebook started."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None


def _answers() -> bool:
    """Return whether a dashboard of Djinn Lab listens there."""
    try:
        page = httpx.get(URL, timeout=ANSWER_TIMEOUT_S, follow_redirects=True, trust_env=False)
    except httpx.HTTPError:
        return False
    return page.status_code == 200 and "Djinn Lab" in page.text
