"""A pool whose devices are on the nodes of a Ray cluster: what users see is what one machine gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest
import torch
from gang_kit import TOGETHER, Search
from ray_nodes import begin_to_leave, three_nodes
from real_pool import PoolUnderTest, device_row, kill_host, kill_worker, until_back, wait_for
from torch import nn

from djinn_lab.client.session import Session
from djinn_lab.errors import OptionError, PoolError
from djinn_lab.jobs import Terms
from djinn_lab.memory import HostLinkMeasured
from djinn_lab.pool.launch import start_pool
from djinn_lab.protocol.rest.status import DeviceView

LARGE = 2**21
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]  # a cluster may need several tries to start


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of three nodes."""
    if "SWEEP_RAY" not in os.environ:
        pytest.skip(
            "make test begins with a part of this, make sweep-ray does all: Ray starts slowly beside others"
        )
    with three_nodes() as address:
        yield address


@pytest.fixture(scope="module")
def pool(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    """A pool with one device on each node."""
    more = {"engine": "ray", "address": cluster, "host_bytes": 2**28, "link_bytes_per_s": 0}
    with PoolUnderTest(tmp_path_factory.mktemp("ray"), "cpu:1", 2**28, **more) as pool:
        yield pool


@pytest.fixture
def session(pool: PoolUnderTest) -> Iterator[Session]:
    with pool.session() as session:
        yield session


def host_of(row: DeviceView) -> str:
    return next(label.removeprefix("host=") for label in row.labels if label.startswith("host="))


def trained(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Train for a few steps, with dropout, and return the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def network() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Dropout(0.3), nn.Linear(1024, 64))


def is_copied(pool: PoolUnderTest, session: Session) -> bool:
    """Return whether all of a session is parked, beside the device."""
    row = next(row for row in pool.rest.memory().sessions if row.session == session.welcome.session)
    return row.stored_bytes == row.total_bytes > 0


@pytest.mark.cluster
def test_each_node_has_a_device_with_its_name(pool: PoolUnderTest) -> None:
    rows = pool.rest.status().devices
    assert not pool.rest.status().cluster_dashboard, "the cluster was started without one"
    assert [row.device for row in rows] == ["cpu:0", "cpu:1", "cpu:2"]
    assert len({host_of(row) for row in rows}) == 3
    hosts = pool.rest.status().hosts
    assert [(host.host, host.devices, host.state) for host in hosts] == [
        (host_of(row), (row.device,), "serves") for row in rows
    ]


@pytest.mark.cluster
@pytest.mark.parametrize("device", ["cpu:0", "cpu:1", "cpu:2"])
def test_a_cell_computes_the_same_on_every_host(session: Session, device: str) -> None:
    """Uploads and results of a few megabytes and of a few bytes, random numbers, state between cells."""
    rows = torch.randn(2048, 512)
    plain, captured = network(), network()
    torch.manual_seed(9)
    expected = [trained(plain, rows).tolist() for _ in range(2)]
    large = (rows @ rows.t()).tolist()
    torch.manual_seed(9)
    found = []
    for _ in range(2):
        with session.capture("train", terms=Terms(target=device)) as cell:
            losses = trained(captured, rows)
        found.append(losses.tolist())
        assert cell.report.device == device
    with session.capture("large", terms=Terms(target=device)):
        product = rows @ rows.t()
    assert found == expected
    assert product.tolist() == large


def test_a_host_is_a_target(pool: PoolUnderTest, session: Session) -> None:
    row = pool.rest.status().devices[2]
    with session.capture("there", terms=Terms(target=f"host={host_of(row)}")) as cell:
        value = torch.ones(4) + 1
    assert cell.report.device == row.device
    assert value.tolist() == [2.0] * 4


@pytest.mark.cluster
def test_a_session_moves_between_hosts_bit_for_bit(session: Session) -> None:
    plain, captured = network(), network()
    rows = torch.randn(2048, 512)
    torch.manual_seed(9)
    expected = [trained(plain, rows).tolist() for _ in range(4)]
    torch.manual_seed(9)
    found, places = [], []
    for device in ("cpu:0", "cpu:1", "cpu:2", "cpu:0"):
        with session.capture("train", terms=Terms(target=device)) as cell:
            losses = trained(captured, rows)
        found.append(losses.tolist())
        places.append(cell.report.device)
    assert places == ["cpu:0", "cpu:1", "cpu:2", "cpu:0"]
    assert found == expected


def test_the_pool_learns_how_fast_the_links_are(pool: PoolUnderTest, session: Session) -> None:
    hosts = {host.host for host in pool.rest.status().hosts}
    for device in ("cpu:1", "cpu:2"):
        with session.capture("upload", terms=Terms(target=device)):
            total = torch.ones(2**20).sum() + torch.rand(2**20).sum()
        assert total.item() > 2**20

    def known() -> bool:
        events = [line for line in pool.rest.events(limit=1000) if line.event == "HostLinkMeasured"]
        links = [msgspec.json.decode(line.detail, type=HostLinkMeasured) for line in events]
        assert all(link.host in hosts and link.bytes_per_s > 0 for link in links)
        return bool(links)

    wait_for(known)


@pytest.mark.cluster
def test_a_gang_takes_devices_of_several_hosts(session: Session) -> None:
    alone, together = Search(), Search()
    expected = alone.train(200).tolist()
    with session.capture("search", terms=Terms(gang=2, gang_min=2)) as cell:
        losses = together.train(200)
    assert losses.tolist() == expected
    assert cell.report.gang.startswith("It ran on 2 devices") or cell.report.gang == TOGETHER


def test_a_killed_worker_loses_no_variable(pool: PoolUnderTest, session: Session) -> None:
    rows = torch.randn(256, 512)
    plain, captured = network(), network()
    torch.manual_seed(9)
    expected = [trained(plain, rows).tolist() for _ in range(2)]
    torch.manual_seed(9)
    with session.capture("first", terms=Terms(target="cpu:1")):
        first = trained(captured, rows)
    found = [first.tolist()]
    kill_worker(pool, "cpu:1")
    with session.capture("second"):
        second = trained(captured, rows)
    assert [*found, second.tolist()] == expected


@pytest.mark.cluster
def test_a_host_that_is_lost_costs_no_cell(pool: PoolUnderTest, session: Session) -> None:
    """What was computed there is computed again elsewhere, and its devices come back."""
    rows = torch.randn(256, 512)
    plain, captured = network(), network()
    torch.manual_seed(9)
    expected = [trained(plain, rows).tolist() for _ in range(2)]
    torch.manual_seed(9)
    with session.capture("first", terms=Terms(target="cpu:2")) as cell:
        first = trained(captured, rows)
    found = [first.tolist()]
    before = device_row(pool, cell.report.device)
    kill_host(pool, before.device)
    with session.capture("second"):
        second = trained(captured, rows)
    assert [*found, second.tolist()] == expected
    until_back(pool, before.device, before.pid)
    lost = next(host for host in pool.rest.status().hosts if before.device in host.devices)
    assert (lost.host, lost.state, lost.losses) == (host_of(before), "serves", 1)


def test_what_a_lost_host_had_parked_comes_from_another_one(pool: PoolUnderTest, session: Session) -> None:
    """Twice: after the first loss, what is left with one host only gets a second copy again."""
    torch.manual_seed(3)
    expected = torch.randn(LARGE)
    torch.manual_seed(3)
    with session.capture("first", terms=Terms(target="cpu:1")) as cell:
        made = torch.randn(LARGE)
    device = cell.report.device
    for _ in range(2):
        wait_for(lambda: is_copied(pool, session))
        kill_host(pool, device)
        with session.capture("next") as cell:
            expected, made = expected * 2.0, made * 2.0
        assert "restored from copies" in cell.report.recovery
        assert "replay" not in cell.report.recovery
        device = cell.report.device
    assert torch.equal(made.cpu(), expected)


def test_a_killed_pools_parked_sessions_are_taken_over_and_have_second_copies(
    pool: PoolUnderTest, session: Session
) -> None:
    """Killed twice, the next pool has what all hosts had; then a host is lost."""
    torch.manual_seed(3)
    expected = torch.randn(LARGE)
    torch.manual_seed(3)
    with session.capture("first", terms=Terms(target="cpu:2")) as cell:
        made = torch.randn(LARGE)
    for _ in range(2):
        wait_for(lambda: is_copied(pool, session))
        pool.kill()
        pool.start()
        with session.capture("next") as cell:
            expected, made = expected * 2.0, made * 2.0
        assert "pool killed and started again" in cell.report.recovery
        assert "replay" not in cell.report.recovery
    wait_for(lambda: is_copied(pool, session))
    kill_host(pool, cell.report.device)
    with session.capture("last") as cell:
        expected, made = expected * 2.0, made * 2.0
    assert "restored from copies" in cell.report.recovery
    assert torch.equal(made.cpu(), expected)


def test_the_doctor_looks_at_every_node(cluster: str, pool: PoolUnderTest) -> None:
    command = [sys.executable, "-m", "djinn_lab.cli", "doctor", "--json", "--address", cluster]
    answer = subprocess.run(command, env=pool.environment, capture_output=True, text=True, check=False)
    found = {check["name"]: check for check in json.loads(answer.stdout)}
    for host in pool.rest.status().hosts:
        assert found[f"node {host.host}: versions"]["status"] == "ok"
        assert f"node {host.host}: shared memory" in found


def test_an_address_at_which_nothing_answers_is_said_at_once() -> None:
    with pytest.raises(OptionError, match="is that of a Ray cluster"):
        start_pool(address="127.0.0.1:1")
    with pytest.raises(OptionError, match="unknown"):
        start_pool(engine="slurm")


def test_a_pool_without_its_cluster_does_not_start(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path_factory.mktemp("none")
    directory.chmod(0o700)
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(directory))
    with pytest.raises(PoolError, match=r"No Ray cluster answers at 127\.0\.0\.1:1"):
        start_pool(engine="ray", address="127.0.0.1:1")


def test_a_node_that_is_about_to_leave_is_emptied_first(
    cluster: str, pool: PoolUnderTest, session: Session
) -> None:
    """A session goes on elsewhere, and nothing starts there. The last test: the node does not come back."""
    plain, captured = network(), network()
    rows = torch.randn(256, 512)
    torch.manual_seed(9)
    expected = [trained(plain, rows).tolist() for _ in range(2)]
    torch.manual_seed(9)
    with session.capture("first", terms=Terms(target="cpu:2")) as cell:
        first = trained(captured, rows)
    found, host = [first.tolist()], host_of(device_row(pool, "cpu:2"))
    begin_to_leave(cluster, host.rpartition("-")[2])
    wait_for(lambda: device_row(pool, "cpu:2").cordoned)
    assert next(one for one in pool.rest.status().hosts if one.host == host).state == "leaves"
    with session.capture("second") as cell:
        second = trained(captured, rows)
    assert cell.report.device != "cpu:2"
    assert [*found, second.tolist()] == expected
