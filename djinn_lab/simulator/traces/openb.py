"""Alibaba's openb (cluster-trace-gpu-v2023; Weng et al., USENIX ATC'23): nodes of many kinds, pods that ask
for parts of devices."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from djinn_lab.jobs.request import ComputeNode, Demand
from djinn_lab.simulator.queue.workload import NORMAL, Trace, TraceJob
from djinn_lab.simulator.traces.lines import NoTraces, Row, collect, positive, rows

RANKS = {"LS": 1, "Guaranteed": 1, "Burstable": NORMAL, "BE": 4}
"""Latency-sensitive pods before bursts before best effort."""


def load_openb(pods: Path, nodes: Path) -> Trace:
    trace = collect(pods.name.split(".csv")[0], rows(pods, _POD_COLUMNS), _pod)
    specs = {label for job in trace.jobs for label in job.demand.selector}
    return Trace(trace.name, trace.jobs, {"": load_nodes(nodes, specs)}, trace.broken, trace.left_out)


def load_nodes(path: Path, specs: Iterable[str] = ()) -> tuple[ComputeNode, ...]:
    """Load the nodes of the cluster. ``specs``: labels such as ``gpu=V100M16|V100M32``; nodes of any of these
    models get it. Raises NoTraces."""
    wanted = {label: frozenset(label.removeprefix("gpu=").split("|")) for label in specs}

    def node(row: Row) -> ComputeNode:
        if None in row.values():
            raise ValueError("too few columns")
        devices, cpu_milli, memory_mib = (int(row[one]) for one in ("gpu", "cpu_milli", "memory_mib"))
        if min(devices, cpu_milli, memory_mib) < 0:
            raise ValueError("a number below 0")
        labels = frozenset(label for label, models in wanted.items() if row["model"] in models)
        return ComputeNode(
            row["sn"], devices=devices, cpu_milli=cpu_milli, memory_mib=memory_mib, labels=labels
        )

    found = []
    for number, row in rows(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        try:
            found.append(node(row))
        except ValueError as error:
            raise NoTraces(f"{path}, line {number}: {error}") from None
    return tuple(found)


_POD_COLUMNS = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos"),
    *("creation_time", "deletion_time"),
)


def _pod(row: Row, before: int) -> TraceJob:
    created_s = positive(row["creation_time"], "creation_time")
    return TraceJob(
        job=row["name"],
        submit_s=created_s,
        run_s=positive(row["deletion_time"], "deletion_time") - created_s,
        demand=_demand(
            int(row["num_gpu"]),
            int(row["gpu_milli"]),
            int(row["cpu_milli"]),
            int(row["memory_mib"]),
            row["gpu_spec"],
        ),
        rank=RANKS.get(row["qos"], NORMAL),
    )


@cache
def _demand(devices: int, milli: int, cpu_milli: int, memory_mib: int, spec: str) -> Demand:
    """Several devices of one pod are on one node; each carries its part of cpu and memory."""
    if devices < 0 or not 0 <= milli <= 1000:
        raise ValueError(f"{devices} devices of {milli} thousandths")
    members = max(1, devices)
    demand = Demand(
        members=members,
        members_min=members,
        device_milli=milli if devices else 0,
        cpu_milli=-(-cpu_milli // members),
        memory_mib=-(-memory_mib // members),
        together="one_node",
    )
    return replace(demand, selector=frozenset({f"gpu={spec}"})) if spec else demand
