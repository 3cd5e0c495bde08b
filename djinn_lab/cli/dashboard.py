"""``djinn-lab dashboard``: the dashboard's own web server, for this machine or encrypted for others."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
import typer

from djinn_lab.cli.options import Tls, TlsCertificate, TlsKey
from djinn_lab.cli.output import print_line
from djinn_lab.errors import OptionError, UserError
from djinn_lab.protocol.certificates import fingerprint
from djinn_lab.protocol.dashboard_login import with_code
from djinn_lab.protocol.runtime_file import data_directory
from djinn_lab.units import counted

if TYPE_CHECKING:
    from djinn_lab.pool.certificates import ServerCertificate

LOOPBACK = "127.0.0.1"
PORT_DEFAULT = 5006
PARENT_EVERY_S = 1.0
OPEN_WITHIN_S = 30.0
ENDED_WELL = (0, -signal.SIGINT, 128 + signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGTERM)


def serve_dashboard(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = PORT_DEFAULT,
    host: Annotated[
        str, typer.Option(help="Address to listen on, 0.0.0.0 for all.", metavar="ADDRESS")
    ] = LOOPBACK,
    origin: Annotated[
        list[str] | None,
        typer.Option(help="A further name by which browsers reach it, as behind a proxy: HOST or HOST:PORT."),
    ] = None,
    tls: Tls = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    insecure_without_tls: Annotated[
        bool, typer.Option("--insecure-without-tls", help="Let others' tokens travel readable.")
    ] = False,
    show: Annotated[bool, typer.Option("--show/--no-show", help="Open it in a browser.")] = True,
    simulation: Annotated[
        Path | None,
        typer.Option(
            help="A result of djinn-lab simulate, for the page Simulator.", exists=True, dir_okay=False
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="A recorded pool, its pool.sqlite3, to show in place of a live one.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option(help="Path before all of its addresses, as behind a proxy.", metavar="PATH")
    ] = "",
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="End with the program that started this one.")
    ] = False,
    show_folder: Annotated[
        bool,
        typer.Option("--folder", help="Print the folder for panel serve and end, whatever else is given."),
    ] = False,
) -> None:
    """Serve the dashboard of this user's pool, or of a recorded one, until Ctrl-C: to this machine alone, or
    encrypted to others."""
    parent = os.getppid() if with_parent else None
    folder = dashboard_folder()
    if show_folder:
        typer.echo(folder)
        return
    certificate = _certificate(host, tls, tls_certificate, tls_key, insecure_without_tls)
    chosen = free_port(port, host)
    path = f"/{prefix.strip('/')}" if prefix.strip("/") else ""
    page = f"{'http' if certificate is None else 'https'}://{_shown_host(host)}:{chosen}{path}/dashboard"
    environment = {**os.environ, **_named_files(simulation, file)}
    if simulation is not None:
        page += "?page=simulation"
    if path:  # a proxy's log is no place for a code
        print_line(f"The dashboard is at {page} (Ctrl-C stops it).")
    else:
        print_line(f"The dashboard is at {with_code(page)} (Ctrl-C stops it).")
        print_line("This address lets you in once, within ten minutes. Do not pass it on.")
    if certificate is not None:
        print_line(f"Its certificate: {fingerprint(certificate.pem)}")
    command = serve_command(folder, chosen, host, origin or (), certificate, path)
    server = subprocess.Popen(command, env=environment)
    if show:
        threading.Thread(target=_open_browser, args=(page, host, chosen), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, frame: server.terminate())
    try:
        code = _wait(server, parent)
    except KeyboardInterrupt:
        server.terminate()
        server.wait()
        return
    if code not in ENDED_WELL:
        raise UserError(f"The dashboard's server ended with code {code}.", "Try: djinn-lab doctor")


def _named_files(simulation: Path | None, recording: Path | None) -> dict[str, str]:
    """Return the variables that name files to the dashboard's server. Raises UserError for a file that is no
    recording."""
    found: dict[str, str] = {}
    if simulation is not None:
        from djinn_lab.simulator.queue.result_file import FILE_VARIABLE

        found[FILE_VARIABLE] = str(simulation.resolve())
    if recording is not None:
        from djinn_lab.pool.database.recording import read_recording
        from djinn_lab.protocol.recording_file import FILE_VARIABLE as RECORDING_VARIABLE

        newest = read_recording(recording).runs[-1]
        print_line(f"Shows a recorded pool: {newest.pool}, {counted(len(newest.records), 'event')}.")
        found[RECORDING_VARIABLE] = str(recording.resolve())
    return found


def _certificate(
    host: str, tls: bool | None, certificate: str | None, key: str | None, insecure: bool
) -> ServerCertificate | None:
    """Return the certificate to serve with, None to talk in the clear. Raises OptionError."""
    from djinn_lab.pool.certificates import encrypts, given_certificate, own_certificate

    if not encrypts(host, tls, certificate, key, insecure):
        return None
    if certificate is not None and key is not None:
        return given_certificate(certificate, key)
    return own_certificate(data_directory() / "tls-dashboard", host)  # clients pin the pool's, which stays


def _shown_host(host: str) -> str:
    """Return the name by which to reach a server that listens on ``host``."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _open_browser(page: str, host: str, port: int) -> None:
    """Open the page, once the server listens."""
    deadline_s = time.monotonic() + OPEN_WITHIN_S
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection((host, port), timeout=1).close()
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


def serve_command(
    folder: Path,
    port: int,
    host: str = LOOPBACK,
    origins: Sequence[str] = (),
    certificate: ServerCertificate | None = None,
    prefix: str = "",
) -> list[str]:
    """The ``panel serve`` command line. Browsers may use any name of this machine, or of ``origins``."""
    command = [sys.executable, "-m", "panel", "serve", str(folder), "--address", host, "--port", str(port)]
    if certificate is not None:
        command += ["--ssl-certfile", certificate.certificate, "--ssl-keyfile", certificate.key]
    if prefix:
        command += ["--prefix", prefix, "--plugins", "djinn_lab.dashboard.addresses"]
    named = [one if ":" in one else f"{one}:{port}" for one in origins]
    for origin in (*(f"{name}:{port}" for name in _names(host)), *named):
        command += ["--allow-websocket-origin", origin]
    return command


def _names(host: str) -> list[str]:
    """List the names by which browsers reach a server that listens on ``host``."""
    names = dict.fromkeys((LOOPBACK, "localhost"))
    if host not in names:
        found = [host]
        if host in ("0.0.0.0", "::"):
            of_cards = [one for card in psutil.net_if_addrs().values() for one in card]
            found = [one.address for one in of_cards if one.family == socket.AF_INET]
        names |= dict.fromkeys((*found, socket.gethostname(), socket.getfqdn()))
    return [name for name in names if ":" not in name]  # Bokeh takes no IPv6 address


def dashboard_folder() -> Path:
    """The installed dashboard. Raises UserError when it is not there."""
    spec = find_spec("djinn_lab.dashboard")
    for location in (spec.submodule_search_locations if spec else None) or ():
        if (Path(location) / "main.py").is_file():
            return Path(location)
    raise UserError("This installation has no dashboard.", "Install djinn-lab again from a complete package.")


def free_port(port: int, host: str = LOOPBACK) -> int:
    """``port`` if it can be bound, any free one for 0. Raises OptionError when it is taken."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OptionError(
                f"Port {port} cannot be used: {error.strerror}.",
                "Choose another: djinn-lab dashboard --port 0",
            ) from None
        chosen: int = probe.getsockname()[1]
        return chosen
