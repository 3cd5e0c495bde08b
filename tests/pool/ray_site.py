"""A launcher on a Ray cluster, for the contract that all launchers must keep."""

from __future__ import annotations

import atexit
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import psutil
import ray
from launcher_kit import DEVICE_BYTES, ProcessesOfThisMachine, Site
from ray_nodes import three_nodes

from djinn_lab.pool.blobs.directory import Belonging
from djinn_lab.pool.launchers.ray_cluster.cluster import Cluster, connect
from djinn_lab.pool.launchers.ray_cluster.launcher import RayLauncher

ENDED_WITHIN_S = 10.0


class RaySite(ProcessesOfThisMachine):
    """A launcher whose workers are on two nodes of a Ray cluster, beside the pool's own node."""

    files_of_a_move = 2

    def __init__(self, directory: Path, worker_command: Sequence[str] | None = None) -> None:
        super().__init__(directory)
        self._ray = RayLauncher(
            two_hosts(), uuid.uuid4().hex[:12], directory, Belonging("", "", "", 0.0), worker_command
        )
        self.launcher = self._ray

    def parked(self) -> set[str]:
        roots = [Path(root) for host in self._ray.agents for root in host.roots]
        return {file.name for root in roots for file in root.rglob("*.*")}

    def workers(self) -> set[str]:
        found = [one for agent in self._agents() for one in agent.children(recursive=True)]
        templates = {one.pid for agent in self._agents() for one in agent.children()}
        return {str(one.pid) for one in found if one.pid not in templates}

    def processes(self) -> set[str]:
        psutil.wait_procs(self._agents(), ENDED_WITHIN_S)  # Ray ends an actor's process in its own time
        found = [one for agent in self._agents() for one in (agent, *agent.children(recursive=True))]
        return {str(one.pid) for one in found}

    def _agents(self) -> list[psutil.Process]:
        pids = [host.pid for host in self._ray.agents]
        return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


@cache
def address_of_cluster() -> str:
    """Start a cluster for all tests of this process."""
    kept = ExitStack()
    atexit.register(kept.close)
    return kept.enter_context(three_nodes())


@cache
def found_nodes() -> Cluster:
    return connect(address_of_cluster())


def two_hosts() -> Cluster:
    """Return the cluster with ``cpu:0`` and ``cpu:1`` on a node each, beside the pool's."""
    found = found_nodes()
    others = Cluster([node for node in found.nodes if node.node != found.own_node], found.own_node)
    others.plan("cpu:1", DEVICE_BYTES, 1)
    return others


@contextmanager
def ray_site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="djinn-test-") as made:
        first = not ray.is_initialized()
        try:
            yield RaySite(Path(made))
        finally:
            if first:  # others may have been open inside
                ray.shutdown()
                found_nodes.cache_clear()
