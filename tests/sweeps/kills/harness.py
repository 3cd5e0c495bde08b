"""Kill pools under load, and compare what they reported with what their database has."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from pool_kit import rest
from sweeps.kills.checks import Findings, Log, check, check_whole
from sweeps.kills.pools import Pools

from djinn_lab.client.rest import PoolClient

CLIENTS = 3
BYTES_BEFORE = 1500
"""About twenty messages reach clients before the next kill."""
MOMENT_S = 0.5
DOUBLE = 0.2
"""How often the pool that takes over is killed, too, before or just after it serves."""
LOAD_S = 60.0


@dataclass
class Outcome:
    """``back_s``: from each kill until a pool served again, except where the next pool was killed, too."""

    findings: Findings
    kills: int
    back_s: list[float]


def run(directory: Path, database: str, pools: int, moments: int, seed: int) -> Outcome:
    """Kill the leading pool at ``moments`` random moments. ``pools``: 2 to have a standby."""
    chance = random.Random(seed)
    findings, back_s, kills = Findings(), [], 0
    park = Pools(directory, database, pools)
    engine = sa.create_engine(database)
    logs = [Log(directory / f"notes{number}") for number in range(CLIENTS)]
    try:
        with _clients(directory, park, seed):
            for moment in range(moments):
                leader = park.leader()
                _until_loaded(logs, engine, findings)
                time.sleep(chance.uniform(0, MOMENT_S))
                park.kill(leader)
                killed_s = time.monotonic()
                twice = chance.random() < DOUBLE
                if twice:
                    park.kill_in_take_over(chance)
                if pools == 1 or twice:
                    park.start()
                park.leader()
                if not twice:
                    back_s.append(time.monotonic() - killed_s)
                kills += 1 + twice
                park.start()
                print(f"\r{moment + 1}/{moments}, {len(findings.wrong)} wrong", end="", flush=True)
        leader = park.leader()
        _check_new_notes(logs, engine, findings)
        with closing(rest(leader)) as client:
            _until_idle(client)
            accounts = client.queue().accounts
        check_whole(engine, findings, sum(account.used[0] for account in accounts))
    finally:
        engine.dispose()
        park.stop()
    print()
    return Outcome(findings, kills, back_s)


@contextmanager
def _clients(directory: Path, park: Pools, seed: int) -> Iterator[None]:
    stop = directory / "stop"
    script = str(Path(__file__).with_name("client.py"))
    kit = Path(__file__).parents[2]
    path = [str(kit / "pool"), str(kit), *sys.path]
    processes = [
        subprocess.Popen(
            [sys.executable, script, park.addresses, park.token, str(seed + number), str(log), str(stop)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        )
        for number, log in enumerate(directory / f"notes{number}" for number in range(CLIENTS))
    ]
    try:
        yield
        stop.touch()
        for process in processes:
            assert process.wait(60) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _until_loaded(logs: Sequence[Log], engine: sa.Engine, findings: Findings) -> None:
    """Check what this pool and earlier ones reported so far, and wait for more."""
    _check_new_notes(logs, engine, findings)
    deadline_s = time.monotonic() + LOAD_S
    before = sum(log.size() for log in logs)
    while sum(log.size() for log in logs) < before + BYTES_BEFORE:
        assert time.monotonic() < deadline_s, "clients get no answers"
        time.sleep(0.02)


def _check_new_notes(logs: Sequence[Log], engine: sa.Engine, findings: Findings) -> None:
    for log in logs:
        check(engine, log.new(), findings)
        findings.wrong += [f"session {session} was not continued" for session in log.lost]
        log.lost.clear()


def _until_idle(client: PoolClient) -> None:
    deadline_s = time.monotonic() + LOAD_S
    while any(getattr(client.queue(), which) for which in ("running", "waiting")):
        assert time.monotonic() < deadline_s, "jobs of clients that have left do not end"
        time.sleep(0.05)
