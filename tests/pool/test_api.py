"""The REST API and its Python client, on a pool that did some work."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pool_kit import META, Client, act, http, new_user, rest, running_pool
from real_pool import wait_for

from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import AuthenticationError, OptionError, PoolError, PoolNotFound
from djinn_lab.protocol.rest.users import UserView
from djinn_lab.protocol.runtime_file import RuntimeInfo
from djinn_lab.srg.graph import SRG


def test_status(client: Client, shared_pool: RuntimeInfo) -> None:
    client.run(act("", keep=True), target="cpu:0")
    status = rest(shared_pool).status()
    assert (status.pool, status.version) == (shared_pool.pool, shared_pool.version)
    assert (status.ready, status.role) == (True, "admin")
    assert status.now - status.started_at == pytest.approx(status.uptime_s, abs=1)
    assert 0 <= status.event_loop_lag_s < 1
    assert status.jobs["DONE"] >= 1
    first, second = status.devices
    assert (first.device, second.device) == ("cpu:0", "cpu:1")
    assert first.session_bytes[client.session] == META.nbytes
    assert first.used_bytes >= META.nbytes
    assert (first.memory_bytes, first.threads, first.state) == (2**20, 1, "idle")


def test_an_idle_device_is_measured_once(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1") as info:
        assert rest(info).status().devices[0].flops_per_s is None
        wait_for(lambda: rest(info).status().devices[0].flops_per_s)
        with Client(info) as client:
            assert client.welcome.devices[0].curves is not None
    with running_pool(tmp_path, "cpu:1") as info:
        assert rest(info).status().devices[0].flops_per_s == pytest.approx(1e9)


def test_jobs_are_listed_newest_first_and_filtered(client: Client, shared_pool: RuntimeInfo) -> None:
    name, token = new_user(shared_pool)
    mine = [client.run(act("")).job, client.run(act("fail no")).job]
    with Client(shared_pool, token) as other:
        theirs = other.run(act("")).job
    api = rest(shared_pool)
    listed = [view.job for view in api.jobs(limit=3)]
    assert listed == [theirs, mine[1], mine[0]]
    assert [view.job for view in api.jobs(user=name)] == [theirs]
    assert api.jobs(state="FAILED", limit=1)[0].job == mine[1]
    assert [view.job for view in rest(shared_pool, token).jobs(limit=2)] == listed[:2]


def test_all_jobs_are_looked_through_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_pool(tmp_path, "cpu:1") as info, Client(info) as client:
        old = [client.run(act(""), cell=f'loss "{number}" 100%').job for number in range(5)]
        failed = client.run(act("fail no"), cell="Übung").job
    with running_pool(tmp_path, "cpu:1") as info, Client(info) as client:
        new = client.run(act(""), cell="LOSS again").job
        api = rest(info)
        page = api.job_page(find='Loss "', limit=2)
        assert [view.job for view in page.jobs] == [old[4], old[3]]
        assert (page.matching, page.newer, page.older, page.unfinished) == (5, 0, 3, ())
        page = api.job_page(find='loss "', limit=2, before=page.jobs[-1].job)
        assert [view.job for view in page.jobs] == [old[2], old[1]]
        assert (page.matching, page.newer, page.older) == (5, 2, 1)
        assert [view.job for view in api.job_page().jobs] == [new, failed, *reversed(old)]
        assert [view.job for view in api.job_page(state="FAILED").jobs] == [failed]
        assert api.job_page(find="100%").matching == 5
        assert api.job_page(find="1_0%").matching == api.job_page(find="a test", user="none").matching == 0
        waits = client.submit(act("sleep 60"), cell="loss now")
        page = api.job_page(find="loss", limit=1)
        assert [view.job for view in (*page.unfinished, *page.jobs)] == [waits, new]
        assert [view.job for view in api.job_page(state="UNFINISHED").jobs] == [waits]
        api.cancel(waits)
        for state, find, limit in (("SLEEPING", "", 1), (None, "", 0), (None, "x" * 201, 1), (None, "\0", 1)):
            with pytest.raises(OptionError):
                api.job_page(state, find=find, limit=limit)
        with pytest.raises(PoolError, match="There is no job"):
            api.job_page(before="nothing")


def test_a_job_in_full(client: Client, shared_pool: RuntimeInfo) -> None:
    result = client.run(act("", ""))
    view = rest(shared_pool).job(result.job)
    assert view.code == "y = x + 1"
    assert (view.state, view.device, view.ops_done, view.ops_total) == (
        "DONE",
        result.device,
        2,
        2,
    )
    assert view.stages == pytest.approx(result.stages)
    assert view.submitted_at <= view.started_at <= view.finished_at
    assert [event.event for event in view.events] == [
        "SegmentSubmitted",
        "MemoryGranted",
        "SegmentFinished",
    ]
    assert rest(shared_pool).job(result.job[:12]).job == result.job


def test_time_left_follows_the_pace_that_is_measured(client: Client) -> None:
    """Each op takes many times what any model predicts for it."""
    seen: list[float] = []
    job = client.submit(act(*["sleep 0.5"] * 8))
    client.result(job)
    for update in client.updates:
        if update.job == job and update.state == "RUNNING" and update.ops_done == 5:
            assert update.left_s is not None
            seen.append(update.left_s)
    assert seen
    assert 1.0 < min(seen) <= max(seen) < 6.0


def test_graph_and_schedule_of_what_ran(client: Client, shared_pool: RuntimeInfo) -> None:
    program = act("", "", "")
    job = client.run(program).job
    api = rest(shared_pool)
    assert api.program(job).nodes == list(program.nodes)
    assert api.graph(job).structural_hash == SRG.from_program(program).structural_hash
    schedule = api.schedule(job)
    assert schedule.device.device == client.updates[-1].device
    assert schedule.node_end_s is not None
    assert len(schedule.node_end_s) == 3


def test_without_a_segment_the_largest_is_shown(client: Client, shared_pool: RuntimeInfo) -> None:
    job = client.submit(act(""), final=False)
    client.result(job)
    client.run(act("", "", "", first=10), job=job, segment=1, final=False)
    client.run(act("", first=20), job=job, segment=2)
    api = rest(shared_pool)
    assert len(api.program(job).nodes) == 3
    assert len(api.program(job, 2).nodes) == 1
    assert len(api.graph(job).nodes) == 3
    with http(shared_pool) as web:
        shown = {web.get(f"/v1/jobs/{job}/{what}").json()["segment"] for what in ("graph", "schedule")}
    assert shown == {1}


def test_a_repeated_cell_has_a_prediction(client: Client, shared_pool: RuntimeInfo) -> None:
    first = client.run(act("sleep 0.06", "", "", "", ""), cell="loop")
    again = client.run(act("sleep 0.06", "", "", "", ""), cell="loop")
    api = rest(shared_pool)
    assert api.job(first.job).predicted_s != api.job(first.job).measured_s
    assert api.job(again.job).predicted_s == api.job(first.job).measured_s
    assert (api.job(again.job).predicted_spread or 0) >= 1


def test_sessions_are_listed_and_closed(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool) as client:
        client.run(act("", keep=True))
        api = rest(shared_pool)
        (view,) = [view for view in api.sessions() if view.session == client.session]
        assert (view.state, view.phase, view.jobs, view.name) == (
            "connected",
            "IO_WAIT",
            1,
            "a test",
        )
        assert view.used_bytes == META.nbytes
        api.close_session(client.session)
        assert client.session not in [view.session for view in api.sessions()]


def test_users(shared_pool: RuntimeInfo) -> None:
    api = rest(shared_pool)
    name, token = new_user(shared_pool, "viewer")
    assert UserView(name, "viewer", name) in api.users()
    assert rest(shared_pool, token).status().user == name
    api.delete_user(name)
    assert name not in [user.name for user in api.users()]


def test_users_and_jobs_survive_a_restart_and_no_token_is_stored(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1") as info, Client(info) as client:
        job = client.run(act("", "")).job
        name, token = new_user(info)
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("pool.sqlite3*"))
    assert name.encode() in stored
    assert token.encode() not in stored
    assert info.token.encode() not in stored
    with running_pool(tmp_path, "cpu:1") as info:
        api = rest(info)
        assert rest(info, token).status().user == name
        assert [view.job for view in api.jobs()] == [job]
        assert (api.job(job).state, api.job(job[:9]).code) == ("DONE", "y = x + 1")
        assert len(api.graph(job).nodes) == 2
        assert api.jobs(state="DONE")[0].job == job
        assert api.jobs(state="FAILED") == []


def test_events(client: Client, shared_pool: RuntimeInfo) -> None:
    api = rest(shared_pool)
    last = api.events(limit=1)[0].seq
    job = client.run(act("")).job
    events = api.events(after=last)
    assert [event.seq for event in events] == list(range(last + 1, last + 1 + len(events)))
    submitted = [event for event in events if event.event == "SegmentArrived"]
    assert [msgspec.json.decode(event.detail)["segment"]["job"] for event in submitted] == [job]


def test_metrics(client: Client, shared_pool: RuntimeInfo) -> None:
    client.run(act(""))
    with http(shared_pool) as web:
        page = web.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    lines = dict(line.rsplit(" ", 1) for line in page.text.splitlines() if not line.startswith("#"))
    assert float(lines['djinn_jobs{state="DONE"}']) >= 1
    assert float(lines["djinn_segment_seconds_count"]) >= 1
    assert float(lines['djinn_device_memory_bytes{device="cpu:0"}']) == 2**20
    assert 'djinn_queue_length{device="cpu:1"}' in lines


def test_openapi_has_every_address_with_a_schema(shared_pool: RuntimeInfo) -> None:
    with http(shared_pool) as web:
        paths = web.get("/openapi.json").json()["paths"]
    schema = paths["/v1/status"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert {"devices", "jobs", "pool"} <= set(schema["properties"])
    assert "$ref" not in str(schema)


def test_finding_a_pool(shared_pool: RuntimeInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("DJINN_POOL", raising=False)
    with pytest.raises(PoolNotFound, match="djinn-lab pool start"):
        PoolClient.find()
    monkeypatch.setenv("DJINN_POOL", shared_pool.url)
    monkeypatch.delenv("DJINN_TOKEN", raising=False)
    with pytest.raises(AuthenticationError, match="DJINN_TOKEN"):
        PoolClient.find()
    monkeypatch.setenv("DJINN_TOKEN", shared_pool.token)
    found = PoolClient.find()
    assert found.status().pool == shared_pool.pool
    found.close()
