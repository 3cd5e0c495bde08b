"""Guaranteed devices on a live pool: a flood of long cells is preempted for them, and for no more."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from device_kind import KIND
from msgspec.structs import replace
from pool_kit import Client, rest, running_pool
from real_pool import PoolUnderTest, wait_for
from training import training

from djinn_lab.cli import main
from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import OptionError
from djinn_lab.jobs.decision import POLICIES
from djinn_lab.jobs.fairness import Limits

pytestmark = pytest.mark.processes

MIB = 2**20
STEPS = 800
ONLY_RANK = replace(POLICIES["default"], name="only rank", preempts=("rank",))
"""A policy that preempts neither for fairness nor for size."""


def limits_of(client: PoolClient, account: str) -> Limits:
    found = next(one for one in client.queue().accounts if one.account == account)
    return found.limits


def times_preempted(client: PoolClient, job: str) -> int:
    """How often the job itself was preempted."""
    events = client.job(job).events
    return sum(line.event == "SegmentPreempted" and line.detail["job"] == job for line in events)


def test_guarantee_preempts_one_cell_of_a_flood_and_leaves_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long, _ = training(STEPS, size=512, ballast_bytes=4 * MIB)
    with PoolUnderTest(tmp_path, f"{KIND}:2", 256 * MIB) as pool, ExitStack() as stack:
        chief, info = pool.rest, pool.info
        chief.set_policy(ONLY_RANK)
        ann = chief.create_user("ann", account="speech").token
        bob = chief.create_user("bob", account="vision").token
        chief.set_targets("vision", limits=Limits(devices_guaranteed=1))
        flood = [stack.enter_context(Client(info, ann)) for _ in range(3)]
        cells = [one.submit(long) for one in flood]
        wait_for(lambda: [len(getattr(chief.queue(), part)) for part in ("running", "waiting")] == [2, 1])
        [third] = [job.job for job in chief.queue().waiting]
        first, second = (stack.enter_context(Client(info, bob)) for _ in range(2))
        mine = first.submit(long)
        first.until(mine, "RUNNING")
        more = second.submit(long)
        second.until(more, "QUEUED")
        wait_for(lambda: sum(times_preempted(chief, cell) for cell in cells) == 1)
        [victim] = [cell for cell in cells if times_preempted(chief, cell)]
        [stays] = set(cells) - {victim, third}
        states = {job.job: job.state for job in chief.jobs()}
        assert (states[mine], states[stays], states[more]) == ("RUNNING", "RUNNING", "QUEUED")
        assert "vision is within its 1 guaranteed device." in chief.job(victim).reason
        answers = {job: chief.why(job) for job in (mine, stays, more)}
        assert "GUARANTEED: with it, vision holds 1 device (1 guaranteed)" in answers[mine].sentence
        assert "BURSTABLE: with it, vision holds 2 devices (1 guaranteed)" in answers[more].sentence
        assert answers[stays].qos.qos_class == "BURSTABLE"
        queue = chief.queue()
        rows = {job.job: job.qos for job in (*queue.running, *queue.waiting)}
        assert rows == dict.fromkeys((*cells, more), "BURSTABLE") | {mine: "GUARANTEED"}
        with pytest.raises(SystemExit):
            main(("queue",))
        assert "NORMAL GUARANTEED" in " ".join(capsys.readouterr().out.split())
        assert [times_preempted(chief, job) for job in (victim, stays, mine)] == [1, 0, 0]
        for job in (more, third, mine, stays):
            chief.cancel(job)
        wait_for(lambda: chief.job(victim).state == "RUNNING")
        chief.cancel(victim)


def test_cordoned_device_that_a_guarantee_needs_is_a_warning_until_it_serves_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long, _ = training(STEPS, size=512, ballast_bytes=4 * MIB)
    with PoolUnderTest(tmp_path, f"{KIND}:2", 256 * MIB) as pool, ExitStack() as stack:
        chief, info = pool.rest, pool.info
        bob = chief.create_user("bob", account="vision").token
        chief.set_targets("vision", limits=Limits(devices_guaranteed=2))
        assert not chief.status().warnings
        chief.cordon(f"{KIND}:1")
        [warning] = chief.status().warnings
        assert warning == (
            "Accounts of the pool are guaranteed 2 devices together, and the pool has 2, of which 1 is "
            "cordoned or down: not all can have theirs at once."
        )
        with pytest.raises(SystemExit):
            main(("pool", "status"))
        assert f"Warning: {warning}" in " ".join(capsys.readouterr().out.split())
        first, second = (stack.enter_context(Client(info, bob)) for _ in range(2))
        mine = first.submit(long)
        first.until(mine, "RUNNING")
        more = second.submit(long)
        second.until(more, "QUEUED")
        its_class = "Its class is GUARANTEED: with it, vision holds 2 devices (2 guaranteed)."
        assert f"{its_class} {warning}" in chief.why(more).sentence
        [shown] = [one.overcommitted for one in chief.queue().accounts if one.account == "vision"]
        assert shown == warning
        chief.uncordon(f"{KIND}:1")
        wait_for(lambda: chief.job(more).state == "RUNNING")
        assert not chief.status().warnings
        for job in (mine, more):
            chief.cancel(job)


def test_guarantees_are_validated_reported_and_survive_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def share(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(("share", *words))
        assert not ended.value.code
        return " ".join(capsys.readouterr().out.split())

    with running_pool(tmp_path, "cpu:2") as info, closing(rest(info)) as chief:
        with pytest.raises(SystemExit, match="1"):
            main(("share", "vision", "--devices", "2"))
        assert "No user is in an account 'vision'" in capsys.readouterr().err
        said = share("vision", "--devices", "2", "--guaranteed", "1", "--new")
        assert "devices guaranteed 1" in said
        assert "together" not in said
        said = share("speech", "--guaranteed", "2", "--new")
        assert "guaranteed 3 devices together, and the pool has 2" in said
        with pytest.raises(OptionError, match="whose limit is 2"):
            chief.set_targets("vision", limits=Limits(devices_max=2, devices_guaranteed=3))
        with pytest.raises(OptionError, match="0 or more"):
            chief.set_targets("vision", limits=Limits(devices_guaranteed=-1))
    with running_pool(tmp_path, "cpu:2") as info, closing(rest(info)) as chief:
        assert limits_of(chief, "vision").devices_guaranteed == 1
        assert limits_of(chief, "vision").devices_max == 2
        assert limits_of(chief, "speech").devices_guaranteed == 2
