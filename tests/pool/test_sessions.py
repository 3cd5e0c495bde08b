"""A session's WebSocket: cells, queue, progress, cancel, parking, isolation."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import subprocess
import time
import uuid
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from blake3 import blake3
from pool_kit import META, Client, Wire, act, held, http, new_user, read, rest, running_pool, upload
from real_pool import wait_for
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed

from djinn_lab import memory
from djinn_lab.cli.app import build_app
from djinn_lab.jobs import Terms
from djinn_lab.jobs.machine.tables import FINISHED_JOBS_MAX
from djinn_lab.pool.assembly import assemble
from djinn_lab.pool.authentication import User
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.bookkeeping.records import CUTS_STORED_MAX
from djinn_lab.pool.database.address import sqlite_url
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.launchers.local import LocalLauncher
from djinn_lab.pool.sessions.detached import DetachedRules, close_left_sessions
from djinn_lab.pool.sessions.registry import ClientLink, ClientSession
from djinn_lab.protocol import messages
from djinn_lab.protocol.runtime_file import RuntimeInfo
from djinn_lab.srg.program import Program, TensorMeta

LARGE = TensorMeta("float32", (64, 1024), (1024, 1))


def test_a_cell_runs_and_its_value_comes_back(client: Client) -> None:
    result = client.run(act("", ""))
    assert (result.outcome, result.executed, result.error) == ("done", 2, None)
    assert [fetched.data for fetched in result.fetched] == [bytes(META.nbytes)]
    assert [update.state for update in client.updates] == ["RUNNING", "DONE"]
    assert sum(result.stages.values()) == pytest.approx(result.pool_s, abs=1e-4)
    assert set(result.stages) <= {"queued", "restoring", "dispatch", "load", "run", "fetch"}


def test_a_client_may_want_no_updates_that_a_result_follows(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool, latest_only=True) as client:
        for _ in range(5):
            assert client.run(act("")).outcome == "done"
        assert "DONE" not in {update.state for update in client.updates}
        job = client.submit(act("sleep 0.2"))
        assert client.until(job, "RUNNING").job == job
        assert client.result(job).outcome == "done"


def test_a_large_result_comes_as_a_file_of_the_session(client: Client) -> None:
    (fetched,) = client.run(act("", meta=LARGE)).fetched
    assert fetched.data is None
    assert client.welcome.blob_directory is not None
    assert client.session in client.welcome.blob_directory
    with open(f"{client.welcome.blob_directory}/{fetched.blob}", "rb") as file:
        assert file.read() == bytes(LARGE.nbytes)


def test_a_client_on_another_host_moves_tensors_by_http(shared_pool: RuntimeInfo) -> None:
    data = uuid.uuid4().bytes * (LARGE.nbytes // 16)
    digest = blake3(data).hexdigest()
    with Client(shared_pool, host="elsewhere") as client, http(shared_pool) as web:
        assert client.welcome.blob_directory is None
        assert client.missing(digest) == [digest]
        assert web.put(f"/v1/blobs/{digest}", content=data).status_code == 201
        assert client.missing(digest) == []
        (fetched,) = client.run(read(upload(1, digest), meta=LARGE)).fetched
        assert fetched.data is None
        assert web.get(f"/v1/results/{fetched.blob}").content == data
        assert web.get(f"/v1/results/{fetched.blob}").status_code == 404
        client.send(messages.BlobStored(digest, len(data)))
        assert isinstance(client.receive(), messages.RequestRefused)


def test_a_cell_of_two_segments_waits_between_them(client: Client, shared_pool: RuntimeInfo) -> None:
    job = client.submit(act("", keep=True), final=False)
    assert client.result(job).outcome == "done"
    assert rest(shared_pool).job(job).state == "WAITING"
    second = client.submit(read(held(1)), job=job, segment=1)
    assert client.result(second).outcome == "done"
    view = rest(shared_pool).job(job)
    assert (view.state, view.segments, view.ops_done) == ("DONE", 2, 1)
    assert [cut.segment for cut in view.cuts] == [0, 1]


def test_row_of_a_long_cell_grows_only_when_it_ends(tmp_path: Path) -> None:
    segments = 2 * CUTS_STORED_MAX
    with running_pool(tmp_path) as info, Client(info) as client:
        job = client.submit(act("", keep=True), final=False)
        client.result(job)
        for segment in range(1, segments):
            client.result(client.submit(act(""), job=job, segment=segment, final=False))
        assert _stored_cuts(tmp_path, job) == list(range(segments - CUTS_STORED_MAX, segments))
        assert [cut.segment for cut in rest(info).job(job).cuts] == list(range(segments))
        client.send(messages.FinishJob(job, "done"))
        client.until(job, "DONE")
        assert _stored_cuts(tmp_path, job) == list(range(segments))


def _stored_cuts(directory: Path, job: str) -> list[int]:
    """Read the segments of a job's cuts from its row in the database."""
    with closing(sqlite3.connect(directory / "pool.sqlite3")) as database:
        ((view,),) = database.execute("select view from jobs where job = ?", (job,)).fetchall()
    return [cut["segment"] for cut in json.loads(view)["cuts"]]


