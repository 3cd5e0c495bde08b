"""A Ray cluster of three nodes on this machine, kept by a process of its own: ``python ray_nodes.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

STORE_BYTES = 128 * 2**20
TRIES = 3
AT = "cluster at "


@contextmanager
def three_nodes() -> Iterator[str]:
    """Run a cluster until the block ends, and yield its address. Skips where Ray does not start in time."""
    said = ""
    for _ in range(TRIES):
        keeper = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with keeper:
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            for line in keeper.stdout:
                if line.startswith(AT):
                    try:
                        yield line.removeprefix(AT).strip()
                    finally:
                        keeper.stdin.close()
                        keeper.stdout.read()
                    return
                said = line.strip() or said
    pytest.skip(f"Ray itself does not start on this machine now: {said}")


def begin_to_leave(address: str, node_end: str) -> None:
    """Tell Ray that a node will be taken away, as a spot notice does."""
    subprocess.run([sys.executable, __file__, address, node_end], check=True, capture_output=True)


def _drain(address: str, node_end: str) -> None:
    import ray

    ray.init(address)
    node = next(row["NodeID"] for row in ray.nodes() if row["NodeID"].endswith(node_end))
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address={address}"]
    command += [f"--node-id={node}", "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot notice"]
    subprocess.run([*command, "--deadline-remaining-seconds=600"], check=True)


def main() -> None:
    """Start a head, where the pool is, and two more nodes; end them with the end of the input."""
    from ray.cluster_utils import Cluster as RayCluster

    from djinn_lab.pool.launchers.ray_cluster.cluster import RAY_SETTINGS

    os.environ.update(RAY_SETTINGS)
    cluster = RayCluster()
    try:
        for number in range(3):
            head = {"include_dashboard": False} if number == 0 else {}
            cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, **head)
        print(f"{AT}{cluster.address}", flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _drain(*sys.argv[1:])
    else:
        main()
