"""Nodes that come when cells wait, and go when they are idle, on a real autoscaling cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from gang_kit import Search
from ray_autoscaler import alive_nodes, autoscaling_cluster
from real_pool import PoolUnderTest, wait_for

from djinn_lab.client.session import Session
from djinn_lab.jobs import Terms

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
IDLE_S = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    if "SWEEP_RAY" not in os.environ:
        pytest.skip("make sweep-ray does this: Ray starts slowly beside other tests")
    with autoscaling_cluster() as address:
        yield address


@pytest.fixture(scope="module")
def pool(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    """A pool with one device on the only node, beside which two may come."""
    more = {"engine": "ray", "address": cluster, "nodes_max": 3, "nodes_idle_s": IDLE_S}
    more |= {"host_bytes": 2**28, "link_bytes_per_s": 0}
    with PoolUnderTest(tmp_path_factory.mktemp("ray"), "cpu:1", 2**28, **more) as pool:
        yield pool


def actions(pool: PoolUnderTest) -> list[str]:
    """Return what the audit has on nodes, oldest first."""
    rows = sorted(pool.rest.audit(limit=200), key=lambda row: row.at)
    return [row.action for row in rows if row.action.startswith("node")]


def search(session: Session, together: Search) -> list[float]:
    """Run a gang that needs two devices, and return its losses."""
    with session.capture("search", terms=Terms(gang=2, gang_min=2)) as cell:
        losses = together.train(200)
    found: list[float] = losses.tolist()
    assert cell.report.gang.startswith("It ran on 2 devices")
    return found


def test_gang_gets_a_further_node_which_is_given_back_when_idle(cluster: str, pool: PoolUnderTest) -> None:
    assert len(pool.rest.status().hosts) == 1
    alone, together = Search(), Search()
    expected = [alone.train(200).tolist() for _ in range(2)]
    with pool.session() as session:
        found = [search(session, together)]
        assert len(pool.rest.status().hosts) == 2
        wait_for(lambda: "node given back" in actions(pool))
        assert [row.device for row in pool.rest.status().devices] == ["cpu:0"]
        with session.capture("alone") as cell:
            losses = together.train(200)
        assert [*found, losses.tolist()] == expected
        assert cell.report.device == "cpu:0"
    assert actions(pool) == ["nodes requested", "node came", "node given back"]
    wait_for(lambda: alive_nodes(cluster) == 1)


def test_node_that_came_is_given_back_after_the_server_was_killed(cluster: str, pool: PoolUnderTest) -> None:
    alone, together = Search(), Search()
    expected = [alone.train(200).tolist() for _ in range(2)]
    with pool.session() as session:
        found = [search(session, together)]
        pool.kill()
        pool.start()
        assert len(pool.rest.status().hosts) == 2
        wait_for(lambda: actions(pool).count("node given back") == 2)
        with session.capture("alone"):
            losses = together.train(200)
        assert [*found, losses.tolist()] == expected
    wait_for(lambda: alive_nodes(cluster) == 1)