def test_a_cell_that_ends_without_another_segment(client: Client, shared_pool: RuntimeInfo) -> None:
    job = client.submit(act(""), final=False)
    client.result(job)
    client.send(messages.FinishJob(job, "failed", "ValueError: in the cell"))
    assert client.until(job, "FAILED").reason == "Failed: ValueError: in the cell"
    client.send(messages.FinishJob("never came", "done"))
    assert client.run(act("")).outcome == "done"


def test_an_op_that_fails_is_the_users(client: Client, shared_pool: RuntimeInfo) -> None:
    result = client.run(act("", "fail shapes do not match", ""))
    assert (result.outcome, result.executed) == ("failed", 1)
    assert result.error is not None
    assert (result.error.family, result.error.type_name) == ("user", "RuntimeError")
    assert result.error.message == "shapes do not match"
    assert rest(shared_pool).job(result.job).error.message == "shapes do not match"


def test_progress_is_notified_a_few_times_a_second(client: Client) -> None:
    began = time.perf_counter()
    assert client.run(act(*["sleep 0.01"] * 60)).outcome == "done"
    took_s = time.perf_counter() - began
    steps = [update.ops_done for update in client.updates if update.state == "RUNNING"]
    assert 2 <= len(steps) <= took_s * 5 + 3
    assert all(before <= after for before, after in pairwise(steps))


def test_progress_of_a_cell_in_parts_counts_all_parts(client: Client, shared_pool: RuntimeInfo) -> None:
    job = client.submit(act(*["sleep 0.05"] * 10), final=False)
    client.result(job)
    client.submit(act(*["sleep 0.05"] * 20), job=job, segment=1)
    client.result(job)
    (last,) = [update for update in client.updates if update.state == "DONE" and update.job == job]
    shown = [update for update in client.updates if update.state == "RUNNING" and update.job == job]
    steps = [update.ops_done for update in shown]
    assert steps == sorted(steps)
    assert any(10 < step < 30 for step in steps)
    assert any(f"{step} of 30 ops" in update.reason for step, update in zip(steps, shown, strict=True))
    assert (last.ops_done, last.ops_total) == (30, 30)


def test_waiting_says_why(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool) as first, Client(shared_pool) as second, Client(shared_pool) as third:
        devices = {}
        for one in (first, second):
            devices[one.session] = one.run(act("")).device
        busy = [one.submit(act("sleep 30", ""), target=devices[one.session]) for one in (first, second)]
        first.until(busy[0], "RUNNING")
        second.until(busy[1], "RUNNING")
        job = third.submit(act("sleep 0.15"))  # one that is known to be brief would run between two ops
        update = third.until(job, "QUEUED")
        assert update.position == 1
        assert update.device in devices.values()
        assert update.reason.startswith(f"1st in the queue of {update.device}, behind ")
        assert update.reason.endswith("(running, 0 of 2 ops).")
        for one, cell in zip((first, second), busy, strict=True):
            one.send(messages.CancelJob(cell))
            assert one.result(cell).outcome == "cancelled"
        assert third.result(job).outcome == "done"


