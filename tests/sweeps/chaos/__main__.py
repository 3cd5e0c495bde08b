"""Kills and stops clients, workers, their template and the server of one pool under many clients, half of the
times while its disk or shared memory is full (``make sweep-chaos``). Every variable is compared with eager
torch, the pool must be back each time, and nothing may be left behind."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from device_kind import KIND
from real_pool import PoolUnderTest
from sweeps.result_file import SweepResult

from djinn_lab.errors import DjinnError
from djinn_lab.pool.supervisor import RESTARTS_MAX, WITHIN_S
from djinn_lab.protocol.runtime_file import read_runtime

MIB = 2**20
INSIDE = "DJINN_CHAOS_INSIDE"
BACK_WITHIN_S = 120.0
SAID_LINES = 40
VICTIMS = ("server", "worker", "template", "client", "stopped client")
FULL = ("disk", "shared memory", "", "")
"""What is full when a victim dies: half of the times nothing."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a folder for chaos-<machine>-<date>.json")
    options = parser.parse_args()
    if (
        INSIDE not in os.environ
    ):  # file systems that may be filled are mounted where no other process sees them
        again = [sys.executable, "-m", "sweeps.chaos", *sys.argv[1:]]
        return subprocess.run(
            ["unshare", "-m", *again], env=os.environ | {INSIDE: "1"}, check=False
        ).returncode
    result = SweepResult("chaos", options.seed)
    with tempfile.TemporaryDirectory(prefix="djinn-chaos-") as directory:
        try:
            found = run(Path(directory), options.kills, options.clients, random.Random(options.seed))
        finally:
            subprocess.run(["umount", "-l", f"{directory}/home", "/dev/shm"], check=False)
    result.write(options.out, **found)
    print(json.dumps(found, indent=1))
    return 1 if found["wrong"] or found["not back"] or found["left"] else 0


def run(directory: Path, kills: int, clients: int, chance: random.Random) -> dict[str, object]:
    home, runtime = directory / "home", directory / "run"
    for path, size in ((home, "256m"), (Path("/dev/shm"), "1g")):
        path.mkdir(exist_ok=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", str(path)], check=True
        )
    home.chmod(0o700)
    runtime.mkdir(mode=0o700)
    os.environ["HOME"] = str(home)
    pool = PoolUnderTest(
        *(runtime, f"{KIND}:2", 150 * MIB),
        host_bytes=100 * MIB,
        disk_bytes=100 * MIB,
        restart=True,
    )
    done: Counter[str] = Counter()
    not_back: list[str] = []
    longest_s = 0.0
    server_kills_s: list[float] = []
    with pool:
        crowd = Clients(directory, clients)
        for number in range(kills):
            time.sleep(chance.uniform(0.2, 2.0))
            victim, full = chosen_victim(chance, server_kills_s), chance.choice(FULL)
            with filled(home if full == "disk" else Path("/dev/shm") if full else None):
                kill(victim, crowd, chance)
                time.sleep(chance.uniform(0.0, 3.0) if full else 0.0)
            done[f"{victim}, {full} full" if full else victim] += 1
            took_s = until_back()
            longest_s = max(longest_s, took_s)
            if took_s >= BACK_WITHIN_S:
                logs = (path.read_text().splitlines() for path in runtime.rglob("pool.log"))
                said = "\n".join(line for lines in logs for line in lines[-SAID_LINES:])
                not_back.append(f"after kill {number}: {victim}, {full or 'nothing'} full: {said}")
                break
            print(number, victim, full, f"{took_s:.1f} s", flush=True)
        found = crowd.end()
        server = read_runtime()
    left = [str(path) for path in Path("/dev/shm").iterdir()]
    if server is not None and psutil.pid_exists(server.pid):
        left.append(f"process {server.pid}")
    return {
        "kills": dict(sorted(done.items())),
        "clients": clients,
        "longest until the pool was back, s": round(longest_s, 1),
        **found,
        "not back": not_back,
        "left": left,
    }


