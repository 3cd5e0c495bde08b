"""Takes away the network, or stops server or workers (``make sweep-outages``), and compares what notebooks
have afterwards with eager torch, bit by bit."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from cut_connections import Proxy
from device_kind import KIND
from real_pool import PoolUnderTest
from sweeps.losses.harness import Outcome, compare
from sweeps.result_file import SweepResult

from djinn_lab.client.session import Session
from djinn_lab.config import default_profile

NETWORK_S, STOPPED_S = 60.0, 30.0
"""The client waits for 75 s; a stopped worker is ended after 120 s."""
BETWEEN_S = (5.0, 8.0)
"""Longer than a client pauses between two tries: two outages without a try between them are one."""


@contextmanager
def no_network(_pool: PoolUnderTest, proxy: Proxy) -> Iterator[None]:
    proxy.close_way()
    yield
    proxy.open_way()


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def stopped_server(pool: PoolUnderTest, _proxy: Proxy) -> AbstractContextManager[None]:
    return stopped([pool.info.pid])


def stopped_workers(pool: PoolUnderTest, _proxy: Proxy) -> AbstractContextManager[None]:
    return stopped([row.pid for row in pool.rest.status().devices if row.pid is not None])


OUTAGES: dict[str, tuple[Callable[[PoolUnderTest, Proxy], AbstractContextManager[None]], float]] = {
    "60 s without network": (no_network, NETWORK_S),
    "server stopped for 30 s": (stopped_server, STOPPED_S),
    "workers stopped for 30 s": (stopped_workers, STOPPED_S),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outages", type=int, default=2, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a folder for outages-<machine>-<date>.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = SweepResult("outages", options.seed)
    found = {}
    for name in OUTAGES:
        with tempfile.TemporaryDirectory(prefix="djinn-outages-") as directory:
            found[name] = _described(run(Path(directory), name, options.outages, options.seed))
        print(name, json.dumps(found[name]))
    result.write(options.out, outages=found)
    return 1 if any(one["wrong"] for one in found.values()) else 0


def run(directory: Path, name: str, outages: int, seed: int) -> Outcome:
    """Run notebooks of one session beside ``outages`` of a kind."""
    outcome, chance = Outcome(), random.Random(seed)
    over = threading.Event()
    with ExitStack() as stack:
        pool = stack.enter_context(PoolUnderTest(directory, devices=f"{KIND}:2"))
        proxy = stack.enter_context(Proxy(pool.info.url))
        session = Session(proxy.url, pool.info.token, default_profile(), "behind outages")
        stack.callback(session.close)
        outage, seconds = OUTAGES[name]

        def disturb() -> None:
            for _ in range(outages):
                time.sleep(chance.uniform(*BETWEEN_S))
                with outage(pool, proxy):
                    time.sleep(seconds)
                outcome.kills += 1
            over.set()

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        while not over.is_set() or outcome.programs == 0:
            compare(session, chance.randrange(2**30), outcome)
        disturbing.join()
        compare(session, chance.randrange(2**30), outcome)
        outcome.wrong += [
            f"{job.cell} is {job.state}: {job.reason}"
            for job in pool.rest.jobs(limit=1000)
            if job.state != "DONE"
        ]
    return outcome


def _described(outcome: Outcome) -> dict[str, Any]:
    return {
        "outages": outcome.kills,
        "programs": outcome.programs,
        "cells": outcome.cells,
        "longest cell, s": round(outcome.longest_s, 1),
        "wrong": outcome.wrong[:50],
    }


if __name__ == "__main__":
    sys.exit(main())
