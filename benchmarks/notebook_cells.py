"""A team's notebooks on few devices, simulated: the cells of a production platform (Adobe, June 2021, as
published by NotebookOS), which hold devices only while they run.

A session submits its next cell as long after the last one ended as it did in the trace. Its state crosses a
link of 55 GB/s before and after each cell, and at each preemption, while the cell holds its devices. Beside
our policy: other orders of cells, and notebooks that hold their devices for their whole lives."""

from __future__ import annotations

from typing import Any

import msgspec

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure, skipped
from djinn_lab.simulator.queue import Parking, QueueRun, QueueSettings, Trace, equal_nodes, simulate_queue
from djinn_lab.simulator.traces.catalog import open_trace
from djinn_lab.simulator.traces.gpu_clusters import DEVICES_PER_NODE
from djinn_lab.simulator.traces.lines import NoTraces

NAME = "notebook-cells"
DEVICES = (64, 48, 40, 32, 24)
DEVICES_QUICK = (40,)
FIRST_FIT = "fifo_passing"
BASELINES = ("fifo", FIRST_FIT, "easy", "srtf")
RESERVED = "a device per notebook"
GOALS_MIN = {40: (0.8, 20.0), 32: (4.0, 90.0)}
"""By devices: mean and p99 of the wait, in minutes."""
SETTINGS = QueueSettings(estimates="history", parking=Parking(), keep_jobs=0)
"""Run times are predicted from what ended before; with an oracle for the bound below."""
MINUTE_S, HOUR_S = 60.0, 3600.0


def measure(bench: Bench) -> list[Figure]:
    try:
        cells, reserved = open_trace("notebooks"), open_trace("notebooks-reserved")
    except NoTraces as error:
        return [skipped(NAME, "a team's notebooks on few devices", "min", str(error))]
    found: list[Figure] = []
    for devices in DEVICES_QUICK if bench.quick else DEVICES:
        found += _on(devices, cells, reserved)
    return found


def _on(devices: int, cells: Trace, reserved: Trace) -> list[Figure]:
    nodes = equal_nodes(devices // DEVICES_PER_NODE, DEVICES_PER_NODE)
    runs = {
        OURS if policy == "default" else policy: simulate_queue(cells, nodes, policy, SETTINGS)
        for policy in ("default", *BASELINES)
    }
    oracle = msgspec.structs.replace(SETTINGS, estimates="exact")
    bound = simulate_queue(cells, equal_nodes(1, devices), "srtf", oracle)
    kept = simulate_queue(reserved, nodes, FIRST_FIT, SETTINGS)
    mean_goal, p99_goal = GOALS_MIN.get(devices, (None, None))
    facts: dict[str, Any] = {
        "cells": runs[OURS].figures.jobs,
        "sessions": runs[OURS].figures.accounts,
        "held_h": {name: held_h(run) for name, run in (*runs.items(), (RESERVED, kept))},
        "reserved": msgspec.to_builtins(kept.figures),
        "policies": {name: msgspec.to_builtins(run.figures) for name, run in runs.items()},
        "oracle_on_one_node_mean_min": bound.figures.wait_mean_s / MINUTE_S,
    }
    figures = [
        _minutes(
            devices, "mean wait", {name: run.figures.wait_mean_s for name, run in runs.items()}, mean_goal
        ),
        _minutes(devices, "p99 wait", {name: run.figures.wait_p99_s for name, run in runs.items()}, p99_goal),
        _minutes(
            devices,
            "mean wait until the first start",
            {name: run.figures.start_wait_mean_s for name, run in runs.items()},
        ),
        _uneven(devices, runs),
    ]
    figures[0].facts.update(facts)
    return figures


def held_h(run: QueueRun) -> float:
    """Return the device-hours that were held, copies of state included."""
    total = 0.0
    for course in run.courses.values():
        if len(course.times_s) > 1:
            total += sum(course.devices_held) * (course.times_s[1] - course.times_s[0])
    return total / HOUR_S


def _minutes(devices: int, what: str, seconds: dict[str, float], goal: float | None = None) -> Figure:
    taken = {name: [max(value / MINUTE_S, 1e-9)] for name, value in seconds.items()}
    goals = [] if goal is None else [Goal(goal)]
    return figure(NAME, f"{devices} devices: {what}", "min", taken, goals)


def _uneven(devices: int, runs: dict[str, QueueRun]) -> Figure:
    taken = {name: [max(1 - (run.figures.jain or 1.0), 1e-9)] for name, run in runs.items()}
    goals = [Goal(1.0, baseline=policy) for policy in BASELINES]
    return figure(NAME, f"{devices} devices: unevenness over sessions (1 - Jain)", "part", taken, goals)
