"""The dashboard of an installed package, by Panel's own command."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from release.running import CannotRelease, run

PAGE_WITHIN_S = 120.0
STOP_WITHIN_S = 30.0


def open_dashboard(
    djinn_lab: Sequence[str], panel: Sequence[str], environment: dict[str, str], place: Path
) -> Path:
    """Serve the dashboard from the folder ``place``, open it once, and return the folder that was served.

    ``djinn_lab`` and ``panel`` are the two commands. Raises CannotRelease when the page does not come.
    """
    folder = run([*djinn_lab, "dashboard", "--folder"], environment, place).strip()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [*panel, "serve", folder, "--address", "127.0.0.1", "--port", str(port)]
    log = place / "dashboard.log"
    with _serving(command, environment, place, log) as server:
        deadline_s = time.monotonic() + PAGE_WITHIN_S
        while not _answers(f"http://127.0.0.1:{port}/dashboard"):
            if server.poll() is not None or time.monotonic() > deadline_s:
                raise CannotRelease(f"The dashboard did not answer:\n{log.read_text(encoding='utf-8')}")
            time.sleep(0.2)
    return Path(folder)


@contextmanager
def _serving(
    command: Sequence[str], environment: dict[str, str], folder: Path, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)
    try:
        yield server
    finally:
        server.terminate()
        try:
            server.wait(STOP_WITHIN_S)
        finally:
            server.kill()
            server.wait()


def _answers(page: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(page, timeout=PAGE_WITHIN_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        raise CannotRelease(f"{page} answered {error.code}.") from None
    except OSError:  # does not listen yet
        return False
