"""A Ray cluster of three nodes on this machine, once for all tests of a process."""

from __future__ import annotations

import atexit
import os
from functools import cache

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster

from djinn_lab.pool.launchers.ray_cluster.cluster import RAY_SETTINGS, Cluster, connect

STORE_BYTES = 128 * 2**20
TRIES = 3


@cache
def started_cluster() -> RayCluster:
    """Start the cluster: a head, where the driver is, and two more nodes."""
    os.environ.update(RAY_SETTINGS)
    for _ in range(TRIES):
        cluster = RayCluster()
        try:
            for number in range(3):
                head = {"include_dashboard": False} if number == 0 else {}
                cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, **head)
        except Exception as error:  # noqa: BLE001 - Ray gives each node half a minute, and raises this
            cluster.shutdown()
            why = str(error)
        else:
            atexit.register(_end, cluster)
            return cluster
    pytest.skip(f"Ray itself does not start on this machine now: {why}")


def _end(cluster: RayCluster) -> None:
    ray.shutdown()
    cluster.shutdown()


def address_of_cluster() -> str:
    """Return where a program finds the cluster."""
    return str(started_cluster().address)


def three_nodes() -> Cluster:
    """Connect to the cluster, with ``cpu:0`` and ``cpu:1`` on a node each, beside the head."""
    address = address_of_cluster()
    if ray.is_initialized():
        ray.shutdown()
    found = connect(address)
    others = Cluster([node for node in found.nodes if node.node != found.own_node], found.own_node)
    others.plan("cpu:1", 2**26, 1)
    return others
