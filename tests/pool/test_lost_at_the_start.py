"""A node of the cluster is lost while the pool starts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from ray_nodes import three_nodes
from real_pool import PoolUnderTest, wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture
def address() -> Iterator[str]:
    if "SWEEP_RAY" not in os.environ:
        pytest.skip("make sweep-ray does this: Ray starts slowly beside other tests")
    with three_nodes() as address:
        yield address


def kill_a_node_once_a_pool_starts(known: set[Path]) -> None:
    while not set(Path("/dev/shm").glob("djinn-*")) - known:
        time.sleep(0.1)
    raylets = [one for one in psutil.process_iter(["name", "cmdline"]) if one.info["name"] == "raylet"]
    next(one for one in raylets if "--head" not in one.info["cmdline"]).kill()


def test_the_pool_begins_with_the_hosts_that_are_there(address: str, tmp_path: Path) -> None:
    known = set(Path("/dev/shm").glob("djinn-*"))
    killing = threading.Thread(target=kill_a_node_once_a_pool_starts, args=(known,), daemon=True)
    killing.start()
    more = {"engine": "ray", "address": address, "threads": 2, "host_bytes": 2**28, "link_bytes_per_s": 0}
    with PoolUnderTest(tmp_path, "cpu:1", 2**30, **more) as pool:
        killing.join()

        def states() -> list[str]:
            return sorted(host.state for host in pool.rest.status().hosts)

        wait_for(lambda: states() == ["lost", "serves", "serves"])
        with pool.session() as session:
            with session.capture("cell"):
                value = torch.arange(4.0).sum()
            assert value.item() == 6.0
