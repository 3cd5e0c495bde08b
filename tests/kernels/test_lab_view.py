"""What JupyterLab's sidebar says of the pool."""

from __future__ import annotations

from typing import Any

from djinn_lab.errors import AuthenticationError, PoolLost, PoolNotFound
from djinn_lab.kernels.lab_view import LabView, view_of, without_pool
from djinn_lab.memory.states import Phase
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.sessions import MemorySession
from djinn_lab.protocol.rest.status import DeviceView, PoolStatus

DEVICES = (
    DeviceView("cpu:0", state="busy", memory_bytes=2**30, used_bytes=2**29, queue_length=2),
    DeviceView("cpu:1", state="idle", memory_bytes=2**30),
)
STATUS = PoolStatus("p", user="ann", role="user", devices=DEVICES)


def session(name: str, user: str = "ann", **more: Any) -> MemorySession:
    return MemorySession(f"session-{name}", user, "connected", Phase.COMPUTE, name=name, **more)


def job(number: int, user: str = "ann", state: str = "QUEUED", **more: Any) -> JobView:
    defaults = {"session": f"session-{user}.ipynb", "cell": f"In [{number}]", "reason": "Next."}
    return JobView(f"job{number}", user=user, state=state, **(defaults | more))


def test_a_pool_at_rest() -> None:
    view = view_of(STATUS, [], [])
    assert view.line == "Djinn: 1 of 2 devices idle"
    assert [device.detail for device in view.devices] == [
        "2 waiting, 512.0 MiB of 1.0 GiB",
        "0 B of 1.0 GiB",
    ]
    assert view.devices[0].used == 0.5
    assert not view.jobs
    assert not view.sessions


def test_own_cells_are_listed_oldest_first_and_those_of_others_are_counted() -> None:
    sessions = [session("ann.ipynb"), session("bob.ipynb", "bob")]
    jobs = [
        job(4, position=2, estimate_s=75.0, reason="Waiting for cpu:0."),
        job(3, "bob"),
        job(2, "bob", "RUNNING", device="cpu:1"),
        job(1, state="RUNNING", device="cpu:0", ops_done=500, ops_total=2000, segments=1),
    ]
    view = view_of(STATUS, sessions, jobs)
    assert view.line == "Djinn: 1 running, 1 waiting"
    running, waiting = view.jobs
    assert (running.cell, running.state, running.done) == ("In [1] of ann.ipynb", "runs", 0.25)
    assert running.detail == "500 of 2,000 ops on cpu:0"
    assert waiting.state == "waits"
    assert waiting.detail == "2. in the queue. Waiting for cpu:0. About 1 min 15 s to go."
    assert view.waiting_of_others == 1
    assert "In [2] of bob.ipynb" in view.devices[1].detail


def test_a_cell_that_is_still_being_sent_has_no_bar() -> None:
    growing = job(1, state="RUNNING", device="cpu:0", ops_done=64, ops_total=128, segments=3)
    (row,) = view_of(STATUS, [], [growing]).jobs
    assert row.done is None
    assert row.detail == "64 of 128 ops so far on cpu:0"


def test_sessions_say_where_their_state_is() -> None:
    sessions = [
        session("a", tier="device", device="cpu:0", total_bytes=2**20),
        session("b", tier="host", total_bytes=2**20),
        session("c"),
        session("of bob", "bob"),
    ]
    details = [row.detail for row in view_of(STATUS, sessions, []).sessions]
    assert details == ["on cpu:0, 1.0 MiB", "parked in host memory, 1.0 MiB", "holds nothing yet"]


def test_a_device_that_does_not_start_says_why() -> None:
    broken = PoolStatus("p", devices=(DeviceView("cpu:0", state="lost", failure="it died three times"),))
    assert view_of(broken, [], []).devices[0].detail == "it died three times"


def test_without_a_pool_it_says_what_to_do() -> None:
    views: list[LabView] = [
        without_pool(kind("what.", "do this.")) for kind in (PoolNotFound, AuthenticationError, PoolLost)
    ]
    assert [view.connection for view in views] == ["absent", "refused", "lost"]
    assert {(view.message, view.advice) for view in views} == {("what.", "do this.")}
    assert [view.line for view in views] == [
        "Djinn: no pool",
        "Djinn: access refused",
        "Djinn: pool lost",
    ]
