"""Three users on two devices, live: one floods the pool with cells, two work in two notebooks each,
and a fourth tries one op now and then.

*Unfairness* is 1 less Jain's index (Jain, Chiu, Hawe, DEC-TR-301, 1984) over the device-seconds of the three,
from the pool's own usage ledger, while all three have work. The interactive user's wait is the time in the
pool's queue."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from time import perf_counter, sleep

import torch

from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, Goal, figure
from djinn_lab.client.rest import PoolClient
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.jobs.fairness import jain
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.runtime_file import RuntimeInfo

NAME = "fair-share"
DEVICES = 2
FLOODING_SESSIONS = 6
WORKING_SESSIONS = 2
STEPS = 60
"""Ops of a cell; each takes about a millisecond."""
SIZE = 192
RUN_S = 25.0
QUICK_S = 1.5
PAUSE_S = 0.1
BASELINES = ("fifo_passing", "easy")


@dataclass
class Run:
    """What was measured under one policy. ``waits_s``: of the interactive cells."""

    device_s: dict[str, float] = field(default_factory=dict)
    waits_s: list[float] = field(default_factory=list)
    cells: dict[str, int] = field(default_factory=dict)
    preemptions: int = 0


def measure(bench: Bench) -> list[Figure]:
    seconds, baselines = (QUICK_S, BASELINES[:1]) if bench.quick else (RUN_S, BASELINES)
    runs = {policy: _run(policy, seconds) for policy in ("default", *baselines)}
    unfair = {policy: 1 - jain(list(run.device_s.values())) for policy, run in runs.items()}
    about = {
        "cells": {policy: run.cells for policy, run in runs.items()},
        "device_s": {policy: run.device_s for policy, run in runs.items()},
        "preemptions": {policy: run.preemptions for policy, run in runs.items()},
        "seconds": seconds,
    }
    paired = min(len(run.waits_s) for run in runs.values())
    waits = {
        _name(policy): [max(wait * 1e3, 1e-3) for wait in run.waits_s[:paired]]
        for policy, run in runs.items()
    }
    unfairness = {_name(policy): [max(value, 1e-9)] for policy, value in unfair.items()}
    p95 = {policy: sorted(values)[int(0.95 * (len(values) - 1))] for policy, values in waits.items()}
    wait = "wait of an interactive cell of one op meanwhile"
    return [
        figure(
            NAME, "unfairness over three users, one floods", "1 - Jain", unfairness, [Goal(0.05)], **about
        ),
        figure(NAME, wait, "ms", waits, [Goal(200, "p99")], p95_ms=p95),
    ]


def _name(policy: str) -> str:
    return OURS if policy == "default" else policy


def _run(policy: str, seconds: float) -> Run:
    """Run all users on a pool of its own."""
    with own_runtime():
        try:
            info = start_pool(
                devices=f"cpu:{DEVICES}", threads=1, queue_policy=policy, wait_s=START_TIMEOUT_S
            )
            return _run_all_users(info, seconds)
        finally:
            stop_pool()


def _run_all_users(info: RuntimeInfo, seconds: float) -> Run:
    run = Run()
    with ExitStack() as stack:
        chief = stack.enter_context(closing(PoolClient(info.url, info.token)))
        tokens = {user: chief.create_user(user).token for user in ("flood", "ann", "bob", "now_and_then")}

        def session(user: str) -> Session:
            return stack.enter_context(closing(Session(info.url, tokens[user], default_profile(), user)))

        working = [("flood", session("flood")) for _ in range(FLOODING_SESSIONS)]
        working += [(user, session(user)) for user in ("ann", "bob") for _ in range(WORKING_SESSIONS)]
        visitor = session("now_and_then")
        for _, one in working:
            _cell(one, 1)
        _cell(visitor, 1)
        before = _device_s(chief)
        until = perf_counter() + seconds
        workers = [threading.Thread(target=_work, args=(run, user, one, until)) for user, one in working]
        workers.append(threading.Thread(target=_visit, args=(run, visitor, until)))
        for worker in workers:
            worker.start()
        sleep(max(0.0, until - perf_counter()))
        after = _device_s(chief)
        for worker in workers:
            worker.join()
        run.device_s = {user: after[user] - before[user] for user in ("flood", "ann", "bob")}
        run.preemptions = sum(
            line.event == "SegmentPreempted"
            for job in chief.jobs(limit=1000)[:50]
            for line in chief.job(job.job).events
        )
    return run


def _work(run: Run, user: str, session: Session, until: float) -> None:
    """Run one cell after the other."""
    cells = 0
    while perf_counter() < until:
        _cell(session, STEPS)
        cells += 1
    run.cells[user] = run.cells.get(user, 0) + cells


def _visit(run: Run, session: Session, until: float) -> None:
    while perf_counter() < until:
        report = _cell(session, 1)
        run.waits_s.append(report.get("queued", 0.0) + report.get("restoring", 0.0))
        sleep(PAUSE_S)


def _cell(session: Session, steps: int) -> dict[str, float]:
    with session.capture() as cell:
        value = torch.ones(SIZE, SIZE)
        for _ in range(steps):
            value = (value @ value) / SIZE
    assert value.shape == (SIZE, SIZE)
    return dict(cell.report.stages)


def _device_s(chief: PoolClient) -> dict[str, float]:
    return {account.account: account.used[0] for account in chief.queue().accounts}