def test_cancel_while_running_stops_between_two_ops(client: Client) -> None:
    job = client.submit(act("", "sleep 30", ""))
    client.until(job, "RUNNING")
    client.send(messages.CancelJob(job))
    result = client.result(job)
    assert (result.outcome, result.executed) == ("cancelled", 1)
    assert result.error is not None
    assert result.error.family == "cancelled"
    assert client.run(act("")).outcome == "done"
    client.send(messages.CancelJob(job))
    assert client.run(act("")).outcome == "done"


def test_cancel_while_queued_is_immediate(client: Client) -> None:
    running = client.submit(act("sleep 30"))
    client.until(running, "RUNNING")
    queued = client.submit(act(""))
    client.until(queued, "QUEUED")
    client.send(messages.CancelJob(queued))
    result = client.result(queued)
    assert (result.outcome, result.executed) == ("cancelled", 0)
    client.send(messages.CancelJob(running))
    assert client.result(running).outcome == "cancelled"


def test_a_segment_of_a_cancelled_cell_is_answered_cancelled(
    client: Client, shared_pool: RuntimeInfo
) -> None:
    job = client.submit(act(""), final=False)
    client.result(job)
    rest(shared_pool).cancel(job)
    client.until(job, "CANCELLED")
    assert client.run(act(""), job=job, segment=1).outcome == "cancelled"


def dead_process() -> int:
    with subprocess.Popen(["true"]) as child:
        return child.pid


def test_a_client_that_ended_is_detached_and_finds_its_values_again(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool, process=dead_process()) as client:
        assert client.run(act("", keep=True)).outcome == "done"
        job = client.submit(act("sleep 30"))
        client.until(job, "RUNNING")
        client.socket.socket.shutdown(2)
    api = rest(shared_pool)
    while api.job(job).state != "CANCELLED":
        pass
    cancelled = api.job(job)
    assert cancelled.reason == "Cancelled: the client went away."
    assert cancelled.failure is None  # so that pages and commands show that reason, wherever the cell was
    (view,) = [view for view in api.sessions() if view.session == client.session]
    assert (view.state, view.phase, view.used_bytes) == ("detached", "IO_WAIT", META.nbytes)
    with Client(shared_pool, session=client.session) as again:
        assert again.welcome.resumed
        assert again.session == client.session
        assert again.run(read(held(1))).outcome == "done"


def test_a_segment_whose_connection_broke_is_run_once_and_answered(shared_pool: RuntimeInfo) -> None:
    """Sent again while it runs, and after its answer reached no client."""
    program = act("sleep 1", keep=True)
    for wait_s in (0.0, 2.0):
        with Client(shared_pool) as client:
            job = client.submit(program)
            client.until(job, "RUNNING")
            client.socket.socket.shutdown(2)
        time.sleep(wait_s)
        with Client(shared_pool, session=client.session) as back:
            assert back.welcome.resumed
            back.submit(program, job, again=True)
            assert back.result(job).outcome == "done"
            back.submit(program, job, again=True)
            assert back.result(job).outcome == "done"
            found = rest(shared_pool).job(job)
            assert (found.state, found.ops_done, found.segments) == ("DONE", found.ops_total, 1)
            back.send(messages.CloseSession())


def test_a_second_connection_takes_the_session_over(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool) as first, Client(shared_pool, session=first.session) as second:
        refused = first.receive()
        assert isinstance(refused, messages.RequestRefused)
        assert refused.kind == "session"
        with pytest.raises(ConnectionClosed):
            first.receive()
        assert second.run(act("")).outcome == "done"


def test_an_unknown_session_gets_a_new_one(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool, session="gone") as client:
        assert not client.welcome.resumed
        assert client.session != "gone"


def test_another_users_session_stays_closed(client: Client, shared_pool: RuntimeInfo) -> None:
    _, token = new_user(shared_pool)
    with Wire(shared_pool, token) as stranger:
        refused = stranger.hello(client.session)
        assert isinstance(refused, messages.RequestRefused)
        assert refused.kind == "session"
    assert client.run(act("")).outcome == "done"


