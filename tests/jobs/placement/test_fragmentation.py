"""Fragmentation, by the definition of Weng et al. (USENIX ATC'23), on nodes that can be counted by hand."""

from __future__ import annotations

import pytest

from djinn_lab.jobs.placement import Free, FreeCapacity, fragmentation
from djinn_lab.jobs.placement.scores import Fragmentation
from djinn_lab.jobs.request import ComputeNode, Demand

HALF = Demand(device_milli=500, cpu_milli=1000, together="one_node")
WHOLE = Demand(cpu_milli=4000, together="one_node")
PAIR = Demand(members=2, members_min=2, cpu_milli=4000, together="one_node")
HOST = Demand(device_milli=0, cpu_milli=1000, together="one_node")


@pytest.mark.parametrize(
    ("free", "fragment_milli"),
    [
        (Free(2, 64_000), {HALF: 0, WHOLE: 0, PAIR: 0, HOST: 2000}),
        (Free(1, 64_000, 0, ((600,),)), {HALF: 400, WHOLE: 400, PAIR: 1400, HOST: 1400}),
        (Free(1, 64_000, 0, ((500,),)), {HALF: 0, WHOLE: 500, PAIR: 1500, HOST: 1500}),
        (Free(2, 3_000), {HALF: 0, WHOLE: 2000, PAIR: 2000, HOST: 2000}),
        (Free(0, 64_000), {HALF: 0, WHOLE: 0, PAIR: 0, HOST: 0}),
    ],
)
def test_what_the_next_request_cannot_use(free: Free, fragment_milli: dict[Demand, int]) -> None:
    for demand, milli in fragment_milli.items():
        assert Fragmentation([(demand, 1.0)]).fragment_milli(free) == milli
    mixed = Fragmentation([(demand, 0.25) for demand in fragment_milli])
    assert mixed.fragment_milli(free) == pytest.approx(sum(fragment_milli.values()) / 4)


def test_a_share_goes_where_it_leaves_the_most_for_the_usual_requests() -> None:
    """The fullest node would be ``tight``, but its remainder suits no usual request."""
    typical = [(Demand(device_milli=600, together="one_node"), 0.5), (HALF, 0.5)]
    capacity = FreeCapacity(
        [ComputeNode("tight", devices=1, cpu_milli=64_000), ComputeNode("whole", devices=1, cpu_milli=64_000)]
    )
    capacity.take(Demand(device_milli=400), (("tight", 1),))
    small = Demand(device_milli=300, together="one_node")
    default = capacity.place(small)
    learned = capacity.place(small, fragmentation(typical))
    assert default is not None
    assert learned is not None
    assert (default.where, learned.where) == ((("tight", 1),), (("whole", 1),))


def test_work_without_devices_stays_away_from_free_ones() -> None:
    capacity = FreeCapacity(
        [ComputeNode("idle", devices=1, cpu_milli=4_000), ComputeNode("busy", devices=1, cpu_milli=4_000)]
    )
    capacity.take(Demand(cpu_milli=1000), (("busy", 1),))
    placed = capacity.place(HOST, fragmentation([(WHOLE, 1.0)]))
    assert placed is not None
    assert placed.where == (("busy", 1),)
