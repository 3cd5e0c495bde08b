"""When devices are measured."""

from __future__ import annotations

from djinn_lab.pool.devices.fleet import (
    CALIBRATE_AFTER_IDLE_S,
    CALIBRATE_AGAIN_AFTER_IDLE_S,
    CALIBRATE_CPU_AFTER_IDLE_S,
    Fleet,
)
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.protocol.worker import DeviceNotMeasured, WorkerReady

DEVICE = "cuda:0"


def test_a_device_whose_measurement_was_given_up_is_measured_later() -> None:
    fleet = Fleet([DevicePlan(DEVICE, "cuda", 2**30, 1)], {})
    fleet.worker_said(DEVICE, WorkerReady(DEVICE, "cuda", "a GPU", 2**30, 1, "2.13.0"))
    assert fleet.due_for_measuring(set(), 0.0) is None
    assert fleet.due_for_measuring(set(), CALIBRATE_AFTER_IDLE_S) == DEVICE
    assert fleet.due_for_measuring(set(), 2 * CALIBRATE_AFTER_IDLE_S) is None  # it is under way
    fleet.worker_said(DEVICE, DeviceNotMeasured("another process has begun to use it"))
    began_s = 2 * CALIBRATE_AFTER_IDLE_S
    assert fleet.due_for_measuring(set(), began_s) is None
    assert fleet.due_for_measuring(set(), began_s + CALIBRATE_AFTER_IDLE_S) is None
    assert fleet.due_for_measuring(set(), began_s + CALIBRATE_AGAIN_AFTER_IDLE_S) == DEVICE


def test_a_cpu_is_measured_in_a_break_unless_one_asks_for_it() -> None:
    for asked, after_s in ((False, CALIBRATE_CPU_AFTER_IDLE_S), (True, CALIBRATE_AFTER_IDLE_S)):
        fleet = Fleet([DevicePlan("cpu:0", "cpu", 2**30, 1)], {})
        fleet.worker_said("cpu:0", WorkerReady("cpu:0", "cpu", "a CPU", 2**30, 1, "2.13.0"))
        if asked:
            fleet.measure_again("cpu:0")
        assert fleet.due_for_measuring(set(), 0.0) is None
        assert fleet.due_for_measuring(set(), after_s - 0.1) is None
        assert fleet.due_for_measuring(set(), after_s) == "cpu:0"
