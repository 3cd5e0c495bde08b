"""The pools that are killed: one on SQLite that is started again, or two on PostgreSQL of which one leads."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
from pool_kit import STAND_IN, rest, until_dead

from djinn_lab.pool.database.address import DATABASE_VARIABLE
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.runtime_file import DIRECTORY_VARIABLE, RuntimeInfo

READY_S = 60.0
USER = "load"


class Pools:
    """``count`` pools on one database."""

    def __init__(self, directory: Path, database: str, count: int) -> None:
        self.database = database
        self._directories = [directory / f"pool{number}" for number in range(count)]
        self._ports = [_free_port() for _ in range(count)]
        for path in self._directories:
            path.mkdir(mode=0o700)
        self._infos: list[RuntimeInfo | None] = [None] * count
        self.start()
        with closing(rest(self.leader())) as client:
            self.token = str(client.create_user(USER).token)

    @property
    def addresses(self) -> str:
        return ",".join(f"http://127.0.0.1:{port}" for port in self._ports)

    def start(self) -> None:
        """Start every pool that does not run."""
        for number, info in enumerate(self._infos):
            if info is None:
                with self._of(number):
                    self._infos[number] = start_pool(
                        devices="cpu:2",
                        memory_bytes=2**20,
                        threads=1,
                        port=self._ports[number],
                        worker_command=STAND_IN,
                        database=self.database,
                        standby=len(self._ports) > 1,
                        wait_s=READY_S,
                        restart=False,
                    )

    def leader(self) -> RuntimeInfo:
        """Wait until a pool leads and is ready, and return it."""
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            for info in self._infos:
                if info is not None and _leads(info):
                    return info
            time.sleep(0.02)
        raise AssertionError("no pool leads")

    def kill(self, info: RuntimeInfo) -> None:
        """``kill -9`` a pool's server."""
        os.kill(info.pid, signal.SIGKILL)
        until_dead(info.pid)
        self._infos[self._infos.index(info)] = None

    def kill_in_take_over(self, chance: random.Random) -> None:
        """After the leader was killed: kill the next pool, too, at any moment from its first until it
        serves."""
        if len(self._infos) > 1:
            time.sleep(chance.uniform(0, 1.2))
            for info in self._infos:
                if info is not None:
                    self.kill(info)
            return
        with self._of(0):
            command = [sys.executable, "-m", "djinn_lab.pool", "--devices=cpu:2", "--memory-bytes=1048576"]
            with (self._directories[0] / "doomed.log").open("ab") as log:
                doomed = subprocess.Popen(
                    [*command, f"--worker-command={' '.join(STAND_IN)}"],
                    env=os.environ | {DATABASE_VARIABLE: self.database},
                    stdout=log,
                    stderr=log,
                )
            time.sleep(chance.uniform(0, 1.2))
            doomed.kill()
            doomed.wait()

    def stop(self) -> None:
        for number in range(len(self._infos)):
            with self._of(number):
                stop_pool()

    @contextmanager
    def _of(self, number: int) -> Iterator[None]:
        before = os.environ.get(DIRECTORY_VARIABLE)
        os.environ[DIRECTORY_VARIABLE] = str(self._directories[number])
        try:
            yield
        finally:
            if before is None:
                del os.environ[DIRECTORY_VARIABLE]
            else:
                os.environ[DIRECTORY_VARIABLE] = before


def _leads(info: RuntimeInfo) -> bool:
    try:
        headers = {"Authorization": f"Bearer {info.token}"}
        answer = httpx.get(f"{info.url}/v1/status", headers=headers, trust_env=False, timeout=10)
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and bool(answer.json()["ready"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
