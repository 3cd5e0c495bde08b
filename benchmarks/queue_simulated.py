"""The shared queue under a simulated clock: our policy beside others, our simulator beside other people's.

Philly's jobs are waited for on nodes cut until they are scarce, as in the Helios artifact's comparison; every
policy knows the true run times (an oracle, as there), and preempting costs the others that preempt what the
artifact charges them, a checkpoint and a restart, and ours a parking: as assumed, as measured with a worker
here, and as much as theirs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure, skipped
from benchmarks.filling import fill, popularity
from benchmarks.preemption import parking_bytes_per_s
from djinn_lab.jobs.placement import DEFAULT, SCORINGS, fragmentation
from djinn_lab.simulator.queue import (
    CHECKPOINT,
    PARKING,
    Parking,
    QueueFigures,
    QueueSettings,
    Trace,
    equal_nodes,
    simulate_queue,
)
from djinn_lab.simulator.traces.catalog import open_trace
from djinn_lab.simulator.traces.gpu_clusters import DEVICES_PER_NODE
from djinn_lab.simulator.traces.lines import NoTraces

NAME = "queue-simulated"
RESTARTING = ("srtf", "tiresias")
"""Policies of others that preempt: by checkpoint and restart."""
BASELINES = ("fifo", "sjf", "srtf", "tiresias", "qssf", "easy", "fair_share_only")
ITP_NODES = {"cluster02": 12, "cluster05": 2, "cluster06": 12, "cluster08": 9}
PUBLISHED_JCT_S = {"fifo": 404_293, "sjf": 23_933, "srtf": 17_885, "tiresias": 34_856, "qssf": 39_386}
"""Helios artifact on the same jobs; its qssf and tiresias work with noisy estimates and with none."""
SRTF_JCT_S = 17_885.0
SDSC = {"fifo": 13_900.36, "easy": 88.60}
"""Mean bounded slowdown in pyss."""
FGD = {"random": 87.47, "best_fit": 93.08, "gpu_packing": 92.00, "fgd": 95.39}
"""Percent of devices allocated, published (ten seeds)."""
FILL_SEEDS = (11, 12)
"""Others than those that the rounding of the fragmentation score was chosen with."""
STATE_BYTES = 16e9
"""Bytes that a preempted job is assumed to hold on each device."""
PARKING_ROUNDS, PARKING_ROUNDS_QUICK = 40, 3
SPEED_JOBS, LARGE_JOBS, LARGE_JOBS_QUICK = 5_000, 1_000_000, 2_000
ACCASIM_VARIABLE = "ACCASIM_PYTHON"
METRICS: tuple[tuple[str, str, Callable[[QueueFigures], float]], ...] = (
    ("mean completion", "s", lambda found: found.jct_mean_s),
    ("p99 completion", "s", lambda found: found.jct_p99_s),
    ("mean wait", "s", lambda found: found.wait_mean_s),
    ("p99 wait", "s", lambda found: found.wait_p99_s),
    ("unevenness over tenants (1 - Jain)", "part", lambda found: 1.0 - (found.jain or 1.0)),
)


def measure(bench: Bench) -> list[Figure]:
    parts: tuple[tuple[str, Callable[[bool], list[Figure]]], ...] = (
        ("Philly", _philly),
        ("ITP", _itp),
        ("SDSC-SP2", _sdsc),
        ("openb", _openb),
        ("speed", _speed),
    )
    found: list[Figure] = []
    for name, part in parts:
        try:
            found += part(bench.quick)
        except NoTraces as error:
            found.append(skipped(NAME, name, "x", str(error)))
    return [*found, _large(LARGE_JOBS_QUICK if bench.quick else LARGE_JOBS)]


def _philly(quick: bool) -> list[Figure]:
    apart = open_trace("philly-contended")
    if quick:
        apart = _first(apart, 300)
    nodes = sum(len(members) for members in apart.nodes.values())
    shared = Trace("philly, one pool", apart.jobs, {"": equal_nodes(nodes, DEVICES_PER_NODE)})
    published = {"published_jct_s": PUBLISHED_JCT_S}
    found = _policies("Philly, five pools", apart, BASELINES, Goal(SRTF_JCT_S), **published)
    found.append(_by_parking(apart, PARKING_ROUNDS_QUICK if quick else PARKING_ROUNDS))
    return found if quick else [*found, *_policies("Philly, one shared pool", shared, BASELINES)]


def _by_parking(trace: Trace, rounds: int) -> Figure:
    """Our policy, with parking that takes as long as it does on this machine, less or more."""
    out_bytes_per_s, back_bytes_per_s = parking_bytes_per_s(rounds)
    measured = Parking(((1, STATE_BYTES / out_bytes_per_s, STATE_BYTES / back_bytes_per_s),))
    costs = {OURS: measured, "parking assumed": PARKING, "checkpoint and restart": CHECKPOINT}
    runs = {name: _run(trace, "default", parking) for name, parking in costs.items()}
    return figure(
        NAME,
        "Philly, five pools: mean completion by what a preemption costs",
        "s",
        {name: [run.jct_mean_s] for name, run in runs.items()},
        [Goal(SRTF_JCT_S)],
        state_bytes=STATE_BYTES,
        out_bytes_per_s=round(out_bytes_per_s),
        back_bytes_per_s=round(back_bytes_per_s),
        parking={name: parking.steps for name, parking in costs.items()},
        preemptions={name: run.preemptions for name, run in runs.items()},
        unevenness={name: 1.0 - (run.jain or 1.0) for name, run in runs.items()},
    )


def _itp(quick: bool) -> list[Figure]:
    """Compare policies on the ITP trace, on which no parameter of ours was chosen."""
    trace = itp_pools()
    return _policies("ITP, four pools", _first(trace, 300) if quick else trace, ("srtf",))


def itp_pools() -> Trace:
    """Four of the clusters, with nodes for nine tenths of their load."""
    whole = open_trace("itp")
    jobs = tuple(
        replace(job, pool=job.account)
        for job in whole.jobs
        if job.demand.members <= DEVICES_PER_NODE * ITP_NODES.get(job.account, 0)
    )
    pools = {pool: equal_nodes(count, DEVICES_PER_NODE, pool) for pool, count in ITP_NODES.items()}
    return Trace("itp, four pools", jobs, pools)


def _policies(
    title: str, trace: Trace, baselines: Sequence[str], goal: Goal | None = None, **facts: Any
) -> list[Figure]:
    runs = {policy: _run(trace, policy) for policy in ("default", *baselines)}
    about = {policy: msgspec.to_builtins(found) for policy, found in runs.items()}
    figures = []
    for metric, unit, value in METRICS:
        values = {policy: value(found) for policy, found in runs.items()}
        taken = {OURS if policy == "default" else policy: [max(of, 1e-9)] for policy, of in values.items()}
        goals = [goal] if goal is not None and metric == "mean completion" else []
        if "Jain" in metric:
            goals = [Goal(1.0, baseline=policy) for policy in baselines]
        figures.append(figure(NAME, f"{title}: {metric}", unit, taken, goals))
    figures[0].facts.update(policies=about, jobs=runs["default"].jobs, **facts)
    return figures


def _run(trace: Trace, policy: str, parking: Parking | None = None) -> QueueFigures:
    parking = parking or (CHECKPOINT if policy in RESTARTING else PARKING)
    settings = QueueSettings(estimates="exact", parking=parking, keep_jobs=0)
    return simulate_queue(trace, None, policy, settings).figures


def _sdsc(quick: bool) -> list[Figure]:
    """How far from what pyss says, in percent."""
    trace = open_trace("sdsc-sp2")
    if quick:
        trace = _first(trace, 500)
    found = []
    for policy, published in SDSC.items():
        run = simulate_queue(trace, None, policy, QueueSettings(keep_jobs=0)).figures
        off = abs(run.slowdown_mean / published - 1) * 100
        limit = 0.001 if policy == "fifo" else 1.0
        title = f"SDSC-SP2 {policy}: mean slowdown off pyss'"
        facts = {"slowdown": run.slowdown_mean, "pyss": published, "wait_mean_s": run.wait_mean_s}
        goals = [] if quick else [Goal(limit)]
        found.append(figure(NAME, title, "%", {OURS: [max(off, 1e-9)]}, goals, jobs=run.jobs, **facts))
    return found


def _openb(quick: bool) -> list[Figure]:
    """Devices left unallocated when 1.3 times as much was asked for."""
    trace = open_trace("openb")
    nodes = [node for members in trace.nodes.values() for node in members]
    demands = [job.demand for job in trace.jobs]
    if quick:
        nodes, demands = nodes[::20], demands[:400]
    contenders = {
        OURS: fragmentation(popularity(demands)),
        **{name: SCORINGS[name] for name in ("best_fit", "mixed_30_20_20_20_10")},
        "default without history": DEFAULT,
    }
    taken = {
        name: [100 * (1 - fill(demands, nodes, scoring, 1.3, seed).allocated) for seed in FILL_SEEDS]
        for name, scoring in contenders.items()
    }
    goals = [] if quick else [Goal(100 - FGD["fgd"])]
    title = "openb at 1.3 times the load: devices not allocated"
    return [figure(NAME, title, "%", taken, goals, published_allocated=FGD, seeds=FILL_SEEDS)]


def _speed(quick: bool) -> list[Figure]:
    """Seconds for the first jobs of SDSC-SP2 under EASY, beside AccaSim on the same file."""
    trace = _first(open_trace("sdsc-sp2"), 200 if quick else SPEED_JOBS)
    title = f"SDSC-SP2, {len(list(trace.jobs))} jobs, EASY: seconds"
    python = os.environ.get(ACCASIM_VARIABLE)
    if python is None and importlib.util.find_spec("accasim") is not None:
        python = sys.executable
    if python is None:
        reason = f"no AccaSim: pip install accasim, or set {ACCASIM_VARIABLE} to a Python that has it"
        return [skipped(NAME, title, "s", reason)]
    ours, theirs, said = [], [], ""
    with tempfile.TemporaryDirectory() as folder:
        workload = Path(folder) / "workload.swf"
        _write_swf(workload, trace)
        for _ in range(1 if quick else 3):
            started = perf_counter()
            run = simulate_queue(trace, None, "easy", QueueSettings(keep_jobs=0)).figures
            ours.append(perf_counter() - started)
            runner = str(Path(__file__).with_name("accasim_runner.py"))
            done = subprocess.run(
                [python, runner, str(workload), "128"], capture_output=True, text=True, check=True
            )
            answer = json.loads(done.stdout.splitlines()[-1])
            theirs.append(answer["seconds"])
            said = answer["said"]
    facts = {"wait_mean_s": run.wait_mean_s, "accasim_said": said}
    return [
        figure(NAME, title, "s", {OURS: ours, "accasim": theirs}, [Goal(1.0, baseline="accasim")], **facts)
    ]


def _write_swf(path: Path, trace: Trace) -> None:
    """With the same run times and estimates that we use, and some memory: AccaSim divides by it."""
    lines = []
    for number, job in enumerate(trace.jobs, 1):
        asked_s = job.run_s if job.estimate_s is None else job.estimate_s
        procs = job.demand.members
        fields = (
            number,
            job.submit_s,
            -1,
            job.run_s,
            procs,
            -1,
            1,
            procs,
            asked_s,
            1,
            1,
            1,
            1,
            1,
            1,
            1,
            -1,
            -1,
        )
        lines.append(" ".join(str(int(field)) for field in fields))
    path.write_text("\n".join(lines) + "\n")


def _large(jobs: int) -> Figure:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.queue_million", str(jobs), "default"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    found: Mapping[str, Any] = json.loads(done.stdout)
    title = f"{jobs:,} jobs on 10,000 devices: microseconds a job"
    micros = found["seconds"] / jobs * 1e6
    return figure(NAME, title, "us", {OURS: [micros]}, values={"default": micros}, **dict(found))


def _first(trace: Trace, jobs: int) -> Trace:
    return replace(trace, jobs=tuple(islice(trace.jobs, jobs)))
