"""``djinn-lab dashboard``: the dashboard's own web server, for this machine only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from djinn_lab.cli.output import print_line
from djinn_lab.errors import OptionError, UserError
from djinn_lab.protocol.dashboard_login import with_code

LOOPBACK = "127.0.0.1"
PORT_DEFAULT = 5006
PARENT_EVERY_S = 1.0
OPEN_WITHIN_S = 30.0
ENDED_WELL = (0, -signal.SIGINT, 128 + signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGTERM)


def serve_dashboard(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = PORT_DEFAULT,
    show: Annotated[bool, typer.Option("--show/--no-show", help="Open it in a browser.")] = True,
    simulation: Annotated[
        Path | None,
        typer.Option(
            help="A result of djinn-lab simulate, for the page Simulator.", exists=True, dir_okay=False
        ),
    ] = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="End with the program that started this one.")
    ] = False,
) -> None:
    """Serve the dashboard until Ctrl-C. It listens on 127.0.0.1 only and shows this user's pool."""
    parent = os.getppid() if with_parent else None
    folder = dashboard_folder()
    chosen = free_port(port)
    page = f"http://{LOOPBACK}:{chosen}/dashboard"
    environment = dict(os.environ)
    if simulation is not None:
        from djinn_lab.simulator.queue.result_file import FILE_VARIABLE

        environment[FILE_VARIABLE] = str(simulation.resolve())
        page += "?page=simulation"
    print_line(f"The dashboard is at {with_code(page)} (Ctrl-C stops it).")
    print_line("This address lets you in once, within ten minutes. Do not pass it on.")
    server = subprocess.Popen(serve_command(folder, chosen), env=environment)
    if show:
        threading.Thread(target=_open_browser, args=(page, chosen), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, frame: server.terminate())
    try:
        code = _wait(server, parent)
    except KeyboardInterrupt:
        server.terminate()
        server.wait()
        return
    if code not in ENDED_WELL:
        raise UserError(f"The dashboard's server ended with code {code}.", "Try: djinn-lab doctor")


def _open_browser(page: str, port: int) -> None:
    """Open the page, once the server listens."""
    deadline_s = time.monotonic() + OPEN_WITHIN_S
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection((LOOPBACK, port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            webbrowser.open(with_code(page))
            return


def _wait(server: subprocess.Popen[bytes], parent: int | None) -> int:
    """Return the server's exit code. End the server when ``parent`` is not the parent any more."""
    while True:
        try:
            return server.wait(None if parent is None else PARENT_EVERY_S)
        except subprocess.TimeoutExpired:
            if os.getppid() != parent:
                server.terminate()


def serve_command(folder: Path, port: int) -> list[str]:
    """The ``panel serve`` command line. Browsers may use either name of this machine."""
    command = [
        sys.executable,
        "-m",
        "panel",
        "serve",
        str(folder),
        "--address",
        LOOPBACK,
        "--port",
        str(port),
    ]
    for host in (LOOPBACK, "localhost"):
        command += ["--allow-websocket-origin", f"{host}:{port}"]
    return command


def dashboard_folder() -> Path:
    """The installed dashboard. Raises UserError when it is not there."""
    spec = find_spec("djinn_lab.dashboard")
    for location in (spec.submodule_search_locations if spec else None) or ():
        if (Path(location) / "main.py").is_file():
            return Path(location)
    raise UserError("This installation has no dashboard.", "Install djinn-lab again from a complete package.")


def free_port(port: int) -> int:
    """``port`` if it can be bound, any free one for 0. Raises OptionError when it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise OptionError(
                f"Port {port} cannot be used: {error.strerror}.",
                "Choose another: djinn-lab dashboard --port 0",
            ) from None
        chosen: int = probe.getsockname()[1]
        return chosen
