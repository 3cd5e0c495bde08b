"""One round of the quickstart benchmark, in a process of its own: prints a :class:`RoundResult` as JSON."""

from __future__ import annotations

import argparse
import json
from time import perf_counter
from typing import Any, TypedDict

import torch
from torch import nn

import djinn_lab
from benchmarks.bench import own_pool
from benchmarks.figures import OURS
from benchmarks.workloads import QUICKSTART, Workload
from djinn_lab.client.session import Session

EAGER = "eager"


class RoundResult(TypedDict):
    """``seconds``: workload -> side -> first and second run. ``cells``: (total, sum of stages) of each.
    ``stages``: workload -> seconds by stage of the first and second run."""

    seconds: dict[str, dict[str, list[float]]]
    equal: dict[str, bool]
    stages: dict[str, list[dict[str, float]]]
    cells: list[tuple[float, float]]
    threads: int


def play(session: Session, small: bool, pool_first: bool) -> RoundResult:
    threads = session.welcome.devices[0].threads
    torch.set_num_threads(threads)
    result = RoundResult(seconds={}, equal={}, stages={}, cells=[], threads=threads)
    for name, prepare in QUICKSTART.items():
        _play_workload(session, prepare(small), result, (OURS, EAGER) if pool_first else (EAGER, OURS))
        assert name in result["seconds"]
    return result


def _play_workload(session: Session, workload: Workload, result: RoundResult, order: tuple[str, str]) -> None:
    """Each side has a model of its own, which the second run uses again."""
    models = {side: workload.make() for side in order}
    seconds: dict[str, list[float]] = {side: [] for side in order}
    stages: list[dict[str, float]] = []
    equal = []
    for _ in range(2):
        values: dict[str, Any] = {}
        for side in order:
            started = perf_counter()
            if side == OURS:
                values[side] = _captured(session, workload, models[side], result, stages)
            else:
                values[side] = workload.run(models[side])
            seconds[side].append(perf_counter() - started)
        equal.append(torch.equal(session.fetch(values[OURS]), values[EAGER]))
    result["seconds"][workload.name] = seconds
    result["equal"][workload.name] = all(equal)
    result["stages"][workload.name] = stages


def _captured(
    session: Session,
    workload: Workload,
    model: nn.Module,
    result: RoundResult,
    stages: list[dict[str, float]],
) -> Any:
    with session.capture(workload.name) as cell:
        value = workload.run(model)
    report = cell.report
    result["cells"].append((report.total_s, sum(report.stages.values())))
    stages.append(report.stages)
    return value


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--pool-first", action="store_true")
    options = parser.parse_args()
    with own_pool() as info:
        session = djinn_lab.connect(info.url, token=info.token, name="quickstart")
        try:
            result = play(session, options.small, options.pool_first)
        finally:
            session.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
