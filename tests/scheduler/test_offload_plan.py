"""Graphs that need more memory than a device has, on devices with tiers below them."""

from __future__ import annotations

import pytest
from programs import Script

from djinn_lab.errors import DeviceMemoryError
from djinn_lab.scheduler import DeviceProfile, Scheduler
from djinn_lab.scheduler.offload import offload_plan
from djinn_lab.srg.graph import SRG

KIB = 2**10
ROW = (KIB // 4,)
"""The shape of a value of one KiB."""


def chain(length: int) -> SRG:
    """Sums over values that the session holds, each of one KiB."""
    script = Script()
    values = [script.source(ROW) for _ in range(length)]
    total = values[0]
    for value in values[1:]:
        total = script.op("aten.add.Tensor", total, value)
    return SRG.from_program(script.program(keep=(total,)))


def device(memory_kib: int, below_kib: int = 0, name: str = "cpu:0") -> DeviceProfile:
    profile = DeviceProfile.default("cpu", name, memory_kib * KIB)
    return DeviceProfile(
        name, "cpu", memory_kib * KIB, profile.curves, below_bytes=below_kib * KIB, link_bytes_per_s=KIB
    )


def test_the_smaller_the_device_the_more_is_moved() -> None:
    srg = chain(8)
    moved = []
    for memory_kib in range(3, 12):
        plan = offload_plan(srg, range(len(srg.nodes)), memory_kib * KIB)
        assert plan is not None
        moved.append(plan.moved_bytes)
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 0
    assert moved[-1] == 0
    assert offload_plan(srg, range(len(srg.nodes)), 2 * KIB) is None


def test_the_schedule_says_what_is_moved_and_counts_its_time() -> None:
    schedule = Scheduler(devices=[device(4, below_kib=100)]).create_schedule(chain(8))
    assert schedule.offload is not None
    moved = schedule.offload.moved_bytes
    assert moved > 0
    assert schedule.predicted_s == pytest.approx(schedule.compute_s + moved / KIB)
    assert any(line.startswith("Offload: cpu:0 has 4.0 KiB") for line in schedule.explain())


def test_a_device_with_memory_for_all_of_it_comes_first() -> None:
    roomy = device(100, name="cpu:1")
    schedule = Scheduler(devices=[device(4, below_kib=100), roomy]).create_schedule(chain(8))
    assert (schedule.device.device, schedule.offload) == ("cpu:1", None)


def test_of_two_that_offload_the_one_that_moves_less_is_taken() -> None:
    larger = device(6, below_kib=100, name="cpu:1")
    schedule = Scheduler(devices=[device(4, below_kib=100), larger]).create_schedule(chain(8))
    assert schedule.device.device == "cpu:1"


def test_what_others_hold_is_parked_first() -> None:
    crowded = DeviceProfile(
        "cpu:0", "cpu", 20 * KIB, device(1).curves, used_bytes=15 * KIB, below_bytes=100 * KIB
    )
    schedule = Scheduler(devices=[crowded]).create_schedule(chain(8))
    assert "Others: the 15.0 KiB that they hold on cpu:0 are parked first." in schedule.explain()


@pytest.mark.parametrize("small", [device(4), device(4, below_kib=2), device(2, below_kib=100)])
def test_without_space_below_or_for_one_op_it_is_refused(small: DeviceProfile) -> None:
    with pytest.raises(DeviceMemoryError, match=r"needs 10\.0 KiB at its peak"):
        Scheduler(devices=[small]).create_schedule(chain(8))
