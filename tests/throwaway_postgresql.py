"""A real PostgreSQL server for tests, deleted with its directory. Debian's package has the programs."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

USER, PASSWORD = "djinn", "open:se/same"
DATABASES = itertools.count(1)
SETTINGS = {"fsync": "off", "shared_buffers": "16MB", "max_connections": "40", "log_checkpoints": "off"}


class Postgresql:
    """A running server. ``directory``: its socket and its log."""

    def __init__(self, directory: Path, port: int, programs: Path, prefix: list[str]) -> None:
        self.directory = directory
        self.port = port
        self._programs = programs
        self._prefix = prefix

    def url(self, database: str, password: str = PASSWORD) -> str:
        quoted = password.replace(":", "%3A").replace("/", "%2F")
        return f"postgresql://{USER}:{quoted}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Create a database and return its URL."""
        name = f"pool{next(DATABASES)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement as the superuser, in a database that no pool uses, and return its rows."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def control(self, *arguments: str) -> None:
        """Run ``pg_ctl`` with these arguments, such as ``restart``."""
        command = [
            *self._prefix,
            str(self._programs / "pg_ctl"),
            "-D",
            str(self.directory / "data"),
            "-w",
            "-s",
        ]
        subprocess.run(
            [*command, "-l", str(self.directory / "log"), *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            cwd=self.directory,
        )


@contextmanager
def running_postgresql() -> Iterator[Postgresql]:
    """Run a server until the block ends. Raises FileNotFoundError when PostgreSQL is not installed."""
    programs = _programs()
    directory = Path(tempfile.mkdtemp(prefix="djinn-postgresql-", dir="/tmp"))
    prefix = _as_unprivileged_account(directory)
    try:
        _make(programs, prefix, directory)
        server = Postgresql(directory, _free_port(), programs, prefix)
        settings = {**SETTINGS, "port": server.port, "unix_socket_directories": directory}
        with (directory / "data" / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        server.control("start")
        try:
            yield server
        finally:
            server.control("stop", "-m", "immediate")
    finally:
        shutil.rmtree(directory)


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    on_path = shutil.which("pg_ctl")
    if on_path is not None:
        return Path(on_path).resolve().parent
    if not found:
        raise FileNotFoundError("PostgreSQL is not installed. Run: make postgresql")
    return found[-1]


def _as_unprivileged_account(directory: Path) -> list[str]:
    """Return a prefix for commands: root runs them as ``postgres``, since PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return []
    account = pwd.getpwnam("postgres")
    os.chown(directory, account.pw_uid, account.pw_gid)
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


def _make(programs: Path, prefix: list[str], directory: Path) -> None:
    secret = directory / "password"
    secret.write_text(PASSWORD)
    options = [
        f"--username={USER}",
        f"--pwfile={secret}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--no-sync",
    ]
    subprocess.run(
        [*prefix, str(programs / "initdb"), "-D", str(directory / "data"), "--no-locale", *options],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=directory,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