def test_values_of_another_session_do_not_exist(shared_pool: RuntimeInfo) -> None:
    _, token = new_user(shared_pool)
    with Client(shared_pool) as mine, Client(shared_pool, token) as theirs:
        device = mine.run(act("", keep=True)).device
        result = theirs.run(read(held(1)), target=device)
        assert result.error is not None
        assert result.error.type_name == "ValueLost"


def test_a_job_of_another_session_cannot_be_continued_or_cancelled(shared_pool: RuntimeInfo) -> None:
    _, token = new_user(shared_pool)
    with Client(shared_pool) as mine, Client(shared_pool, token) as theirs:
        job = mine.submit(act(""), final=False)
        mine.result(job)
        result = theirs.run(act(""), job=job, segment=1)
        assert result.error is not None
        assert result.error.family == "refused"
        theirs.send(messages.CancelJob(job))
        theirs.send(messages.FinishJob(job, "failed"))
        theirs.run(act(""))
        assert mine.run(act(""), job=job, segment=1).outcome == "done"


def test_segment_sent_twice_is_refused_and_the_first_finishes(client: Client) -> None:
    client.run(act("", keep=True))
    job = client.submit(act("sleep 0.3"))
    client.submit(act(""), job)
    twice = client.result(job)
    assert twice.error is not None
    assert (twice.outcome, twice.error.family) == ("failed", "refused")
    assert client.result(job).outcome == "done"
    assert client.run(act("")).outcome == "done"


def test_a_job_of_another_session_keeps_its_memory(client: Client, shared_pool: RuntimeInfo) -> None:
    def reserved_bytes() -> int:
        return sum(device.reserved_bytes for device in rest(shared_pool).memory().devices)

    job = client.submit(act("sleep 30"))
    client.until(job, "RUNNING")
    with Client(shared_pool) as other:
        assert reserved_bytes() == META.nbytes
        other.submit(act(""), job, segment=1)
        refused = other.result(job)
        assert refused.error is not None
        assert refused.error.family == "refused"
        assert reserved_bytes() == META.nbytes
    client.send(messages.CancelJob(job))
    assert client.result(job).outcome == "cancelled"


def test_released_values_are_gone(client: Client, shared_pool: RuntimeInfo) -> None:
    client.run(act("", keep=True))
    client.send(messages.ReleaseValues([1]))
    result = client.run(read(held(1)))
    assert result.error is not None
    assert result.error.type_name == "ValueLost"
    (view,) = [view for view in rest(shared_pool).sessions() if view.session == client.session]
    assert view.used_bytes == 0


def test_a_closed_session_frees_everything(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool) as client:
        device = client.run(act("", keep=True)).device
        client.send(messages.CloseSession())
        with pytest.raises(ConnectionClosed):
            client.receive()
    api = rest(shared_pool)
    assert client.session not in [view.session for view in api.sessions()]
    deadline = time.monotonic() + 5
    while client.session in next(d for d in api.status().devices if d.device == device).session_bytes:
        assert time.monotonic() < deadline


def test_phase_is_inferred_unless_signalled(client: Client, shared_pool: RuntimeInfo) -> None:
    def phase() -> str:
        views = {view.session: view.phase for view in rest(shared_pool).sessions()}
        return str(views[client.session])

    job = client.submit(act("", ""), final=False)
    client.result(job)
    assert phase() == "COMPUTE"
    client.result(client.submit(act(""), job, segment=1))
    assert phase() == "IO_WAIT"
    assert client.signal("COMPUTE").answer == "accepted"
    assert phase() == "COMPUTE"
    assert client.signal("IO_WAIT", 2.0).answer == "accepted"
    assert phase() == "IO_WAIT"
    refused = client.signal("LUNCH")
    assert (refused.answer, phase()) == ("rejected", "IO_WAIT")
    assert "LUNCH" in refused.message
    assert client.signal("IO_WAIT", -1.0).answer == "rejected"


def test_a_device_can_be_asked_for(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool) as client:
        assert client.run(act(""), target="cpu:1").device == "cpu:1"
        assert client.run(act(""), target="cpu:0").device == "cpu:0"
        result = client.run(act(""), target="cuda:9")
        assert result.error is not None
        assert result.error.family == "refused"
        assert "no device 'cuda:9'" in result.error.message


