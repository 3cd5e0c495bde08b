"""Devices know on which NUMA node they are, cells may ask for it, and gangs stay on one."""

from __future__ import annotations

import pytest

from djinn_lab.jobs import (
    DeviceAdded,
    DeviceDescribed,
    DeviceLost,
    IllegalEvent,
    SegmentFinished,
    SegmentSubmitted,
    StartSegment,
    Terms,
)
from djinn_lab.jobs.machine.queue import JobQueue


def opened(*numa: int | None) -> JobQueue:
    queue = JobQueue()
    for number, node in enumerate(numa):
        queue.handle(DeviceAdded(0.0, f"cuda:{number}", numa_node=node))
    return queue


def submitted(job: str, gang: int = 1, target: str | None = None, at_s: float = 0.0) -> SegmentSubmitted:
    return SegmentSubmitted(
        at_s,
        job,
        0,
        f"session of {job}",
        "ann",
        "NORMAL",
        8,
        True,
        target,
        terms=Terms(gang=gang, gang_min=gang),
        devices=gang,
    )


def runs_on(queue: JobQueue, event: SegmentSubmitted) -> list[str]:
    """Submit a segment and return the devices that it starts on, its session's first."""
    return next(
        [command.device, *command.members]
        for command in queue.handle(event)
        if isinstance(command, StartSegment) and command.job == event.job
    )


def labels(queue: JobQueue, device: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return all labels of a device, and its own labels."""
    view = next(view for view in queue.snapshot().devices if view.device == device)
    return view.labels, view.own_labels


def test_a_cell_runs_on_the_node_it_asks_for() -> None:
    queue = opened(0, 1, None)
    assert labels(queue, "cuda:1") == (("kind=cuda", "numa=1"), ("kind=cuda", "numa=1"))
    assert labels(queue, "cuda:2") == (("kind=cuda",), ("kind=cuda",))
    assert runs_on(queue, submitted("there", target="numa=1")) == ["cuda:1"]
    with pytest.raises(IllegalEvent, match=r"no device is numa=2 .*cuda:1 \(kind=cuda, numa=1\)"):
        queue.handle(submitted("nowhere", target="numa=2"))


def test_operators_know_better_until_they_take_it_back() -> None:
    queue = opened(0, None)
    queue.handle(DeviceDescribed(1.0, "cuda:0", ("gpu=h200", "numa=4")))
    queue.handle(DeviceDescribed(1.0, "cuda:1", ("numa=4",)))
    assert labels(queue, "cuda:0") == (("gpu=h200", "kind=cuda", "numa=4"), ("kind=cuda",))
    assert labels(queue, "cuda:1") == (("kind=cuda", "numa=4"), ("kind=cuda",))
    queue.handle(DeviceDescribed(2.0, "cuda:0", ("gpu=h200",)))
    assert labels(queue, "cuda:0") == (("gpu=h200", "kind=cuda", "numa=0"), ("kind=cuda", "numa=0"))


def test_operators_cannot_give_a_device_another_kind() -> None:
    queue = opened(0)
    with pytest.raises(IllegalEvent, match="the label 'kind=cpu' beside its own, kind=cuda"):
        queue.handle(DeviceDescribed(1.0, "cuda:0", ("kind=cpu",)))
    queue.handle(DeviceDescribed(1.0, "cuda:0", ("kind=cuda",)))
    assert labels(queue, "cuda:0") == (("kind=cuda", "numa=0"), ("kind=cuda", "numa=0"))


def test_a_worker_that_comes_back_says_anew_where_it_is() -> None:
    queue = opened(0)
    queue.handle(DeviceLost(1.0, "cuda:0", "killed"))
    queue.handle(DeviceAdded(2.0, "cuda:0", numa_node=1))
    assert labels(queue, "cuda:0")[0] == ("kind=cuda", "numa=1")


def test_gang_without_a_session_device_starts_on_a_node_with_capacity() -> None:
    queue = opened(0, 1, 1, 0, 0)
    assert runs_on(queue, submitted("three", gang=3)) == ["cuda:0", "cuda:3", "cuda:4"]
    assert runs_on(queue, submitted("two", gang=2)) == ["cuda:1", "cuda:2"]
    queue = opened(0, 1, 1)
    assert runs_on(queue, submitted("single")) == ["cuda:0"]
    assert runs_on(queue, submitted("pair", gang=2)) == ["cuda:1", "cuda:2"]
    queue = opened(0, 1, 1)
    assert runs_on(queue, submitted("pair", gang=2)) == ["cuda:1", "cuda:2"]


def test_a_gang_larger_than_a_node_has_its_members_wherever_they_fit() -> None:
    queue = opened(0, 1, 1)
    assert sorted(runs_on(queue, submitted("all", gang=3))) == ["cuda:0", "cuda:1", "cuda:2"]
    queue = opened(0, 1, 0, 1)
    assert runs_on(queue, submitted("single")) == ["cuda:0"]
    assert runs_on(queue, submitted("another", target="numa=1")) == ["cuda:1"]
    assert sorted(runs_on(queue, submitted("apart", gang=2))) == ["cuda:2", "cuda:3"]


def test_where_nodes_are_unknown_the_first_devices_are_taken() -> None:
    for queue in (opened(None, None, None), opened(0, None, None), opened(1, 1, 1)):
        assert runs_on(queue, submitted("single")) == ["cuda:0"]
        queue.handle(SegmentFinished(1.0, "single", 0, "done", 8))
        assert runs_on(queue, submitted("pair", gang=2, at_s=1.0)) == ["cuda:1", "cuda:0"]
