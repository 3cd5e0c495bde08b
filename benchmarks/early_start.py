"""Measure how soon a cell starts whose session is parked, when its first ops read a part of the session's
state: ops start when their inputs are back, and the rest of the state is restored meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from time import perf_counter, sleep
from typing import Any

import torch

import djinn_lab
from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, Goal, figure
from djinn_lab.client.rest import PoolClient
from djinn_lab.client.session import Session
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.rest.jobs import JobView

NAME = "early-start"
BASELINE = "default_no_early_start"
PARTS = 16
WIDTH = 1024
PART_BYTES = 2 * 4 * WIDTH * WIDTH
SESSION_BYTES = PARTS * PART_BYTES
MEMORY_BYTES = SESSION_BYTES * 3 // 2
"""One of two sessions fits."""
LINK_BYTES_PER_S = 200 * 10**6
STEPS = 20
"""Matrix products of the cell: about as long as the copy of its session."""
LEASE_S = 2.0
"""The longest time that a session stays on its device after a cell."""
ROUNDS = 16


def measure(bench: Bench) -> list[Figure]:
    rounds = bench.rounds(ROUNDS, 1)
    of_policy = {name: _turns(policy, rounds) for name, policy in ((OURS, "default"), (BASELINE, BASELINE))}
    facts: dict[str, Any] = {
        "session_bytes": SESSION_BYTES,
        "link_bytes_per_s": LINK_BYTES_PER_S,
        "parts": PARTS,
    }
    starts = {name: [start_ms for start_ms, _ in taken] for name, taken in of_policy.items()}
    answers = {name: [answer_ms for _, answer_ms in taken] for name, taken in of_policy.items()}
    cell = f"a cell on 1/{PARTS} of its parked session"
    return [
        figure(NAME, f"{cell}, until it runs", "ms", starts, [Goal(0.2, baseline=BASELINE)], **facts),
        figure(NAME, f"{cell}, until its answer", "ms", answers, **facts),
    ]


def _turns(policy: str, rounds: int) -> list[tuple[float, float]]:
    """Two sessions take turns on a device that holds one of them. Return for each turn how long the cell
    waited, and how long its answer took."""
    with ExitStack() as stack:
        sessions, rest = stack.enter_context(_two_sessions(policy))
        held = [_hold(session) for session in sessions]
        taken = []
        for turn in range(rounds + 1):
            session, parts = sessions[turn % 2], held[turn % 2]
            _settle(rest, session.welcome.session)
            begun_s = perf_counter()
            _compute(session, parts[turn % PARTS])
            answer_ms = 1000 * (perf_counter() - begun_s)
            job = _cell_of(rest, session.welcome.session)
            assert job.started_at is not None
            taken.append((1000 * (job.started_at - job.submitted_at), answer_ms))
    return taken[1:]


def _cell_of(rest: PoolClient, session: str) -> JobView:
    """Return the session's last cell that computed: reading its result is a cell of its own."""
    computed = [job for job in rest.jobs(limit=20) if job.session == session and job.ops_total > STEPS]
    return max(computed, key=lambda job: job.submitted_at)


def _compute(session: Session, part: torch.Tensor) -> float:
    with session.capture():
        weight = part[0]
        value = weight
        for _ in range(STEPS):
            value = torch.tanh(value @ weight)
        total = value.sum()
    return float(total)


@contextmanager
def _two_sessions(policy: str) -> Iterator[tuple[list[Session], PoolClient]]:
    with own_runtime(), ExitStack() as stack:
        stack.callback(stop_pool)
        info = start_pool(
            devices="cpu:1",
            threads=1,
            memory_bytes=MEMORY_BYTES,
            host_bytes=4 * SESSION_BYTES,
            link_bytes_per_s=LINK_BYTES_PER_S,
            memory_policy=policy,
            wait_s=START_TIMEOUT_S,
        )
        rest = stack.enter_context(closing(PoolClient(info.url, info.token)))
        opened = [djinn_lab.connect(info.url, token=info.token, name=f"session {name}") for name in "ab"]
        for session in opened:
            stack.callback(session.close)
        yield opened, rest


def _hold(session: Session) -> list[torch.Tensor]:
    with session.capture():
        return [torch.rand(2, WIDTH, WIDTH) / WIDTH for _ in range(PARTS)]


def _settle(rest: PoolClient, session: str) -> None:
    """Wait until the session is parked, the other one is stored in advance, and its lease is over."""
    while True:
        rows = rest.memory().sessions
        own = next(row for row in rows if row.session == session)
        stored = all(row.moving is None and row.stored_bytes >= row.total_bytes for row in rows)
        if own.tier == "host" and stored:
            break
        sleep(0.1)
    sleep(LEASE_S)