def test_a_tensor_larger_than_the_device_is_refused_with_numbers(client: Client) -> None:
    result = client.run(act("", meta=TensorMeta("float32", (1024, 1024), (1024, 1))))
    assert result.error is not None
    assert (result.error.family, result.error.node) == ("memory", 0)
    assert "needs 4.0 MiB" in result.error.message
    assert "1.0 MiB" in result.error.message
    assert client.run(act("")).outcome == "done"


def test_an_empty_program_is_answered(client: Client) -> None:
    result = client.run(Program((), (), (), (), ()))
    assert (result.outcome, result.executed) == ("done", 0)


def test_an_op_costs_the_pool_little(client: Client) -> None:
    program = act("")
    for _ in range(20):
        client.run(program)
    assert min(client.run(program).pool_s for _ in range(101)) < 0.010  # the others met a busy machine


def test_http_upgrade_with_a_wrong_token(shared_pool: RuntimeInfo) -> None:
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    headers |= {"Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw==", "Authorization": "Bearer wrong"}
    answer = httpx.get(f"{shared_pool.url}/v1/session", headers=headers, trust_env=False)
    assert answer.status_code == 401
    assert "token" in answer.json()["detail"]


def test_detached_sessions_show_their_age_and_end_by_the_pools_setting(tmp_path: Path) -> None:
    def shown() -> str:
        return CliRunner().invoke(build_app(), ["sessions"], catch_exceptions=False).output

    with running_pool(tmp_path, "cpu:1", detached_s=7200) as info:
        with Client(info) as client:
            client.run(act("", keep=True))
            assert rest(info).sessions()[0].ends_at is None
        wait_for(lambda: rest(info).sessions()[0].state == "detached")
        found = rest(info).sessions()[0]
        assert found.last_seen is not None
        assert found.ends_at == pytest.approx(found.last_seen + 7200)
        assert re.search(r"detached .* m?s .*(1 h 59 min|2 h 0 min)", shown())
    with running_pool(tmp_path, "cpu:1", detached_s=1) as info:
        with Client(info) as client:
            client.run(act("", keep=True))
        wait_for(lambda: not rest(info).sessions())
        assert "its client was gone for too long" in rest(info).audit(1, action="session closed")[0].body
        assert "No sessions." in shown()


def test_an_empty_session_whose_client_vanished_is_closed_after_a_while(tmp_path: Path) -> None:
    async def look(store: Store) -> None:
        blobs = BlobStore(tmp_path, 2**20)
        driver = assemble("pool", "token", LocalLauncher(tmp_path), (), blobs, store, lambda: None).driver
        user = User("ann", "user")

        def open_session(name: str) -> ClientSession:
            now_s = driver.core.clock.now_s()
            session = driver.registry.add(user, name, True, now_s, ClientLink())
            driver.handle(memory.SessionOpened(now_s, session.session, "ann"))
            return session

        kept, vanished = open_session("kept"), open_session("vanished")
        driver.detach(vanished)
        close_left_sessions(driver, DetachedRules())
        assert len(driver.registry) == 2
        close_left_sessions(driver, DetachedRules(empty_kept_s=0.0))
        assert list(driver.registry) == [kept]

    store = Store(sqlite_url(tmp_path / "pool.sqlite3"))
    try:
        asyncio.run(look(store))
    finally:
        store.close()


def test_cell_may_depend_on_a_job_that_ended_long_ago(client: Client) -> None:
    done, failed = client.submit(act("")), client.submit(act("fail here"))
    for job in (done, failed):
        client.result(job)
    for _ in range(FINISHED_JOBS_MAX):
        client.run(act(""))
    assert client.run(act(""), terms=Terms(after=(done[:12],))).outcome == "done"
    assert client.run(act(""), terms=Terms(after=(f"{failed}:any",))).outcome == "done"
    after_failed = client.run(act(""), terms=Terms(after=(failed,)))
    assert "would wait for ever" in str(after_failed.error)
    unknown = client.run(act(""), terms=Terms(after=("f" * 32,)))
    assert "there is no job" in str(unknown.error)
