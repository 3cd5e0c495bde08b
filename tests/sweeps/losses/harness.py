"""Kill workers, hosts, or the pool's server, at random moments of random training programs, and compare what
the notebook has with eager torch, bit by bit."""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from device_kind import KIND
from ray_nodes import three_nodes
from real_pool import PoolUnderTest, device_row, kill_host, kill_worker, until_back
from torch import nn

from djinn_lab.client.session import Session
from djinn_lab.errors import WorkerLost

Victim = Literal["worker", "host", "server"]
KILLS_EACH = 5
"""Kills of one pool: a worker that is killed often is restarted later each time."""
CELLS = 6
PAUSE_S = 1.5
"""The next kill comes at most so long after the worker is back."""


@dataclass
class Outcome:
    """``twice``: programs in which two workers died under one part of a cell, which fails by design.
    ``wrong``: what differed from eager torch, or failed. ``recovery_s``: of each cell that recovered.
    ``longest_s``: the longest cell, from submission to its end."""

    kills: int = 0
    cells: int = 0
    programs: int = 0
    recovered: int = 0
    reran: int = 0
    replayed: int = 0
    restored: int = 0
    twice: int = 0
    longest_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    recovery_s: list[float] = field(default_factory=list)


class Notebook:
    """Variables and cells of a random program; run twice, it does the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        width = self.random.choice((16, 64, 192))
        layers = [nn.Linear(width, width), nn.Dropout(0.3), nn.GELU(), nn.LayerNorm(width)]
        self.model = nn.Sequential(*layers, nn.Linear(width, 4))
        optimizer = self.random.choice((torch.optim.AdamW, torch.optim.SGD))
        self.optimizer = optimizer(self.model.parameters(), lr=1e-2)
        self.data = torch.randn(32, width)
        self.kept: dict[str, torch.Tensor] = {}
        self.seen: list[float] = []

    def cell(self) -> None:
        """The next cell: training steps, new variables, writes to old ones, values read in between."""
        choose = self.random
        for _ in range(choose.randrange(1, 40)):
            self.optimizer.zero_grad()
            loss = self.model(self.data).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            if choose.random() < 0.1:
                self.seen.append(loss.item())
        name = f"v{choose.randrange(4)}"
        match choose.randrange(4):
            case 0:
                self.kept[name] = torch.rand(8, 8) + loss.detach()
            case 1 if self.kept:
                chosen = self.kept[choose.choice(sorted(self.kept))]
                chosen.mul_(0.5).add_(torch.randn(8, 8))
            case 2 if self.kept:
                self.kept[name] = self.kept[choose.choice(sorted(self.kept))].t()
            case _:
                self.kept.pop(name, None)

    def variables(self) -> dict[str, torch.Tensor]:
        found = {name: value.detach().cpu() for name, value in self.model.state_dict().items()}
        found |= {name: value.cpu() for name, value in self.kept.items()}
        return found | {"seen": torch.tensor(self.seen, dtype=torch.float64)}


def run(directory: Path, kills: int, seed: int, victim: Victim = "worker") -> Outcome:
    """Kill ``kills`` workers, hosts of three, or servers, and return what was found."""
    outcome, chance = Outcome(), random.Random(seed)
    with _options(victim) as options:
        while outcome.kills < kills:
            place = directory / f"pool{outcome.kills}"
            place.mkdir(mode=0o700)
            with PoolUnderTest(place, **options) as pool:
                _run_on(pool, outcome, min(kills, outcome.kills + KILLS_EACH), chance, victim)
    return outcome


@contextmanager
def _options(victim: Victim) -> Iterator[dict[str, Any]]:
    """Yield what a pool with such victims is started with."""
    if victim != "host":
        yield {"devices": f"{KIND}:2", "restart": victim == "server"}
        return
    with three_nodes() as address:
        yield {"devices": "cpu:1", "engine": "ray", "address": address}


def _run_on(pool: PoolUnderTest, outcome: Outcome, until: int, chance: random.Random, victim: Victim) -> None:
    while outcome.kills < until:
        program = chance.randrange(2**30)
        most = until - outcome.kills
        with Killer(pool, most, chance, victim) as killer, pool.session() as session:
            compare(session, program, outcome)
        outcome.kills += killer.kills
    ended = [job for job in pool.rest.jobs(limit=1000) if job.state != "DONE"]
    outcome.wrong += [f"{job.cell} is {job.state}: {job.reason}" for job in ended if victim == "server"]


class Killer:
    """Kills such victims at random moments until the end of its block."""

    def __init__(self, pool: PoolUnderTest, most: int, chance: random.Random, victim: Victim) -> None:
        self.kills = 0
        self._victim = victim
        self._pool = pool
        self._most = most
        self._random = random.Random(chance.random())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        """Wait for each one's successor: a cell that loses two workers fails, as it should."""
        while self.kills < self._most and not self._over.wait(self._random.uniform(0.0, PAUSE_S)):
            self._kill()
            self.kills += 1

    def _kill(self) -> None:
        if self._victim == "server":
            self._pool.kill()
            self._pool.start()  # waits for its supervisor
            return
        devices = [row.device for row in self._pool.rest.status().devices if row.pid is not None]
        busy = [job.device for job in self._pool.rest.jobs(limit=5) if job.state == "RUNNING" and job.device]
        device = busy[0] if busy else self._random.choice(devices)
        if self._victim == "worker":
            kill_worker(self._pool, device)
            return
        before = device_row(self._pool, device).pid
        kill_host(self._pool, device)
        until_back(self._pool, device, before)


def compare(session: Session, seed: int, outcome: Outcome) -> None:
    """Run the notebook of a seed on the pool and by eager torch, and note what differs."""
    outcome.programs += 1
    torch.manual_seed(0)
    ours = Notebook(seed)
    state = torch.get_rng_state()
    theirs = copy.deepcopy(ours)
    eager = []
    for _ in range(CELLS):
        theirs.cell()
        eager.append(copy.deepcopy(theirs.variables()))
    torch.set_rng_state(state)
    for number in range(CELLS):
        began_s = time.monotonic()
        try:
            with session.capture(f"cell {number}") as cell:
                ours.cell()
        except WorkerLost:
            outcome.twice += 1
            return
        except Exception as error:  # noqa: BLE001 - the sweep reports it
            outcome.wrong.append(f"program {seed}, cell {number}: {type(error).__name__}: {error}")
            return
        outcome.cells += 1
        outcome.longest_s = max(outcome.longest_s, time.monotonic() - began_s)
        if cell.report.recovery:
            outcome.recovered += 1
            outcome.reran += "ran again" in cell.report.recovery
            outcome.replayed += "by replay" in cell.report.recovery
            outcome.restored += "restored" in cell.report.recovery
            stages = cell.report.stages
            outcome.recovery_s.append(stages.get("recovering", 0.0) + stages.get("restoring", 0.0))
    try:
        found = ours.variables()
    except WorkerLost:
        outcome.twice += 1
        return
    expected = eager[-1]
    if found.keys() != expected.keys():
        outcome.wrong.append(f"program {seed}: other variables")
    differ = [name for name, value in expected.items() if not torch.equal(found[name], value)]
    outcome.wrong += [f"program {seed}: {name} differs" for name in differ]