class Clients:
    """Processes that compute until :meth:`end`."""

    def __init__(self, directory: Path, count: int) -> None:
        self._directory, self._over, self._seeds = directory, directory / "over", 0
        self.running = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[bytes]:
        self._seeds += 1
        seed = str(self._seeds)
        command = [sys.executable, "-W", "ignore", "-m", "sweeps.chaos.client", seed, str(self._over)]
        with (self._directory / f"client-{seed}.log").open("wb") as log:
            return subprocess.Popen([*command, str(self._directory / f"found-{seed}.json")], stderr=log)

    def replace(self, one: subprocess.Popen[bytes]) -> None:
        one.kill()
        one.wait()
        self.running[self.running.index(one)] = self._start()

    def end(self) -> dict[str, object]:
        """Let them end, and add up what they found."""
        self._over.touch()
        wrong, named, cells, compared = [], [], 0, 0
        for one in self.running:
            try:
                if one.wait(BACK_WITHIN_S):
                    wrong.append(f"a client exited with code {one.returncode}")
            except subprocess.TimeoutExpired:
                wrong.append("a client did not end")
                one.kill()
        for path in sorted(self._directory.glob("found-*.json")):
            counts = json.loads(path.read_text())
            wrong += counts["wrong"]
            named += counts["named"]
            cells, compared = cells + counts["cells"], compared + counts["compared"]
        logs = sorted(self._directory.glob("client-*.log"))
        wrong += [f"{log.name}: {text[-300:]}" for log in logs if "Traceback" in (text := log.read_text())]
        return {"cells": cells, "values compared": compared, "lost with a cause": named, "wrong": wrong}


def chosen_victim(chance: random.Random, server_kills_s: list[float]) -> str:
    """Choose a victim; not the server where another kill would end its restarts."""
    now_s = time.monotonic()
    server_kills_s[:] = [at_s for at_s in server_kills_s if at_s > now_s - WITHIN_S]
    spared = ("server",) if len(server_kills_s) >= RESTARTS_MAX else ()
    victim = chance.choice([one for one in VICTIMS if one not in spared])
    if victim == "server":
        server_kills_s.append(now_s)
    return victim


def kill(victim: str, crowd: Clients, chance: random.Random) -> None:
    client = chance.choice(crowd.running)
    if victim == "client":
        crowd.replace(client)
    elif victim == "stopped client":
        client.send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0.5, 3.0))
        client.send_signal(signal.SIGCONT)
    else:
        chosen = processes(victim)
        if chosen:
            os.kill(chance.choice(chosen), signal.SIGKILL)


def processes(kind: str) -> list[int]:
    """Return the pool's server, its workers, or the template of these."""
    server = read_runtime()
    if server is None or not psutil.pid_exists(server.pid):
        return []
    if kind == "server":
        return [server.pid]
    children = psutil.Process(server.pid).children(recursive=True)
    template = [one for one in children if one.ppid() == server.pid]
    return [
        one.pid
        for one in (template if kind == "template" else children)
        if kind == "template" or one not in template
    ]


def until_back() -> float:
    """Wait until the server answers and all devices are up; return the seconds."""
    began_s = time.monotonic()
    while time.monotonic() < began_s + BACK_WITHIN_S:
        try:
            if all(one.state in ("idle", "busy") for one in status_of_pool()):
                break
        except (DjinnError, OSError):
            pass
        time.sleep(0.2)
    return time.monotonic() - began_s


def status_of_pool() -> list[object]:
    from djinn_lab.client.rest import PoolClient

    client = PoolClient.find()
    try:
        return list(client.status().devices)
    finally:
        client.close()


@contextmanager
def filled(directory: Path | None) -> Iterator[None]:
    """Leave no space in a file system meanwhile."""
    if directory is None:
        yield
        return
    path = directory / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**18))
        except OSError:
            pass
    try:
        yield
    finally:
        path.unlink()


if __name__ == "__main__":
    sys.exit(main())
