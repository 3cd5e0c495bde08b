"""The quickstart's inputs on the pool and in plain torch: the first time and again.

Every round is a new process with a new pool, so that the first run is as cold as a user's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.quickstart_round import RoundResult
from benchmarks.samples import Samples
from benchmarks.stage_audit import AuditedCell
from benchmarks.workloads import QUICKSTART

NAME = "quickstart"
RUNS = {"first run": Goal(1.5, baseline="eager"), "second run": Goal(1.1, baseline="eager")}


def measure(bench: Bench) -> list[Figure]:
    bench.stop_pool()
    rounds = [_round(bench.quick, turn % 2 == 0) for turn in range(bench.rounds(5, 1))]
    for found in rounds:
        bench.cells += [AuditedCell(NAME, total, stages) for total, stages in found["cells"]]
    return [_figure(rounds, workload, run) for workload in QUICKSTART for run in RUNS]


def _figure(rounds: list[RoundResult], workload: str, name: str) -> Figure:
    run = list(RUNS).index(name)
    taken: Samples = {
        side: [found["seconds"][workload][side][run] for found in rounds] for side in (OURS, "eager")
    }
    return figure(
        NAME,
        f"{workload}, {name}",
        "s",
        taken,
        [RUNS[name]],
        threads=rounds[0]["threads"],
        equal=all(found["equal"][workload] for found in rounds),
        last_stages_s=rounds[-1]["stages"][workload][run],
    )


def _round(small: bool, pool_first: bool) -> RoundResult:
    command = [sys.executable, "-m", "benchmarks.quickstart_round"]
    command += ["--small"] * small + ["--pool-first"] * pool_first
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    found: RoundResult = json.loads(done.stdout)
    return found
