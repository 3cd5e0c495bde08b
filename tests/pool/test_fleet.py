"""When devices are measured."""

from __future__ import annotations

from djinn_lab.pool.devices.fleet import (
    CALIBRATE_AFTER_IDLE_S,
    CALIBRATE_AGAIN_AFTER_IDLE_S,
    CALIBRATE_WHEN_ASKED_S,
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


def test_a_device_that_is_to_be_measured_is_so_at_its_first_short_pause() -> None:
    fleet = Fleet([DevicePlan(DEVICE, "cuda", 2**30, 1)], {})
    fleet.worker_said(DEVICE, WorkerReady(DEVICE, "cuda", "a GPU", 2**30, 1, "2.13.0"))
    fleet.measure_again(DEVICE)
    assert fleet.due_for_measuring(set(), 0.0) is None
    assert fleet.due_for_measuring(set(), CALIBRATE_WHEN_ASKED_S) == DEVICE
