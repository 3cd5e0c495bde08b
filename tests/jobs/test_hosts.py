"""Devices of several hosts: a move to another host costs the link between them as well."""

from __future__ import annotations

import pytest
from driven_pool import DrivenPool, request
from msgspec.structs import replace

from djinn_lab.jobs.decision import POLICIES
from djinn_lab.jobs.placement import SCORINGS, FreeCapacity
from djinn_lab.jobs.request import ComputeNode, Demand, Request


def devices(*hosts: str) -> list[ComputeNode]:
    return [
        ComputeNode(f"gpu:{number}", labels=frozenset({"kind=cuda", f"host={host}"}))
        for number, host in enumerate(hosts)
    ]


def mine(other_host_s: float, move_s: float = 1.0) -> Request:
    """Return a request whose state lies on gpu:0."""
    return replace(request("mine", 9, seconds=10, home="gpu:0", move_s=move_s), other_host_s=other_host_s)


def where_mine_runs(hosts: tuple[str, ...], other_host_s: float, busy: tuple[str, ...]) -> str:
    """Return the device on which it starts, where others run for ten seconds on ``busy``."""
    pool = DrivenPool(devices(*hosts), POLICIES["default"])
    for number, device in enumerate(busy):
        pool.arrive(request(f"busy{number}", number, seconds=10, home=device, move_s=1000.0))
    pool.arrive(mine(other_host_s))
    pool.run()
    return {job: where[0][0] for job, where, _, _ in pool.intervals}["mine"]


@pytest.mark.parametrize(("other_host_s", "runs_on"), [(0.0, "gpu:1"), (30.0, "gpu:0")])
def test_a_session_waits_for_its_home_where_the_link_to_another_host_is_slow(
    other_host_s: float, runs_on: str
) -> None:
    assert where_mine_runs(("a", "b"), other_host_s, busy=("gpu:0",)) == runs_on


def test_it_moves_within_its_host_however_slow_the_link_is() -> None:
    assert where_mine_runs(("a", "b", "a"), 30.0, busy=("gpu:0",)) == "gpu:2"


def test_a_move_to_another_host_takes_the_time_of_its_link() -> None:
    pool = DrivenPool(devices("a", "b"), POLICIES["default"])
    assert pool.cluster.move_s(mine(30.0), "gpu:0") == 0
    assert pool.cluster.move_s(mine(30.0), "gpu:1") == 31
    same_host = DrivenPool(devices("a", "a"), POLICIES["default"])
    assert same_host.cluster.move_s(mine(30.0), "gpu:1") == 1
    without_hosts = DrivenPool([ComputeNode("gpu:0"), ComputeNode("gpu:1")], POLICIES["default"])
    assert without_hosts.cluster.move_s(mine(0.0), "gpu:1") == 1


@pytest.mark.parametrize("scoring", ["default", "mixed_30_20_20_20_10"])
def test_of_equally_good_devices_those_of_the_same_host_go_first(scoring: str) -> None:
    capacity = FreeCapacity(devices("b", "a", "b", "a"))
    capacity.take(Demand(), (("gpu:1", 1),))
    placed = capacity.place(Demand(), SCORINGS[scoring], home="gpu:1")
    assert placed is not None
    assert placed.where == (("gpu:3", 1),)
    assert placed.scores["locality"] > 0


def test_preemption_takes_the_link_into_account() -> None:
    """Two equal victims: on another host, and on the host of the preemptor's state."""
    pool = DrivenPool(devices("a", "b", "a"), POLICIES["default"], park_s=0.5)
    for number, device in enumerate(("gpu:0", "gpu:1", "gpu:2")):
        seconds = 1000 if device == "gpu:0" else 100
        pool.arrive(request(f"train{number}", number, seconds=seconds, home=device, move_s=1000.0))
    urgent = request("urgent", 9, rank=0, at_s=10, seconds=200, account="bob", home="gpu:0", move_s=1.0)
    pool.arrive(replace(urgent, other_host_s=30.0))
    pool.run()
    [(_, victim, preemptor)] = pool.preemptions
    assert preemptor == "urgent"
    assert victim != "train1"
