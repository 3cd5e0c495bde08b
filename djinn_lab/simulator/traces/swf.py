"""The Standard Workload Format of the Parallel Workloads Archive: 18 numbers a line, comments begin with
``;``.

Chapin et al., Benchmarks and Standards for the Evaluation of Parallel Job Schedulers (JSSPP 1999)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import isfinite
from pathlib import Path

from djinn_lab.jobs.request import ComputeNode, Demand
from djinn_lab.simulator.queue.workload import Trace, TraceJob
from djinn_lab.simulator.traces.lines import LeftOut, NoTraces, collect, open_text

FIELDS = 18
DIGITS_MAX = 12
_SUBMIT, _RUN, _PROCS, _REQUESTED_PROCS, _REQUESTED_TIME, _USER, _GROUP = 1, 3, 4, 7, 8, 11, 12


def load_swf(path: Path) -> Trace:
    """Load a trace; the machine becomes one node with as many devices as the header says. Run times are
    capped at what was asked for, and a job that ended within its first second ran for one; jobs that never
    ran are left out."""
    trace = collect(path.name.split(".swf")[0], _lines(path), _job)
    procs = _machine(path) or max((job.demand.members for job in trace.jobs), default=1)
    return Trace(
        trace.name, trace.jobs, {"": (ComputeNode("machine", devices=procs),)}, trace.broken, trace.left_out
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip() and not line.lstrip().startswith(";"):
                yield number, line


def _machine(path: Path) -> int | None:
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.startswith(";"):
                return None
            if "MaxProcs:" in line:
                said = line.split("MaxProcs:")[1].strip()
                if not said.isdecimal() or len(said) > DIGITS_MAX or not int(said):
                    raise NoTraces(f"{path}, line {number}: MaxProcs is {said[:40]!r}")
                return int(said)
    return None


def _job(line: str, before: int) -> TraceJob:
    fields = line.split()
    if len(fields) != FIELDS:
        raise ValueError(f"{len(fields)} fields where {FIELDS} belong")
    submit_s, run_s, requested_s = (float(fields[one]) for one in (_SUBMIT, _RUN, _REQUESTED_TIME))
    if not all(map(isfinite, (submit_s, run_s, requested_s))):
        raise ValueError("a time that is no number of seconds")
    procs = int(fields[_REQUESTED_PROCS])
    if procs <= 0:
        procs = int(fields[_PROCS])
    if run_s < 0 or procs <= 0:
        raise LeftOut
    if submit_s < 0:
        raise ValueError(f"submitted at {submit_s:g} s")
    if requested_s > 0:
        run_s = min(run_s, requested_s)
    return TraceJob(
        job=fields[0],
        submit_s=submit_s,
        run_s=max(run_s, 1.0),
        demand=_gang(procs),
        account=f"group{fields[_GROUP]}/user{fields[_USER]}",
        estimate_s=requested_s if requested_s > 0 else None,
    )


@cache
def _gang(procs: int) -> Demand:
    return Demand(members=procs, members_min=procs)
