"""The queue over the wire: dependencies, limits, cordons, and which jobs wait and why."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from msgspec.structs import replace
from pool_kit import Client, act, http, new_user, rest, running_pool
from real_pool import wait_for
from throwaway_postgresql import Postgresql

from djinn_lab.errors import OptionError, PoolError, Refused
from djinn_lab.jobs import Terms
from djinn_lab.jobs.decision import POLICIES
from djinn_lab.jobs.fairness import Limits
from djinn_lab.pool.bookkeeping.overruns import SAMPLES_MIN
from djinn_lab.pool.database.tables import usage
from djinn_lab.protocol.messages import JobUpdate, SegmentResult
from djinn_lab.protocol.runtime_file import RuntimeInfo
from djinn_lab.simulator.queue import simulate_queue
from djinn_lab.simulator.traces.own_pool import trace_of_pool

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeInfo]:
    """A pool on either kind of database."""
    database = None
    if request.param == "postgresql":
        server: Postgresql = request.getfixturevalue("postgresql")
        database = server.new_database()
    with running_pool(tmp_path_factory.mktemp("queue"), "cpu:1", database=database) as info:
        yield info


def refusal(result: SegmentResult) -> str:
    assert result.error is not None
    assert (result.outcome, result.error.family) == ("failed", "refused")
    return result.error.message


def test_why_names_the_blocking_job_until_it_ends(pool: RuntimeInfo) -> None:
    with Client(pool) as ann, Client(pool) as bob, closing(rest(pool)) as client:
        running = ann.submit(act("sleep 30"))
        ann.until(running, "RUNNING")
        waiting = bob.submit(act("sleep 30"))
        bob.until(waiting, "QUEUED")
        answer = client.why(waiting)
        assert answer.state == "QUEUED"
        assert running[:8] in answer.sentence
        assert answer.explanation.position == 1
        found = client.queue()
        assert [job.job for job in found.waiting] == [waiting]
        assert found.waiting[0].sentence.startswith(answer.sentence.split(".")[0])
        assert [job.job for job in found.running] == [running]
        client.cancel(running)
        bob.until(waiting, "RUNNING")
        assert client.why(waiting).sentence.startswith("Running on cpu:0")
        assert client.queue().waiting == ()
        client.cancel(waiting)


def test_what_if_is_asked_of_waiting_jobs_only(pool: RuntimeInfo) -> None:
    with Client(pool) as ann, Client(pool) as bob, closing(rest(pool)) as client:
        running = ann.submit(act("sleep 30"))
        ann.until(running, "RUNNING")
        waiting = bob.submit(act("sleep 30"), priority="LOW")
        bob.until(waiting, "QUEUED")
        sooner = client.what_if(waiting, priority="critical")
        assert sooner.changed_starts_in_s < sooner.starts_in_s
        assert "sooner" in sooner.sentence
        with pytest.raises(OptionError, match="URGENT"):
            client.what_if(waiting, priority="URGENT")
        with pytest.raises(PoolError, match="does not wait"):
            client.what_if(running, priority="HIGH")
        client.cancel(waiting)
        client.cancel(running)


def test_a_cell_waits_for_another_to_end_well(pool: RuntimeInfo) -> None:
    with Client(pool) as ann, Client(pool) as bob, closing(rest(pool)) as client:
        first = ann.submit(act("sleep 2"))  # still there when the next has come, on any machine
        ann.until(first, "RUNNING")
        after = bob.submit(act(""), terms=Terms(after=(first[:10],)))
        assert first[:8] in bob.until(after, "SUBMITTED").reason
        assert bob.result(after).outcome == "done"
        events = {job.job: job for job in client.jobs()}
        assert events[after].started_at >= events[first].finished_at
        assert ann.result(first).outcome == "done"

        failing = ann.submit(act("sleep 2", "fail no such key"))
        ann.until(failing, "RUNNING")
        result = bob.run(act(""), terms=Terms(after=(failing,)))
        assert result.outcome == "cancelled"
        assert result.error is not None
        assert failing[:8] in result.error.message
        assert "no job" in refusal(bob.run(act(""), terms=Terms(after=("zzz",))))


def test_a_cell_stops_at_its_own_limit_of_run_time(pool: RuntimeInfo) -> None:
    with Client(pool) as client:
        result = client.run(act("sleep 30"), terms=Terms(timeout_s=0.2))
        assert result.outcome == "cancelled"
        assert result.error is not None
        assert "200.0 ms" in result.error.message
        assert client.run(act(""), terms=Terms(timeout_s=30)).outcome == "done"


def test_a_gang_larger_than_the_pool_is_refused_and_an_elastic_one_takes_what_there_is(
    pool: RuntimeInfo,
) -> None:
    with Client(pool) as client:
        refused = refusal(client.run(act(""), terms=Terms(gang=3, gang_min=2)))
        assert "at least 2 devices, and this pool has 1; ask for --gang 3:1" in refused
        assert client.run(act(""), terms=Terms(gang=3, gang_min=1)).outcome == "done"


def test_limits_hold_from_the_moment_they_are_set_until_they_are_lifted(pool: RuntimeInfo) -> None:
    name, token = new_user(pool)
    with Client(pool, token) as client, closing(rest(pool)) as chief, closing(rest(pool, token)) as own:
        assert client.run(act(""), priority="CRITICAL").outcome == "done"
        chief.set_targets(name, limits=Limits(rank_min=2))
        assert "at" not in refusal(client.run(act(""), priority="HIGH")).split()[:1]
        assert "NORMAL" in refusal(client.run(act(""), priority="HIGH"))
        chief.set_targets(name, limits=Limits(queued_max=0))
        assert "waiting" in refusal(client.run(act("")))
        chief.set_targets(name, limits=Limits(devices_max=0))
        assert "devices" in refusal(client.run(act("")))
        changed = chief.set_targets(name, limits=Limits(), weight=3)
        assert changed.weight == 3
        assert client.run(act("")).outcome == "done"
        with pytest.raises(Refused, match="admin"):
            own.set_targets(name, weight=100)
        with pytest.raises(OptionError, match="weight"):
            chief.set_targets(name, weight=-1)
        with pytest.raises(OptionError, match="minimum run time"):
            chief.set_targets(name, weight=7, min_runtime_s=-1)
        assert {one.account: one.weight for one in chief.queue().accounts}[name] == 3


def test_queue_lists_accounts_of_users_without_cells_to_admins(pool: RuntimeInfo) -> None:
    with closing(rest(pool)) as chief:
        project = f"project-{uuid.uuid4().hex[:8]}"
        made = chief.create_user(f"new-{project}", "user", account=project)
        viewer, _ = new_user(pool, "viewer")
        before = chief.queue().jain
        [found] = [one for one in chief.queue().accounts if one.account == f"{project}/new-{project}"]
        assert found.rank is not None
        assert 0 < found.share < 1
        assert viewer not in {one.account for one in chief.queue().accounts}
        assert chief.queue().jain == pytest.approx(before), "an idle account makes nothing less even"
        narrow = chief.make_token(project, scopes=["read"]).secret
        for token in (made.token, narrow):
            with closing(rest(pool, token)) as other:
                assert found.account not in {one.account for one in other.queue().accounts}


def test_a_cordoned_device_starts_nothing_new(pool: RuntimeInfo) -> None:
    with Client(pool) as ann, Client(pool) as bob, closing(rest(pool)) as client:
        client.cordon("cpu:0")
        waiting = ann.submit(act(""))
        assert "cordoned" in ann.until(waiting, "SUBMITTED").reason
        assert "cordoned" in client.why(waiting).sentence
        client.uncordon("cpu:0")
        assert ann.result(waiting).outcome == "done"
        assert bob.run(act("")).outcome == "done"
        with pytest.raises(OptionError, match="cpu:7"):
            client.cordon("cpu:7")


def test_a_cell_runs_where_its_target_is_and_its_session_goes_there(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:2") as info, Client(info) as ann, closing(rest(info)) as chief:
        assert ann.run(act(""), target="cpu:0").outcome == "done"
        chief.describe_device("cpu:1", ["gpu=big"])
        moved = ann.submit(act(""), target="gpu=big,kind=cpu")
        assert ann.result(moved).outcome == "done"
        assert chief.job(moved).device == "cpu:1"
        refused = ann.run(act(""), target="gpu=h200")
        assert "cpu:1 (gpu=big, kind=cpu)" in refused.error.message  # type: ignore[union-attr]
        chief.describe_device("cpu:1", ["gpu=big"], ["vision"])
        refused = ann.run(act(""), target="gpu=big")
        assert "does not tolerate" in refused.error.message  # type: ignore[union-attr]
        allowed = Terms(tolerates=("vision",))
        assert ann.run(act(""), target="gpu=big", terms=allowed).outcome == "done"
        plain = ann.submit(act(""))
        assert ann.result(plain).outcome == "done"
        assert chief.job(plain).device == "cpu:0"
        with pytest.raises(OptionError, match="no label"):
            chief.describe_device("cpu:0", ["gpu"])
        with pytest.raises(OptionError, match="cpu:7"):
            chief.describe_device("cpu:7", ["gpu=big"])


def test_a_reserved_device_is_for_those_it_is_reserved_for(pool: RuntimeInfo) -> None:
    name, token = new_user(pool)
    with Client(pool, token) as mine, Client(pool) as other, closing(rest(pool)) as client:
        client.reserve("course", ["cpu:0"], [name], ends_at=time.time() + 60)
        waiting = other.submit(act(""))
        assert mine.run(act("")).outcome == "done"
        assert "reserved for other accounts" in client.why(waiting).sentence
        client.end_reservation("course")
        assert other.result(waiting).outcome == "done"
        client.reserve("moment", ["cpu:0"], [name], ends_at=time.time() + 0.4)
        assert other.run(act("")).outcome == "done"
        with pytest.raises(OptionError, match="cpu:7"):
            client.reserve("course", ["cpu:7"], [name], ends_at=time.time() + 60)
        with pytest.raises(OptionError, match="before it begins"):
            client.reserve("course", ["cpu:0"], [name], ends_at=1.0)
        with pytest.raises(OptionError, match="no reservation"):
            client.end_reservation("course")


def test_the_policy_can_be_changed_while_the_pool_runs(pool: RuntimeInfo) -> None:
    with Client(pool) as client, closing(rest(pool)) as chief:
        chief.set_policy("easy")
        assert chief.queue().policy == "easy"
        assert client.run(act("")).outcome == "done"
        with pytest.raises(OptionError, match="fifo"):
            chief.set_policy("roulette")
        own = replace(POLICIES["easy"], name="mine", reservations=3)
        chief.set_policy(own)
        assert chief.queue().policy == "mine"
        for field, value in (("shorter_factor", 0.1), ("scoring", "by luck")):
            with http(pool) as web:
                wrong = {"policy": {**msgspec.to_builtins(own), field: value}}
                answer = web.put("/v1/queue/policy", json=wrong)
            assert answer.status_code == 422
            assert field in answer.json()["detail"]
        assert client.run(act("")).outcome == "done"
        chief.set_policy("default")


def test_what_ended_jobs_used_can_be_read_and_simulated(pool: RuntimeInfo) -> None:
    began = time.time()
    with Client(pool) as ann, closing(rest(pool)) as client:
        ended = [ann.run(act("sleep 0.05")).job for _ in range(3)]
        wait_for(lambda: len(client.usage(since=began)) == 3)
        used = client.usage(since=began)
        assert [row.job for row in used] == ended
        assert all(0.04 < row.run_s < 5 and row.stretches == 1 for row in used)
        assert [row.job for row in client.usage(since=began, limit=1)] == ended[-1:]
        trace = trace_of_pool(used, ["cpu:0"])
        figures = simulate_queue(trace).figures
        assert figures.jobs == 3
        assert figures.utilisation > 0


def test_a_start_is_predicted_only_with_how_far_such_forecasts_are_off(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1") as info, ExitStack() as stack:
        ann, *crowd = [stack.enter_context(Client(info)) for _ in range(5)]
        client = stack.enter_context(closing(rest(info)))

        def updates_with_estimate() -> list[JobUpdate]:
            """Return the predicted starts of four jobs, none brief, that wait for a second and a half."""
            running = ann.submit(act("sleep 1.5"), cell="long")
            ann.until(running, "RUNNING")
            waiting = [one.submit(act("sleep 0.1"), cell="next") for one in crowd]
            assert all(one.result(job).outcome == "done" for one, job in zip(crowd, waiting, strict=True))
            assert ann.result(running).outcome == "done"
            heard = [update for one in crowd for update in one.updates if update.estimate_s is not None]
            for one in crowd:
                one.updates.clear()
            return heard

        assert updates_with_estimate() == [], "four starts are too few to know"
        assert client.queue().estimate_error is None
        predicted: list[JobUpdate] = []
        for _ in range(4):
            predicted = predicted or updates_with_estimate()
        assert predicted
        assert all(update.estimate_error_s is not None for update in predicted)
        found = client.queue().estimate_error
        assert found.count >= 5
        assert found.median_s <= found.p90_s


def test_what_was_used_is_in_the_ledger_and_survives_the_pool(tmp_path: Path) -> None:
    def used(info: RuntimeInfo) -> dict[str, float]:
        with closing(rest(info)) as client:
            return {account.account: account.used[0] for account in client.queue().accounts}

    with running_pool(tmp_path, "cpu:1") as info:
        with closing(rest(info)) as chief:
            token = chief.create_user("ann", account="vision/train").token
            chief.set_targets("vision", weight=2)
        with Client(info, token) as ann, Client(info) as owner:
            for _ in range(3):
                ann.run(act("sleep 0.05"))
            owner.run(act("sleep 0.05", "fail"))
        before = used(info)
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'pool.sqlite3'}")
    with engine.connect() as connection:
        rows = connection.execute(sa.select(usage)).all()
    engine.dispose()
    stretches = [row.ended_at_s - row.started_at_s for row in rows if row.account == "vision/train/ann"]
    assert len(stretches) == 3
    assert sum(stretches) == pytest.approx(before["vision/train/ann"], abs=1e-5)
    assert sum(stretches) > 0.15
    with running_pool(tmp_path, "cpu:1") as info:
        assert used(info) == before
        with closing(rest(info)) as chief:
            weights = {account.account: account.weight for account in chief.queue().accounts}
    assert weights["vision"] == 2


def test_limits_that_were_taken_away_do_not_come_back(tmp_path: Path) -> None:
    """Also of an account without usage."""
    with running_pool(tmp_path, "cpu:1") as info, closing(rest(info)) as chief:
        chief.set_targets("vision", limits=Limits(devices_guaranteed=1))
        chief.set_targets("speech", limits=Limits(devices_guaranteed=1), weight=3)
        assert chief.set_targets("vision", limits=Limits()).limits.devices_guaranteed is None
    with running_pool(tmp_path, "cpu:1") as info, closing(rest(info)) as chief:
        limits = {account.account: account.limits for account in chief.queue().accounts}
        assert limits.get("vision", Limits()).devices_guaranteed is None
        assert limits["speech"].devices_guaranteed == 1


def test_cordons_and_reservations_outlive_the_pool(tmp_path: Path) -> None:
    until = time.time() + 3600
    with running_pool(tmp_path, "cpu:2") as info, closing(rest(info)) as chief:
        chief.cordon("cpu:1")
        chief.cordon("cpu:0")
        chief.uncordon("cpu:0")
        chief.reserve("course", ["cpu:1"], ["vision"], ends_at=until)
        chief.reserve("given back", ["cpu:0"], ["vision"], ends_at=until)
        chief.end_reservation("given back")
        chief.describe_device("cpu:0", ["gpu=big"], ["vision"], 2.5)
        chief.describe_device("cpu:1", ["gpu=small"])
        chief.describe_device("cpu:1")
    with running_pool(tmp_path, "cpu:2") as info, Client(info) as ann, closing(rest(info)) as chief:
        waiting = ann.submit(act(""), target="cpu:1")
        assert "cordoned" in ann.until(waiting, "SUBMITTED").reason
        assert [made.name for made in chief.reservations()] == ["course"]
        first, second = chief.status().devices
        assert (first.labels, first.taints, first.price) == (
            ("gpu=big", "kind=cpu"),
            ("vision",),
            2.5,
        )
        assert (second.labels, second.taints, second.cordoned) == (("kind=cpu",), (), True)
        chief.describe_device("cpu:0")
        chief.cancel(waiting)
    with running_pool(tmp_path, "cpu:1") as info, Client(info) as ann:
        assert ann.run(act("")).outcome == "done"


def test_a_cell_that_runs_far_beyond_its_forecast_is_pointed_out(pool: RuntimeInfo) -> None:
    with Client(pool) as ann, closing(rest(pool)) as client:
        for _ in range(SAMPLES_MIN + 1):
            assert ann.run(act("sleep 0.002"), cell="loop").outcome == "done"
        stuck = ann.submit(act("sleep 30"), cell="loop")
        ann.until(stuck, "RUNNING")
        assert "Unusually" not in client.why(stuck).sentence
        wait_for(lambda: "Unusually long" in client.why(stuck).sentence)
        (shown,) = client.queue().running
        assert "so far where" in shown.unusual
        client.cancel(stuck)


def test_account_of_a_removed_user_keeps_no_share_and_no_guarantee(shared_pool: RuntimeInfo) -> None:
    pool = rest(shared_pool)
    name, _ = new_user(shared_pool)
    with http(shared_pool) as owner:
        before = owner.put(f"/v1/accounts/{name}", json={}).json()
        given = {"weight": 5.0, "limits": {"devices_guaranteed": 1}}
        assert owner.put(f"/v1/accounts/{name}", json=given).json()["weight"] == 5.0
        pool.delete_user(name)
        pool.create_user(name)
        after = owner.put(f"/v1/accounts/{name}", json={}).json()
    assert (after["weight"], after["limits"]) == (before["weight"], before["limits"])
