"""Real workers find out by themselves where their devices are, and gangs of cells stay together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from gang_kit import DEVICE_BYTES, Search
from real_pool import PoolUnderTest

from djinn_lab.client.session import Session
from djinn_lab.errors import Refused
from djinn_lab.jobs import Terms
from djinn_lab.worker.numa import node_of_cores

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("numa"), "cpu:3", DEVICE_BYTES) as running:
        yield running


@pytest.fixture
def session(pool: PoolUnderTest) -> Iterator[Session]:
    with pool.session() as session:
        yield session


def labels(pool: PoolUnderTest) -> list[tuple[str, ...]]:
    return [device.labels for device in pool.rest.status().devices]


def djinn_lab(pool: PoolUnderTest, *arguments: str) -> str:
    command = [sys.executable, "-m", "djinn_lab.cli", *arguments]
    answer = subprocess.run(command, env=pool.environment, capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def test_a_device_has_the_node_of_this_machine_and_cells_may_ask_for_it(
    pool: PoolUnderTest, session: Session
) -> None:
    node = node_of_cores(os.sched_getaffinity(0))
    own = ("kind=cpu",) if node is None else ("kind=cpu", f"numa={node}")
    assert labels(pool) == [own] * 3
    assert djinn_lab(pool, "device", "cpu:1") == f"cpu:1: {', '.join(own)}."
    assert f"{', '.join(own)}; 2 an hour" in djinn_lab(pool, "device", "cpu:1", "--price", "2")
    assert pool.rest.status().devices[1].own_labels == own
    with session.capture(terms=Terms(target=",".join(own))) as cell:
        x = torch.ones(3) + 1
    assert x.tolist() == [2, 2, 2]
    assert cell.report.device is not None
    with (
        pytest.raises(Refused, match="no device is numa=77"),
        session.capture(terms=Terms(target="numa=77")),
    ):
        _ = torch.ones(3) + 1
    djinn_lab(pool, "device", "cpu:1", "--clear")


def test_the_members_of_a_gang_are_on_one_node(pool: PoolUnderTest, session: Session) -> None:
    """Devices have labels of an operator, since this machine may have one node only."""
    for device, node in (("cpu:0", 7), ("cpu:1", 8), ("cpu:2", 8)):
        assert f"numa={node}" in djinn_lab(pool, "device", device, "--label", f"numa={node}")
    alone, together = Search(), Search()
    expected = alone.train(30).tolist()
    with session.capture("search", terms=Terms(gang=2, gang_min=2)) as cell:
        losses = together.train(30)
    assert losses.tolist() == expected
    assert cell.report.gang == "It ran on 2 devices: cpu:1, cpu:2."
    for device in ("cpu:0", "cpu:1", "cpu:2"):
        djinn_lab(pool, "device", device, "--clear")
