"""The dashboard's server, found or started from a notebook."""

from __future__ import annotations

import atexit
import subprocess
import sys
import time

import httpx

from djinn_lab.errors import PoolError
from djinn_lab.protocol.dashboard_login import with_code

URL = "http://127.0.0.1:5006/dashboard"
START_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 2.0


class DashboardProcess:
    """One per notebook. What it started ends with the notebook; one that ran already is left alone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> str:
        """Return the URL of a running dashboard, started if none runs. Raises PoolError when none answers and
        none can be started."""
        if _answers():
            return with_code(URL)
        command = [sys.executable, "-m", "djinn_lab.cli", "dashboard", "--no-show", "--with-parent"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        atexit.register(self.close)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if _answers():
                return with_code(URL)
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        error = (
            self._process.stderr.read() if self._process.stderr and self._process.poll() is not None else b""
        )
        self.close()
        raise PoolError(
            f"the dashboard did not start. {error.decode(errors='replace').strip()[-500:]}",
            "Try `djinn-lab dashboard` in a terminal.",
        )

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(5)
        self._process = None


def _answers() -> bool:
    """Return whether a dashboard of Djinn Lab listens there."""
    try:
        page = httpx.get(URL, timeout=ANSWER_TIMEOUT_S, follow_redirects=True, trust_env=False)
    except httpx.HTTPError:
        return False
    return page.status_code == 200 and "Djinn Lab" in page.text
