"""Ray's object store has no space for what a cell reads, and neither has its disk."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from ray_nodes import STORE_BYTES, three_nodes
from real_pool import PoolUnderTest, wait_for

from djinn_lab.errors import PoolError
from djinn_lab.jobs import Terms

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture
def pool(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PoolUnderTest]:
    """A pool on a cluster whose nodes take their disks for full."""
    if "SWEEP_RAY" not in os.environ:
        pytest.skip("make sweep-ray does this: Ray starts slowly beside other tests")
    monkeypatch.setenv("RAY_local_fs_capacity_threshold", "0.0")
    with three_nodes() as address:
        more = {"engine": "ray", "address": address, "host_bytes": 2**28, "link_bytes_per_s": 0}
        with PoolUnderTest(tmp_path_factory.mktemp("ray"), "cpu:1", 2**30, **more) as pool:
            yield pool


def far_device(pool: PoolUnderTest) -> str:
    """Return a device of a node to which bytes go through the object store: not the pool's own, which any
    device's may be."""
    for device in ("cpu:0", "cpu:1", "cpu:2"):
        plain = torch.rand(2**18)
        with pool.session() as session, session.capture("small", terms=Terms(target=device)):
            plain.sum().item()
    hosts = wait_for(lambda: [host for host in pool.rest.status().hosts if host.received_bytes])
    return str(hosts[0].devices[0])


def test_result_that_is_too_large_fails_with_the_cure_and_is_there_in_parts(pool: PoolUnderTest) -> None:
    far = far_device(pool)
    with pool.session() as session:
        with session.capture("large", terms=Terms(target=far)):
            large = torch.ones(2 * STORE_BYTES // 4)
        with pytest.raises(PoolError, match=r"could not be sent from host .* object store is full"):
            large.tolist()
        with session.capture("after") as cell:
            total = large.sum()
        assert (total.item(), cell.report.device) == (2 * STORE_BYTES // 4, far)
    assert [host.losses for host in pool.rest.status().hosts] == [0, 0, 0]


def test_cell_that_reads_too_much_fails_with_the_cure_and_its_host_and_session_go_on(
    pool: PoolUnderTest,
) -> None:
    large, far = torch.ones(2 * STORE_BYTES // 4), far_device(pool)
    with pool.session() as session:
        with session.capture("first", terms=Terms(target=far)):
            value = torch.arange(10.0) * 2
        with (
            pytest.raises(PoolError, match=r"could not be sent to host .* object store is full"),
            session.capture("large", terms=Terms(target=far)),
        ):
            (large + value.sum()).sum().item()
        with session.capture("after") as cell:
            total = value.sum()
        assert (total.item(), cell.report.device) == (90.0, far)
    assert [host.losses for host in pool.rest.status().hosts] == [0, 0, 0]
