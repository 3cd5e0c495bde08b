"""Measure a pool on the nodes of a Ray cluster, beside a pool of this machine, and beside plain Ray actors
that do the same with the same tensors. All nodes are on this machine: no network is in the figures."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any

import torch

import djinn_lab
from benchmarks.bench import Bench, own_runtime
from benchmarks.figures import OURS, Figure, figure
from benchmarks.hosts_contenders import LOCAL, NAME, PLAIN, Holder, Pool
from benchmarks.hosts_together import gang_figures, sessions_figure
from benchmarks.samples import Samples, scaled
from djinn_lab.client.session import Session
from djinn_lab.jobs import Terms
from djinn_lab.pool.launch import start_pool, stop_pool

SIZES_MB = (1, 16, 256)
MOVED_MB = 300
MEGABYTE = 10**6
STORE_BYTES = 2**30
POOL: dict[str, Any] = {
    "memory_bytes": 2 * 2**30,
    "host_bytes": 2 * 2**30,
    "threads": 1,
    "link_bytes_per_s": 0,
}


def measure(bench: Bench) -> list[Figure]:
    import ray  # which changes a process that only imports it

    with ExitStack() as stack:
        cluster = stack.enter_context(_three_nodes())
        stack.enter_context(own_runtime())
        several = stack.enter_context(_pool(engine="ray", address=cluster.address, devices="cpu:1"))
        stack.enter_context(own_runtime())
        one = stack.enter_context(_pool(devices="cpu:3"))
        holders = [
            ray.remote(Holder).options(scheduling_strategy="SPREAD", num_cpus=1).remote() for _ in range(3)
        ]
        torch.set_num_threads(1)
        remote, local = several.session, one.session
        return [
            _one_op(bench, remote, local, holders[0]),
            *(
                _upload(bench, size, remote, local, holders[0])
                for size in SIZES_MB[: 1 if bench.quick else 3]
            ),
            *(_fetch(bench, size, remote, local, holders[0]) for size in SIZES_MB[: 1 if bench.quick else 3]),
            _move(bench, 16 if bench.quick else MOVED_MB, remote, local, holders[:2]),
            *gang_figures(bench, several, one, holders),
            sessions_figure(bench, several, one, holders),
        ]


@contextmanager
def _three_nodes() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster as RayCluster

    from djinn_lab.pool.launchers.ray_cluster.cluster import RAY_SETTINGS

    os.environ.update(RAY_SETTINGS)
    cluster = RayCluster()
    try:
        for number in range(3):
            head = {"include_dashboard": False} if number == 0 else {}
            cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, **head)
        ray.init(cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


@contextmanager
def _pool(**options: Any) -> Iterator[Pool]:
    info = start_pool(**POOL, **options, restart=False)
    session = djinn_lab.connect(info.url, token=info.token, name="benchmark")
    try:
        yield Pool(session, info)
    finally:
        session.close()
        stop_pool()


def _away(*devices: int) -> list[Terms]:
    """Return the terms of cells on devices beside the first, which shares its files with the pool."""
    return [Terms(target=f"cpu:{number}") for number in devices]


def _one_op(bench: Bench, remote: Session, local: Session, holder: Any) -> Figure:
    [there] = _away(1)

    def cell_of(session: Session) -> Callable[[], float]:
        def sample() -> float:
            started = perf_counter()
            with session.capture(terms=there):
                value = torch.ones(4) + 1
            assert float(value[0]) == 2.0
            return perf_counter() - started

        return sample

    def plain() -> float:
        import ray

        started = perf_counter()
        assert ray.get(holder.one_op.remote(1.0)) == 2.0
        return perf_counter() - started

    taken = bench.alternate({OURS: cell_of(remote), LOCAL: cell_of(local), PLAIN: plain}, 200)
    return figure(NAME, "a cell of one op, with its result", "ms", scaled(taken, 1e3))


def _upload(bench: Bench, size_mb: int, remote: Session, local: Session, holder: Any) -> Figure:
    [there] = _away(1)
    tensor, marks = torch.zeros(size_mb * MEGABYTE // 4), itertools.count(1)

    def cell_of(session: Session) -> Callable[[], float]:
        with session.capture(terms=there):
            first = torch.zeros(1, dtype=torch.int64)

        def sample() -> float:
            mark = next(marks)
            tensor.fill_(mark)
            started = perf_counter()
            with session.capture(terms=there):
                value = torch.index_select(tensor, 0, first)
            assert float(value[0]) == mark
            return perf_counter() - started

        return sample

    def plain() -> float:
        import ray

        mark = next(marks)
        tensor.fill_(mark)
        started = perf_counter()
        assert ray.get(holder.first_of.remote(tensor.numpy())) == mark
        return perf_counter() - started

    taken = bench.alternate({OURS: cell_of(remote), LOCAL: cell_of(local), PLAIN: plain}, _rounds(size_mb))
    return figure(NAME, f"upload of {size_mb} MB, whole cell", "ms", scaled(taken, 1e3))


def _fetch(bench: Bench, size_mb: int, remote: Session, local: Session, holder: Any) -> Figure:
    [there] = _away(1)
    count, marks = size_mb * MEGABYTE // 4, itertools.count(1)

    def cell_of(session: Session) -> Callable[[], float]:
        def sample() -> float:
            mark = next(marks)
            with session.capture(terms=there):
                lazy = torch.full((count,), float(mark))
            started = perf_counter()
            plain = session.fetch(lazy)
            assert float(plain[-1]) == mark
            return perf_counter() - started

        return sample

    def plain() -> float:
        import ray

        mark = next(marks)
        started = perf_counter()
        assert float(ray.get(holder.full.remote(count, float(mark)))[-1]) == mark
        return perf_counter() - started

    taken = bench.alternate({OURS: cell_of(remote), LOCAL: cell_of(local), PLAIN: plain}, _rounds(size_mb))
    return figure(NAME, f"fetch of {size_mb} MB", "ms", scaled(taken, 1e3))


def _move(bench: Bench, size_mb: int, remote: Session, local: Session, holders: list[Any]) -> Figure:
    count = size_mb * MEGABYTE // 4

    def cell_of(session: Session) -> Callable[[], float]:
        turns = itertools.cycle(_away(2, 1))
        with session.capture(terms=_away(1)[0]):
            held = torch.rand(count)

        def sample() -> float:
            started = perf_counter()
            with session.capture(terms=next(turns)):
                total = held.sum()
            total.item()
            return perf_counter() - started

        return sample

    def plain() -> float:
        import ray

        holders.reverse()
        started = perf_counter()
        ray.get(holders[0].hold.remote(holders[1].give.remote()))
        return perf_counter() - started

    holders[0].hold.remote(torch.rand(count).numpy())
    taken: Samples = bench.alternate({OURS: cell_of(remote), LOCAL: cell_of(local), PLAIN: plain}, 9)
    return figure(NAME, f"a session of {size_mb} MB on another device, and its sum", "ms", scaled(taken, 1e3))


def _rounds(size_mb: int) -> int:
    return 40 if size_mb < 100 else 9
