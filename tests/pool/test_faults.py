"""Workers and pools die: the errors that users get, and the state that the next pool finds."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pool_kit import Client, act, held, read, rest, running_pool, until_dead
from real_pool import wait_for
from websockets.exceptions import ConnectionClosed

from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import OptionError, PoolError, PoolLost, PoolNotFound
from djinn_lab.pool.launch import LOG_FILE, start_pool, stop_pool
from djinn_lab.pool.launch import running_pool as find_running_pool
from djinn_lab.protocol.rest.status import DeviceView
from djinn_lab.protocol.runtime_file import FILE_NAME, RuntimeInfo, read_runtime
from djinn_lab.system.liveness import process_is_alive


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeInfo]:
    """A pool whose workers die again and again."""
    with running_pool(tmp_path_factory.mktemp("faults")) as info:
        yield info


def restarts(info: RuntimeInfo, device: str) -> int:
    (found,) = [one for one in rest(info).status().devices if one.device == device]
    return int(found.restarts)


def until_state(info: RuntimeInfo, device: str, state: str) -> DeviceView:
    """Wait for the device to be in ``state``."""
    deadline = time.monotonic() + 60
    while True:
        (found,) = [one for one in rest(info).status().devices if one.device == device]
        if found.state == state:
            return found
        assert time.monotonic() < deadline, found


def test_a_cell_whose_op_kills_its_worker_twice_fails_alone(pool: RuntimeInfo) -> None:
    before = restarts(pool, "cpu:0")
    with Client(pool) as ann, Client(pool) as bob, Client(pool) as cy:
        assert ann.run(act("", keep=True), target="cpu:0").outcome == "done"
        assert bob.run(act("", keep=True), target="cpu:0").outcome == "done"
        assert cy.run(act("", keep=True), target="cpu:1").outcome == "done"
        result = ann.run(act("", "crash"), target="cpu:0")
        assert (result.outcome, result.device) == ("failed", "cpu:0")
        assert result.error is not None
        assert (result.error.family, result.error.type_name) == ("pool", "WorkerLost")
        assert (
            "cpu:0 was killed by SIGKILL while it ran this cell, for the second time" in result.error.message
        )
        assert "An op of this cell may be what ends it" in result.error.advice
        assert cy.run(read(held(1))).outcome == "done"
        again = bob.run(read(held(1)))
        assert again.outcome == "done"
        assert "worker of cpu:0 lost; 1 value by replay of 1 op" in again.recovery
        assert ann.run(read(held(1))).outcome == "done"
        assert until_state(pool, "cpu:0", "idle").restarts == before + 2


def test_worn_out_worker_is_started_anew_and_its_sessions_lose_nothing(pool: RuntimeInfo) -> None:
    before = restarts(pool, "cpu:0")
    with Client(pool) as ann, Client(pool) as bob:
        assert ann.run(act("", keep=True), target="cpu:0").outcome == "done"
        assert bob.run(act("", "wear"), target="cpu:0").outcome == "done"
        wait_for(lambda: restarts(pool, "cpu:0") > before)
        again = ann.run(read(held(1)))
        assert again.outcome == "done"
        assert "1 value by replay of 1 op" in again.recovery


def test_a_worker_killed_while_idle_comes_back(pool: RuntimeInfo) -> None:
    first = until_state(pool, "cpu:1", "idle")
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    wait_for(lambda: restarts(pool, "cpu:1") > first.restarts)
    with Client(pool) as client:
        assert client.run(act(""), target="cpu:1").outcome == "done"
    second = until_state(pool, "cpu:1", "idle")
    assert second.pid != first.pid
    assert second.restarts == first.restarts + 1


def test_running_and_queued_cells_move_to_another_device(pool: RuntimeInfo) -> None:
    with Client(pool) as ann, Client(pool) as bob:
        running = ann.submit(act("sleep 1"), target="cpu:0")
        ann.until(running, "RUNNING")
        queued = bob.submit(act(""), target="cpu:0")
        bob.until(queued, "QUEUED")
        worker = until_state(pool, "cpu:0", "busy").pid
        assert worker is not None
        os.kill(worker, signal.SIGTERM)
        again = ann.result(running)
        assert (again.outcome, again.executed) == ("done", 1)
        assert "worker of cpu:0 lost in cell 1; the cell ran again" in again.recovery
        charged = [row for row in rest(pool).usage() if row.job == running]
        assert [row.stretches for row in charged] == [1]  # the lost run is not charged
        assert bob.result(queued).outcome == "done"


def is_reset(info: RuntimeInfo) -> bool:
    """Return whether a connection is reset, as while the machine still closes what a killed server had."""
    try:
        rest(info).status()
    except PoolLost:
        return True
    except PoolNotFound:
        return False
    raise AssertionError("a killed pool answers")


def test_a_pool_killed_in_mid_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_pool(tmp_path, "cpu:1") as first:
        found = PoolClient.find()
        with Client(first) as client:
            job = client.submit(act("sleep 20"))
            client.until(job, "RUNNING")
            workers = [device.pid for device in rest(first).status().devices]
            blobs = Path(str(client.welcome.blob_directory)).parent
            os.kill(first.pid, signal.SIGKILL)
            with pytest.raises(ConnectionClosed):
                client.result(job)
            until_dead(first.pid)
        assert find_running_pool() is None
        with pytest.raises(PoolNotFound, match="djinn-lab pool start"):
            PoolClient.find()
        wait_for(lambda: not is_reset(first))
        with pytest.raises(PoolNotFound, match="djinn-lab pool start"):
            rest(first).status()
        for pid in workers:
            until_dead(pid)
        assert blobs.exists()
        with running_pool(tmp_path, "cpu:1") as second:
            assert (second.url, second.token) == (first.url, first.token)
            assert found.status().pool == second.pool
            assert not blobs.exists()
            view = rest(second).job(job)
            assert (view.state, view.segments, view.finished_at) == ("WAITING", 0, None)
            with Client(second, session=client.session) as again:
                assert again.welcome.resumed
                assert again.run(act(""), job=job, again=True).outcome == "done"
            ended = rest(second).job(job)
            assert (ended.state, ended.segments, ended.submitted_at) == ("DONE", 1, view.submitted_at)
            assert [row.stretches for row in rest(second).usage() if row.job == job] == [1]


def test_sigterm_leaves_nothing_behind(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1") as info:
        with Client(info) as client:
            job = client.submit(act("sleep 20"))
            client.until(job, "RUNNING")
            workers = [device.pid for device in rest(info).status().devices]
            blobs = Path(str(client.welcome.blob_directory)).parent
            assert blobs.stat().st_mode & 0o777 == 0o700
            assert stop_pool()
            assert not stop_pool()
        assert not blobs.exists()
        assert not (tmp_path / FILE_NAME).exists()
        assert not any(process_is_alive(pid) for pid in workers)


def test_jobs_that_a_stopped_pool_leaves_fail_and_say_so(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1") as first, Client(first) as ran, Client(first) as waited:
        running = ran.submit(act("sleep 20"))
        ran.until(running, "RUNNING")
        waiting = waited.submit(act(""))
        waited.until(waiting, "QUEUED")
        assert stop_pool()
    with running_pool(tmp_path, "cpu:1") as second:
        for job in (running, waiting):
            view = rest(second).job(job)
            assert (view.state, view.reason) == (
                "FAILED",
                "Failed: the pool stopped while the job was unfinished.",
            )


def test_an_admin_stops_the_pool_from_afar(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1") as info:
        rest(info).shutdown()
        until_dead(info.pid)


def test_a_second_start_finds_the_first_pool(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1") as info:
        assert start_pool(devices="cpu:2") == info
        found = PoolClient.find()
        assert found.url == info.url
        assert found.status().ready


def test_a_pool_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit('no such device')")
    with pytest.raises(PoolError, match=r"(?s)end of its log.*no such device.*exited with code 1"):
        with running_pool(tmp_path, "cpu:1", worker_command=command):
            raise AssertionError
    assert (tmp_path / LOG_FILE).stat().st_mode & 0o777 == 0o600


def test_a_pool_that_is_never_ready_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path))
    command = (sys.executable, "-c", "import sys; sys.stdin.read(); import time; time.sleep(60)")
    with pytest.raises(PoolError, match="not ready within 1 s"):
        start_pool(devices="cpu:1", worker_command=command, wait_s=1)
    assert read_runtime() is None
    with pytest.raises(OptionError, match="names no devices"):
        start_pool(devices="tpu:3")


def test_a_taken_port(tmp_path: Path) -> None:
    with running_pool(tmp_path / "one", "cpu:1") as info:
        port = int(info.url.rpartition(":")[2])
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DJINN_RUNTIME_DIR", str(tmp_path / "two"))
            with pytest.raises(PoolError, match=f"Port {port} of 127.0.0.1 cannot be used"):
                start_pool(devices="cpu:1", port=port, worker_command=("sleep", "60"))
