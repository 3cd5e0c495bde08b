"""Traces of GPU clusters that are CSV files: Philly, ITP, Helios. Gangs are packed; estimates are not part of
any of them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from functools import cache
from pathlib import Path

import msgspec

from djinn_lab.jobs.request import Demand
from djinn_lab.simulator.queue.workload import Trace, TraceJob, equal_nodes
from djinn_lab.simulator.traces.lines import NODES_MAX, LeftOut, NoTraces, Row, collect, positive, rows

DEVICES_PER_NODE = 8
PHILLY_CONTENDED = ("2869ce", "103959", "11cb48", "e13805", "7f04ca")
"""The virtual clusters that the published comparison of policies is about."""


def load_philly(path: Path, pools: Path | None = None, only: Collection[str] | None = None) -> Trace:
    """Load ``submit,duration,gpus,vc`` (Jeon et al., USENIX ATC'19, as compiled by adaptdl). ``pools``: JSON
    with nodes of eight devices by virtual cluster; only jobs of those are kept, and of those ``only`` the
    named ones. Tenants are virtual clusters."""
    sizes = _pools(pools) if pools is not None else None
    if sizes is not None and only is not None:
        lacking = [vc for vc in only if vc not in sizes]
        if lacking:
            raise NoTraces(f"{pools} has no pool {', '.join(lacking)}")
        sizes = {vc: sizes[vc] for vc in only}

    def job(row: Row, before: int) -> TraceJob:
        if sizes is not None and row["vc"] not in sizes:
            raise LeftOut
        return TraceJob(
            job=str(before),
            submit_s=positive(row["submit"], "submit"),
            run_s=positive(row["duration"], "duration"),
            demand=packed_gang(int(row["gpus"])),
            account=row["vc"],
            pool=row["vc"] if sizes is not None else "",
        )

    trace = collect("philly", rows(path, ("submit", "duration", "gpus", "vc")), job)
    nodes = {vc: equal_nodes(count, DEVICES_PER_NODE, f"{vc}-") for vc, count in (sizes or {}).items()}
    name = f"philly {pools.stem.removeprefix('pools_')}" if pools is not None else "philly"
    return Trace(name, trace.jobs, nodes, trace.broken, trace.left_out)


def load_itp(path: Path) -> Trace:
    """Load ten clusters of Microsoft's in 2021 (Gu et al., ElasticFlow, ASPLOS'23). Tenants are clusters."""

    def job(row: Row, before: int) -> TraceJob:
        return TraceJob(
            job=row["job_id"],
            submit_s=positive(row["submission_time"], "submission_time"),
            run_s=positive(row["duration"], "duration"),
            demand=packed_gang(int(row["num_gpu"])),
            account=row["cluster"],
        )

    return collect("itp", rows(path, ("job_id", "submission_time", "num_gpu", "duration", "cluster")), job)


def load_helios(path: Path) -> Trace:
    """Load ``cluster_log.csv`` of a Helios cluster (Hu et al., SC'21). Jobs without devices are left out."""

    def job(row: Row, before: int) -> TraceJob:
        if int(float(row["gpu_num"])) == 0:
            raise LeftOut
        return TraceJob(
            job=row["job_id"],
            submit_s=datetime.fromisoformat(row["submit_time"]).timestamp(),
            run_s=positive(row["duration"], "duration"),
            demand=packed_gang(int(float(row["gpu_num"]))),
            account=f"{row['vc']}/{row['user']}",
        )

    columns = ("job_id", "user", "vc", "gpu_num", "submit_time", "duration")
    return collect(f"helios {path.parent.name}", rows(path, columns), job)


@cache
def packed_gang(members: int) -> Demand:
    if members < 1:
        raise ValueError(f"{members} devices")
    return Demand(members=members, members_min=members, together="packed")


def _pools(path: Path) -> dict[str, int]:
    if not path.is_file():
        raise NoTraces(f"no pools at {path}")
    try:
        sizes = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoTraces(f"{path} is not a table of nodes by pool: {error}") from None
    wrong = [count for count in sizes.values() if not 0 <= count <= NODES_MAX]
    if wrong:
        raise NoTraces(f"{path}: a pool of {wrong[0]} nodes; one may have 0 to {NODES_MAX}")
    return sizes
