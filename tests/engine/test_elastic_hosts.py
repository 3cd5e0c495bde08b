"""Nodes that come while cells wait and go when they are idle, with a simulated core and supply."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from djinn_lab import engine, jobs
from djinn_lab.jobs.autoscaling import ScalingLimits
from djinn_lab.pool.devices.launcher import HostHealth
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.execution.elastic_hosts import ElasticHosts
from djinn_lab.simulator.pool import MIB, SimulatedPool

LIMITS = ScalingLimits(nodes_max=3, idle_s=60.0, wait_s=20.0, cool_down_s=30.0, give_up_s=600.0)


class Supply:
    """A cluster of one node with one device, to which nodes come when :meth:`bring` says so."""

    def __init__(self) -> None:
        self.hosts = {"host0": "cpu:0"}
        self.asked: list[int] = []
        self.refuses = ""
        self.head_is_down = False
        self._arrived: list[DevicePlan] = []

    def bring(self) -> None:
        [[device]] = self.further(1)
        host = f"host{device.removeprefix('cpu:')}"
        self.hosts[host] = device
        self._arrived.append(DevicePlan(device, "cpu", 1000 * MIB, 1, host=host))

    def count(self) -> int:
        return len(self.hosts) - len(self._arrived)

    def arrived(self) -> Sequence[DevicePlan]:
        found, self._arrived = self._arrived, []
        return found

    def further(self, nodes: int) -> Sequence[tuple[str, ...]]:
        free = [f"cpu:{number}" for number in range(9) if f"cpu:{number}" not in self.hosts.values()]
        return [(device,) for device in free[:nodes]]

    def came_on_request(self, host: str) -> bool:
        return host != "host0"

    def scale(self, nodes: int) -> None:
        if self.head_is_down:
            raise ConnectionError("the cluster could not be asked for nodes: no head")
        self.asked.append(nodes)

    async def release(self, host: str) -> None:
        if self.refuses:
            raise OSError(self.refuses)
        del self.hosts[host]


class Bench:
    """A simulated pool, and the elastic hosts that follow it."""

    def __init__(self) -> None:
        self.pool, self.supply = SimulatedPool(3, 1000, devices_per_host=1), Supply()
        self.notes: list[tuple[str, str]] = []
        core = SimpleNamespace(
            queue=self.pool.engine.queue,
            accounts=self.pool.engine.accounts,
            clock=SimpleNamespace(now_s=lambda: self.pool.now_s),
        )
        self.driver: Any = SimpleNamespace(
            core=core,
            fleet=SimpleNamespace(add=lambda plan: None),
            launcher=SimpleNamespace(node_supply=lambda: self.supply, hosts=self._hosts, spawn=self._spawn),
            accounting=SimpleNamespace(
                audit=SimpleNamespace(note=lambda user, action, detail, status: self._note(action, detail)),
                starts=SimpleNamespace(wait_s=lambda job, now_s: None),
            ),
            handle=self.pool.send,
            device_left=self._left,
            node_requests="",
        )
        for device in ("cpu:1", "cpu:2"):
            self._left(device, "is not there yet")
        self.elastic = ElasticHosts(self.driver, LIMITS)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.pool.run(self.pool.now_s + 1.0)
            asyncio.run(self._follow())
            self.pool.engine.validate()

    async def _follow(self) -> None:
        await self.elastic.look()
        await asyncio.sleep(0)

    @property
    def alive(self) -> list[str]:
        return [view.device for view in self.pool.engine.queue.devices() if view.alive]

    def _hosts(self) -> list[HostHealth]:
        return [
            HostHealth(host, (device,), serves=device in self.alive)
            for host, device in self.supply.hosts.items()
        ]

    def _spawn(self, plan: DevicePlan, events: object) -> None:
        hardware = self.pool.devices[plan.device].hardware
        added = engine.DeviceAdded(self.pool.now_s, plan.device, plan.memory_bytes, hardware.host_bytes)
        self.pool.send(replace(added, link_bytes_per_s=hardware.link_bytes_per_s, host=plan.host))

    def _left(self, device: str, how: str) -> None:
        self.pool.send(engine.WorkerDied(self.pool.now_s, device))
        self.pool.send(jobs.DeviceLost(self.pool.now_s, device, how))
        self.pool.send(jobs.DeviceExpected(self.pool.now_s, device))

    def _note(self, action: str, detail: str) -> None:
        self.notes.append((action, detail))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def busy(bench: Bench, seconds: float = 100.0) -> None:
    """Have two sessions compute, of which one has to wait."""
    for name in ("ann", "bob"):
        bench.pool.open(name)
        bench.pool.submit(f"of-{name}", name, seconds=seconds, mib=1)


def test_cells_that_wait_bring_a_node_which_goes_when_it_is_idle(bench: Bench) -> None:
    busy(bench)
    bench.run(25)
    assert bench.supply.asked == [1, 2]
    assert bench.driver.node_requests.startswith("1 node is requested, since ")
    bench.supply.bring()
    bench.run(5)
    assert bench.alive == ["cpu:0", "cpu:1"]
    assert bench.driver.node_requests == ""
    bench.run(75)
    assert bench.pool.outcomes == {"of-ann": "DONE"}
    bench.run(200)
    assert bench.pool.outcomes == {"of-ann": "DONE", "of-bob": "DONE"}
    assert bench.alive == ["cpu:0"]
    assert bench.supply.asked == [1, 2, 1]
    assert [action for action, _ in bench.notes] == ["nodes requested", "node came", "node given back"]


def test_gang_of_more_devices_than_there_are_is_admitted_and_asks_at_once(bench: Bench) -> None:
    bench.pool.open("ann")
    now_s, terms = bench.pool.now_s, jobs.Terms(gang=3, gang_min=3)
    segment = jobs.SegmentSubmitted(
        *(now_s, "gang", 0, "ann", "ann", "NORMAL", 1), final=True, terms=terms, devices=3
    )
    bench.driver.handle(engine.SegmentArrived(now_s, segment, MIB, kept_bytes=MIB))
    bench.run(2)
    assert bench.supply.asked == [1, 3]
    assert "2 nodes are requested" in bench.driver.node_requests
    assert "needs 3 devices at once, more than there are" in bench.driver.node_requests


def test_node_whose_sessions_are_not_elsewhere_is_kept(bench: Bench) -> None:
    busy(bench)
    bench.run(25)
    bench.supply.bring()
    bench.supply.refuses = "what is parked there is on no other host"
    bench.run(300)
    assert bench.alive == ["cpu:0", "cpu:1"]
    assert ("node kept", f"host1, which was to be given back: {bench.supply.refuses}") in bench.notes


def test_node_that_does_not_come_is_given_up(bench: Bench) -> None:
    busy(bench, seconds=2000.0)
    bench.run(660)
    assert bench.supply.asked == [1, 2, 1]
    assert bench.notes[-1] == ("node request given up", "1 node did not come within 10 min 0 s")


def test_request_that_a_cluster_without_a_head_did_not_hear_is_repeated(bench: Bench) -> None:
    bench.run(5)
    bench.supply.head_is_down = True
    busy(bench)
    bench.run(25)
    assert bench.supply.asked == [1]
    failed = "the cluster could not be asked for nodes: no head. It is repeated until it succeeds."
    assert bench.notes.count(("node request failed", failed)) == 1
    bench.supply.head_is_down = False
    bench.run(2)
    assert bench.supply.asked == [1, 2]


def test_look_that_hangs_holds_nothing_up_and_the_next_waits_for_it(bench: Bench) -> None:
    async def follow_twice() -> int:
        answer = threading.Event()
        looked = []

        def hang(nodes: int) -> None:
            looked.append(nodes)
            answer.wait(timeout=10.0)

        bench.supply.scale = hang  # type: ignore[method-assign]
        bench.elastic.follow()
        await asyncio.sleep(0.05)
        bench.elastic.follow()
        await asyncio.sleep(0.05)
        answer.set()
        return len(looked)

    assert asyncio.run(follow_twice()) == 1
