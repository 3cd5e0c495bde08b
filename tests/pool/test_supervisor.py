"""A pool's server that crashes is started again by itself; one that was stopped, or cannot start, is not."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from pool_kit import Client, act, rest, running_pool, until_dead
from real_pool import wait_for
from typer.testing import CliRunner

from djinn_lab.cli.app import build_app
from djinn_lab.client.connect import connect
from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import PoolError, PoolNotFound, PoolSilent
from djinn_lab.jobs import Terms
from djinn_lab.pool import supervisor
from djinn_lab.pool.devices import plans
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.runtime_file import (
    DIRECTORY_VARIABLE,
    RuntimeInfo,
    read_runtime,
    supervisor_process,
)
from djinn_lab.system.host import SHARED_MEMORY

CRASHING = ("/bin/sh", "-c", "echo x >> {0}; kill -SEGV $$")


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ok(*arguments: str) -> str:
    """Run a command, and return what it printed."""
    done = CliRunner().invoke(build_app(), arguments)
    assert done.exit_code == 0, done.exception
    return done.output


@pytest.mark.processes
def test_killed_server_is_back_on_its_port_with_the_session_and_its_cell(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1", restart=True) as first:
        keeper = supervisor_process()
        assert keeper is not None
        assert psutil.Process(first.pid).ppid() == keeper
        assert psutil.Process(keeper).memory_info().rss < 16 * 2**20
        with Client(first) as client:
            done = client.submit(act("", keep=True))
            client.result(done)
            job = client.submit(act("sleep 60"))
            client.until(job, "RUNNING")
            os.kill(first.pid, signal.SIGKILL)
            until_dead(first.pid)
        with closing(connect(first.url, token=first.token)) as newcomer:
            assert newcomer.connected
        second: RuntimeInfo = wait_for(read_runtime)
        assert second.pid != first.pid
        assert (second.url, second.token) == (first.url, first.token)
        assert start_pool(devices="cpu:1") == second
        assert supervisor_process() == keeper
        with Client(first, session=client.session) as client:
            assert client.welcome.resumed
            assert client.run(act(""), job=job, again=True).outcome == "done"
            assert client.run(act(""), terms=Terms(after=(done[:12],))).outcome == "done"
        assert {one.state for one in rest(second).jobs()} == {"DONE"}
        assert stop_pool()
        until_dead(keeper)
        until_dead(second.pid)
        assert supervisor_process() is None
        assert not stop_pool()


@pytest.mark.processes
def test_a_pool_that_starts_for_the_first_time_is_not_said_to_have_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    command = [sys.executable, "-m", "djinn_lab.cli", "pool", "start", "--devices", "cpu:1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as starting:
        keeper = wait_for(supervisor_process)
        os.kill(keeper, signal.SIGSTOP)  # whatever is asked now is asked before the pool is there
        try:
            if read_runtime() is None:
                with pytest.raises(PoolSilent, match=f"The pool on this machine starts .process {keeper}"):
                    PoolClient.find()
        finally:
            os.kill(keeper, signal.SIGCONT)
            assert starting.wait(120) == 0
            assert stop_pool()


@pytest.mark.processes
def test_status_and_stop_while_the_server_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_pool(tmp_path, "cpu:1", restart=True) as info:
        keeper = supervisor_process()
        assert keeper is not None
        os.kill(keeper, signal.SIGSTOP)
        os.kill(info.pid, signal.SIGKILL)
        until_dead(info.pid)
        shown = CliRunner().invoke(build_app(), ["pool", "status"])
        assert shown.exit_code != 0
        assert "is being started again" in str(shown.exception or shown.output)
        monkeypatch.setenv("DJINN_POOL", "http://127.0.0.1:1")
        shown = CliRunner().invoke(build_app(), ["pool", "status"])
        assert "no pool answers at http://127.0.0.1:1" in str(shown.exception or shown.output)
        monkeypatch.delenv("DJINN_POOL")
        os.kill(keeper, signal.SIGTERM)
        os.kill(keeper, signal.SIGCONT)
        until_dead(keeper)
        assert read_runtime() is None


@pytest.mark.processes
def test_server_that_cannot_start_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(PoolError, match="could not start"):
        start_pool(devices="cpu:1", worker_command=("/bin/false",))
    assert supervisor_process() is None
    assert "started again" not in (tmp_path / "pool.log").read_text()


def test_server_that_crashes_over_and_over_stays_down(
    tmp_path: Path, handlers: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_MIN_S", 0.0)
    starts = tmp_path / "starts"
    command = [part.format(starts) for part in CRASHING]
    assert supervisor.Supervisor(command).run() == -signal.SIGSEGV
    assert len(starts.read_text().split()) == supervisor.RESTARTS_MAX + 1
    assert "was killed by SIGSEGV" in capfd.readouterr().err


@pytest.mark.parametrize("code", [supervisor.CANNOT_START, supervisor.CANNOT_START_NOW])
def test_server_that_served_and_cannot_start_now_is_tried_until_it_can(
    code: int, tmp_path: Path, handlers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_MIN_S", 0.0)
    starts = tmp_path / "starts"
    tries = supervisor.RESTARTS_MAX + 5
    count = f"echo x >> {starts}; n=$(wc -l < {starts})"
    act = f'[ "$n" = 1 ] && kill -SEGV $$; [ "$n" -gt {tries} ] && exit 0; exit {code}'
    assert supervisor.Supervisor(["/bin/sh", "-c", f"{count}; {act}"]).run() == 0
    assert len(starts.read_text().split()) == tries + 1


def test_full_log_does_not_end_the_supervisor(tmp_path: Path) -> None:
    script = [sys.executable, "-S", "-E", supervisor.__file__, str(tmp_path / "lock")]
    crash_once = f"[ -e {tmp_path}/crashed ] && exit 0; touch {tmp_path}/crashed; kill -SEGV $$"
    with open("/dev/full", "w") as full:
        assert subprocess.run([*script, "/bin/sh", "-c", crash_once], stderr=full).returncode == 0


@pytest.mark.processes
def test_crashed_pool_is_started_again_as_it_was_or_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_pool(tmp_path, "cpu:2", restart=True, memory_bytes=200 * 2**20) as info:

        def crash() -> None:
            found, keeper = read_runtime(), supervisor_process()
            assert found is not None
            assert keeper is not None
            for pid in (keeper, found.pid):
                os.kill(pid, signal.SIGKILL)
                until_dead(pid)

        crash()
        with closing(connect()) as session:
            assert [one.memory_bytes for one in session.welcome.devices] == [200 * 2**20] * 2
        again = read_runtime()
        assert again is not None
        assert (again.url, again.settings) == (info.url, info.settings)
        crash()
        monkeypatch.setenv("DJINN_DATABASE", f"sqlite:///{tmp_path / 'other.sqlite3'}")
        with pytest.raises(PoolNotFound, match="djinn-lab pool stop"):
            connect()
        monkeypatch.delenv("DJINN_DATABASE")
        assert "given up" in CliRunner().invoke(build_app(), ["pool", "stop"]).output
        assert "No pool is running" in str(CliRunner().invoke(build_app(), ["pool", "stop"]).exception)


@pytest.mark.processes
@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="this system has no shared memory as files")
def test_killed_server_comes_back_with_its_host_memory_whatever_is_free_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for free in ("largest_host_bytes", "free_shared_memory"):  # more than the server will find
        monkeypatch.setattr(plans, free, lambda: 2**50)
    all_of_it = shutil.disk_usage(SHARED_MEMORY).total
    with running_pool(tmp_path, "cpu:1", restart=True, host_bytes=all_of_it) as info:
        os.kill(info.pid, signal.SIGKILL)
        until_dead(info.pid)
        with closing(connect()) as session:
            assert [one.memory_bytes for one in session.welcome.devices] == [info.settings["memory_bytes"]]
        again = read_runtime()
        assert again is not None
        assert again.settings == info.settings


@pytest.mark.processes
def test_pool_with_options_is_named_after_a_reboot_and_never_replaced_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("DJINN_RUNTIME_DIR", "DJINN_POOL", "DJINN_DATABASE", "DJINN_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("XDG_RUNTIME_DIR", "XDG_DATA_HOME"):
        (tmp_path / variable).mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(tmp_path / variable))
    command = ["pool", "start", "--devices", "cpu:2", "--memory", "200MiB", "--threads", "1"]
    started = ok(*command, "--wait", "120")

    def reboot() -> None:
        info, keeper = read_runtime(), supervisor_process()
        assert info is not None
        assert keeper is not None
        ended = [psutil.Process(keeper), psutil.Process(info.pid)]
        ended += psutil.Process(info.pid).children(recursive=True)
        for process in ended:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(ended)
        shutil.rmtree(tmp_path / "XDG_RUNTIME_DIR" / "djinn-lab")

    try:
        reboot()
        for profile in (None, "llm_serving"):
            with pytest.raises(PoolNotFound, match=shlex.join(["djinn-lab", *command])) as raised:
                connect(profile=profile)
            assert "pool stop" in str(raised.value)
        assert shlex.join(command) in str(CliRunner().invoke(build_app(), ["pool", "status"]).exception)
        assert read_runtime() is None
        again = ok(*command, "--wait", "120")
        assert "cpu:2, 200.0 MiB and 1 thread each" in started
        assert "cpu:2, 200.0 MiB and 1 thread each" in again
        reboot()
        assert "given up" in ok("pool", "stop")
        assert "No pool is running" in str(CliRunner().invoke(build_app(), ["pool", "stop"]).exception)
        with closing(connect()) as session:
            assert session.connected
        assert not list((tmp_path / "XDG_DATA_HOME" / "djinn-lab").glob("started-on-*"))
        assert "stopped" in ok("pool", "stop")
    finally:
        stop_pool()


@pytest.mark.parametrize("code", [0, supervisor.CANNOT_START, supervisor.CANNOT_START_NOW])
def test_server_that_ends_by_itself_is_not_started_again(code: int, handlers: None) -> None:
    assert supervisor.Supervisor(["/bin/sh", "-c", f"exit {code}"]).run() == code


def test_stop_between_two_starts_ends_the_supervisor(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    command = [part.format(starts) for part in CRASHING]
    script = [sys.executable, "-S", "-E", supervisor.__file__, str(tmp_path / "lock")]
    told = tmp_path / "told"
    with told.open("w") as errors, subprocess.Popen([*script, *command], stderr=errors) as process:
        wait_for(lambda: "started again in 3.2 s" in told.read_text())
        process.terminate()
        assert process.wait() == 0
    assert len(starts.read_text().split()) == 6
