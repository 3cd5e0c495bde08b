"""Starts ``panel serve dashboard`` as a user does."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
SERVE_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start_dashboard(
    port: int, environment: dict[str, str], log: Path, address: str = "127.0.0.1", app: str = "dashboard"
) -> subprocess.Popen[bytes]:
    """``panel serve dashboard``, or another app, from the repository's root, once it answers."""
    command = [
        sys.executable,
        "-m",
        "panel",
        "serve",
        app,
        "--address",
        address,
        "--port",
        str(port),
        "--allow-websocket-origin",
        f"127.0.0.1:{port}",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    deadline_s = time.monotonic() + SERVE_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).status_code in (200, 302):
                return process
        except httpx.TransportError:  # not there yet, or a busy machine
            time.sleep(0.1)
    process.kill()
    process.wait()
    raise AssertionError(f"the dashboard did not start:\n{log.read_text()}")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
