"""One client of the sweep of chaos: random programs on the pool, each beside eager torch, until a file says
that it is over. What was found goes to a file of its own."""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path

import torch
from sweeps.losses.harness import Notebook

import djinn_lab
from djinn_lab.errors import DjinnError, PoolSilent

CELLS = 4
SAID_MAX = 300


def main() -> None:
    seed, over, found = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    counts: dict[str, list[str] | int] = {"cells": 0, "compared": 0, "named": [], "wrong": []}
    session = connected(f"client {seed}")
    while not over.exists():
        seed += 1000
        try:
            program(session, seed, counts)
        except DjinnError as error:
            counts["named"].append(f"program {seed}: {type(error).__name__}: {said(error)}")  # type: ignore[union-attr]
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the sweep reports it
            counts["wrong"].append(f"program {seed}: {type(error).__name__}: {error}"[:300])  # type: ignore[union-attr]
        found.write_text(json.dumps(counts))
    session.close()


def connected(name: str) -> djinn_lab.Session:
    """Connect, also while the server is killed again and again."""
    while True:
        try:
            return djinn_lab.connect(name=name)
        except PoolSilent:
            time.sleep(1.0)


def said(error: Exception) -> str:
    """Return what the error says, without its traceback on the worker."""
    return str(error).partition("\nOn the worker:")[0][:SAID_MAX]


def program(session: djinn_lab.Session, seed: int, counts: dict[str, list[str] | int]) -> None:
    """Run a program; every variable is compared after its last cell."""
    torch.manual_seed(seed)
    ours = Notebook(seed)
    state = torch.get_rng_state()
    theirs = copy.deepcopy(ours)
    read: list[int] = []
    for _ in range(CELLS):
        theirs.cell()
        read.append(len(theirs.seen))
    torch.set_rng_state(state)
    reports: list[str] = []
    for number in range(CELLS):
        with session.capture(f"cell {number}") as cell:
            ours.cell()
        counts["cells"] += 1  # type: ignore[operator]
        reports.append(f"job {cell.report.job[:8]} {len(cell.report.cuts)} cuts {cell.report.recovery}")
    expected, got = theirs.variables(), ours.variables()
    differ = [name for name, value in expected.items() if not torch.equal(value, got[name])]
    counts["compared"] += len(expected)  # type: ignore[operator]
    if differ:
        same = [a == b for a, b in zip(theirs.seen, ours.seen, strict=True)]
        seen = f"values read, equal or not: {same}; read up to each cell: {read}; {reports}"
        counts["wrong"].append(f"program {seed}: {differ} differ; {seen}")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
