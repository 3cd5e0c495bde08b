"""The page Devices: rows, details and questions, from snapshots made by hand."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from djinn_lab.dashboard.devices.actions import cordon_question
from djinn_lab.dashboard.devices.details import details_html
from djinn_lab.dashboard.devices.tables import (
    device_rows,
    devices_sentence,
    host_rows,
    hosts_heading,
    hosts_sentence,
    waiting_for,
)
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.overview import devices_html
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.queue import QueueView, RunningJob, WaitingJob
from djinn_lab.protocol.rest.sessions import SessionView
from djinn_lab.protocol.rest.status import DeviceView, HostView, PoolStatus

BUSY = DeviceView(
    "cpu:0",
    kind="cpu",
    name="A <processor>",
    state="busy",
    memory_bytes=2**30,
    used_bytes=2**28,
    threads=2,
    job="gang",
    labels=("cpu=x86", "numa=1", "site=lab"),
    own_labels=("cpu=x86", "numa=1"),
    taints=("vision",),
    workers={"ann": 4711, "": 4712},
    pid=4711,
    restarts=1,
)
IDLE = DeviceView("cpu:1", state="idle", memory_bytes=2**30)
GANG = RunningJob(
    "gang", user="ann", device="cpu:0", since=40.0, ends_at=160.0, members=("cpu:1",), ran_s=30.0
)
WAITING = (
    WaitingJob("b" * 32, user="bob", device="cpu:0", position=1, state="QUEUED", why="cpu:0 is busy."),
    WaitingJob("c" * 32, user="cy", device=None, position=2, state="QUEUED", why="All are busy."),
    WaitingJob("d" * 32, user="dee", device="cpu:1", position=3, state="QUEUED", why="cpu:1 is busy."),
)


def snapshot(*devices: DeviceView, running: tuple[RunningJob, ...] = (GANG,)) -> Snapshot:
    return Snapshot(
        connection="live",
        status=PoolStatus("pool", now=100.0, devices=devices),
        jobs=(JobView("gang", session="s", cell="In [3] <b>"),),
        sessions=(SessionView("s", name="fit.ipynb"),),
        queue=QueueView(now=100.0, waiting=WAITING, running=running, waiting_count=3),
    )


def test_hosts_are_rows_and_the_overview_has_devices_by_host() -> None:
    devices = (replace(BUSY, host="north"), replace(IDLE, host="south<b>"))
    hosts = (
        HostView("north", "serves", ("cpu:0",), 0, 2**20, 2**10, 5e8, 2**22),
        HostView("south<b>", "lost", ("cpu:1",), losses=2),
    )
    status = PoolStatus("pool", devices=devices, hosts=hosts)
    first, second = host_rows(Snapshot(connection="live", status=status))
    assert (first["host"], first["busy"], first["losses"]) == ("north", 1, 0)
    assert first["link"]["text"] == "476.8 MiB/s"
    assert first["copies"]["text"] == "4.0 MiB"
    assert second["state"]["text"] == "lost"
    assert hosts_sentence(hosts) == "2 hosts; south<b> cannot be reached."
    page = devices_html(status, (), False)
    assert page.index("<h3>north") < page.index("Device cpu:0") < page.index("<h3>south&lt;b&gt;")
    assert "cannot be reached" in page
    assert "<h3>" not in devices_html(PoolStatus("pool", devices=(BUSY, IDLE)), (), False)


def test_hosts_heading_links_the_dashboard_of_the_cluster_where_it_has_one() -> None:
    status = PoolStatus("pool", hosts=(HostView("north", "serves"),))
    assert "<a" not in hosts_heading(status)
    linked = hosts_heading(replace(status, cluster_dashboard="http://10.0.0.1:8265/'"))
    assert "href='http://10.0.0.1:8265/&#x27;'" in linked


def test_device_row_shows_the_running_cell_and_why_the_next_one_waits() -> None:
    first, second = device_rows(snapshot(BUSY, IDLE))
    assert (first["cell"], first["user"]) == ("In [3] <b> · fit.ipynb", "ann")
    assert first["since"] == {"text": "1 min 30 s", "sort": 90.0}, "with what it ran before"
    assert (first["pending"], first["next"]) == (2, "cpu:0 is busy.")
    assert first["worker"] == "alive, 1 restart"
    assert first["labels"] == "cpu=x86, numa=1, site=lab, taint vision"
    assert second["cell"] == first["cell"], "a gang holds its members, too"
    assert second["next"] == "All are busy."


def test_device_waiting_list_has_bound_cells_and_cells_of_new_sessions() -> None:
    queue = snapshot(BUSY, IDLE).queue
    assert [job.user for job in waiting_for(queue, "cpu:0")] == ["bob", "cy"]
    assert [job.user for job in waiting_for(queue, "cpu:1")] == ["cy", "dee"]


def test_device_row_without_a_queue_shows_what_the_status_says() -> None:
    known = msgspec.structs.replace(snapshot(BUSY), queue=None)
    [row] = device_rows(known)
    assert (row["cell"], row["user"], row["next"]) == ("In [3] <b> · fit.ipynb", None, None)


def test_cordoned_device_drains_while_its_cell_is_preempted() -> None:
    cordoned = msgspec.structs.replace(BUSY, cordoned=True)
    preempting = msgspec.structs.replace(GANG, preempting=True)
    states = [
        device_rows(snapshot(cordoned, running=running))[0]["state"] for running in ((preempting,), (GANG,))
    ]
    assert [state["text"] for state in states] == ["busy, draining", "busy, cordoned"]  # type: ignore[index]


def test_device_details_escape_what_users_wrote() -> None:
    html = details_html(BUSY, snapshot(BUSY, IDLE))
    assert "In [3] &lt;b&gt; · fit.ipynb" in html
    assert "A &lt;processor&gt;" in html
    assert "<b>Worker process</b>" in html
    assert "4711" in html
    assert "Process of ann" in html
    assert "site=lab" in html
    assert "1 min 0 s" in html, "the run time, and the time until the predicted end"


def test_device_whose_worker_does_not_start_says_why() -> None:
    lost = DeviceView("cpu:0", state="lost", failure="the worker ended with SIGSEGV, three times in a row")
    [row] = device_rows(snapshot(lost, running=()))
    assert row["worker"] == "does not start"
    assert "three times in a row" in details_html(lost, snapshot(lost, running=()))


def test_draining_the_last_device_says_that_cells_wait() -> None:
    words = cordon_question(BUSY, drain=True, last=True)
    assert "preempted after its current op, and it waits until a device serves again" in words
    assert "No other device serves" in words
    assert "resumes on another device" in cordon_question(BUSY, drain=True, last=False)
    assert "preempted" not in cordon_question(IDLE, drain=True, last=False)


def test_devices_sentence_counts_states() -> None:
    cordoned = msgspec.structs.replace(IDLE, cordoned=True)
    assert devices_sentence([BUSY, cordoned]) == "2 devices: 1 idle, 1 busy; 1 cordoned."
