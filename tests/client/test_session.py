"""A session with a real pool: results, reports, faults, and that no value of the user is lost."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from device_kind import KIND, only_cpus
from real_pool import PoolUnderTest, wait_for
from torch import nn

import djinn_lab
from djinn_lab.capture.lazy import is_lazy, recorder_of
from djinn_lab.client import executor, websocket
from djinn_lab.client.connect import connect
from djinn_lab.client.session import Session
from djinn_lab.errors import (
    AuthenticationError,
    CaptureError,
    CellCancelled,
    DeviceMemoryError,
    PoolLost,
    PoolNotFound,
    RemoteError,
    SessionLost,
    ValueLost,
)

pytestmark = pytest.mark.processes
FAULTS_ELSEWHERE = only_cpus("an index out of range is a fault of other devices, not an error of the op")


def test_a_cell_equals_eager_and_reports_where_its_time_went(session: Session) -> None:
    network = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
    plain = copy.deepcopy(network)
    x = torch.randn(32, 64)
    with session.capture("first") as cell:
        y = network(x)
    assert torch.equal(y.detach().cpu(), plain(x))
    report = cell.report
    assert report.job is not None
    assert report.device in (f"{KIND}:0", f"{KIND}:1")
    assert report.ops_run == len(cell.graph.nodes) > 0
    assert abs(report.unattributed_s) <= 0.01 * report.total_s + 0.0005
    assert cell.schedule.predicted_s > 0


def test_the_random_numbers_of_the_notebook_are_its_own(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while the connection's keep-alive runs."""
    caplog.set_level(logging.DEBUG, "websockets.client")
    monkeypatch.setattr(websocket, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(websocket, "PING_AFTER_S", 0.1)
    random.seed(7)
    np.random.seed(7)
    before, numpy_before = random.getstate(), np.random.get_state(legacy=False)
    with pool.session() as session:
        with session.capture():
            y = torch.ones(3).cuda() + 1
        assert y.tolist() == [2.0, 2.0, 2.0]
        wait_for(lambda: "< PONG" in caplog.text)
    assert random.getstate() == before
    numpy_after = np.random.get_state(legacy=False)
    assert (numpy_after["state"]["key"] == numpy_before["state"]["key"]).all()
    assert numpy_after["state"]["pos"] == numpy_before["state"]["pos"]


def test_cell_without_tensor_ops_submits_no_job(session: Session) -> None:
    jobs = len(session.pool.jobs(limit=1000))
    with session.capture() as cell:
        total = sum(range(10))
    assert total == 45
    assert cell.report.job is None
    assert len(session.pool.jobs(limit=1000)) == jobs


def test_large_tensors_go_by_content_and_only_once(session: Session) -> None:
    x = torch.randn(512, 512)
    with session.capture() as first:
        a = x.cuda() @ torch.ones(512, 1)
    with session.capture() as second:
        b = x.clone() @ torch.ones(512, 1)
    assert first.report.bytes_up > x.nbytes
    assert second.report.bytes_up < 20_000
    assert torch.equal(a.cpu(), b.cpu())
    assert torch.equal(a.cpu(), x @ torch.ones(512, 1))


def test_cuda_tells_the_memory_of_the_pools_device(pool: PoolUnderTest) -> None:
    nbytes = 4 * 2**20
    with pool.session() as session:
        [device, *_] = session.welcome.devices
        with session.capture():
            torch.cuda.reset_peak_memory_stats()
            free_before, total = torch.cuda.mem_get_info()
            before = torch.cuda.memory_allocated()
            x = torch.zeros(nbytes // 4, device="cuda")
            y = x + 1
            free, _ = torch.cuda.mem_get_info("cuda:0")
            held = torch.cuda.memory_allocated() - before
            del y
            left = torch.cuda.memory_allocated() - before
            peak = torch.cuda.max_memory_allocated()
            statistics = torch.cuda.memory_stats()
            summary = torch.cuda.memory_summary()
            for wrong, error in (("cpu", ValueError), ("nonsense", RuntimeError), (1.5, TypeError)):
                with pytest.raises(error):
                    torch.cuda.memory_allocated(wrong)
            with pytest.raises(CaptureError, match="cuda:7 does not exist"):
                torch.cuda.mem_get_info("cuda:7")
        assert total == device.memory_bytes
        assert (held, left) == (2 * nbytes, nbytes)
        assert free_before - free == held
        assert peak >= before + 2 * nbytes
        assert statistics["allocated_bytes.all.peak"] == peak
        assert "4.0 MiB are this session's" in summary
        assert x.sum() == 0


@only_cpus("nothing stops a worker whose device others share")
def test_what_was_deleted_is_not_counted_however_late_the_worker_reads_of_it(pool: PoolUnderTest) -> None:
    with pool.session() as session, session.capture():
        kept = torch.zeros(2**20, device="cuda")
        gone = kept + 1
        held = torch.cuda.memory_allocated()
        (pid,) = [row.pid for row in pool.rest.status().devices if row.device == session.device]
        os.kill(pid, signal.SIGSTOP)
        go_on = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))
        go_on.start()
        del gone
        assert torch.cuda.memory_allocated() == held - 4 * 2**20
        go_on.join()


def test_a_large_result_comes_back_whole(session: Session) -> None:
    with session.capture():
        y = torch.arange(3_000_000).view(3, -1).t() * 2
    assert torch.equal(y.cpu(), torch.arange(3_000_000).view(3, -1).t() * 2)


@FAULTS_ELSEWHERE
def test_an_error_of_the_op_keeps_its_type_and_names_the_line(session: Session) -> None:
    kept = torch.ones(3)
    with pytest.raises(IndexError) as caught, session.capture("the bad cell"):
        y = kept.cuda() + 1
        bad = y[torch.tensor([7])]
        bad.sum().item()
    assert isinstance(caught.value, RemoteError)
    assert "out of bounds" in str(caught.value)
    assert "recorded at the bad cell, line" in str(caught.value)
    assert any(line.startswith("---->") and "bad = y[" in line for line in caught.value.source)
    assert any("interpreter.py" in frame for frame in caught.value.frames)
    assert y.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(ValueLost, match="was not computed"):
        bad.tolist()


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(
            lambda: nn.functional.embedding(torch.tensor([9]), torch.ones(3, 2)).sum().item(),
            marks=FAULTS_ELSEWHERE,
        ),
        lambda: torch.multinomial(-torch.ones(3), 1).item(),
        lambda: torch.linalg.inv(torch.zeros(2, 2)).sum().item(),
    ],
    ids=["IndexError", "RuntimeError", "LinAlgError"],
)
def test_op_that_fails_on_the_pool_is_caught_in_the_cell_as_in_eager(
    session: Session, read: Callable[[], float]
) -> None:
    with pytest.raises((IndexError, RuntimeError)) as eager:
        read()
    with session.capture() as cell:
        with pytest.raises(type(eager.value)) as caught:
            read()
        after = torch.ones(2) + 1
    assert str(eager.value) in str(caught.value)
    assert cell.report.job is not None
    assert after.tolist() == [2.0, 2.0]


def test_a_tensor_larger_than_the_device_is_refused_and_nothing_is_lost(session: Session) -> None:
    with session.capture():
        kept = torch.ones(10)
    with pytest.raises(torch.OutOfMemoryError) as caught, session.capture():
        huge = torch.ones(2**30)
        huge.sum().item()
    assert isinstance(caught.value, DeviceMemoryError)
    assert kept.tolist() == [1.0] * 10


def test_an_exception_in_the_cell_keeps_what_was_made_before_it(session: Session) -> None:
    with pytest.raises(ZeroDivisionError), session.capture():
        before = torch.ones(2) * 4
        1 / 0  # noqa: B018
    assert before.tolist() == [4.0, 4.0]


def test_tensors_dropped_while_the_session_is_idle_are_freed_without_another_cell(
    pool: PoolUnderTest, session: Session
) -> None:
    def held_bytes() -> int:
        (view,) = [one for one in pool.rest.memory().sessions if one.session == session.welcome.session]
        return view.total_bytes

    with session.capture():
        kept, dropped = torch.ones(1000), torch.ones(100_000)
    wait_for(lambda: held_bytes() == 404_000)
    del dropped
    wait_for(lambda: held_bytes() == 4_000)
    assert float(kept.sum()) == 1000


def test_two_sessions_see_only_their_own(pool: PoolUnderTest, session: Session) -> None:
    with pool.session("eve") as other:
        with session.capture():
            mine = torch.full((3,), 1.0)
        with other.capture():
            theirs = torch.full((3,), 2.0)
        assert mine.tolist() == [1.0] * 3
        assert theirs.tolist() == [2.0] * 3
        with pytest.raises(djinn_lab.errors.CaptureError, match="another pool session"), other.capture():
            _ = mine + theirs


def test_a_cell_resumes_after_a_cell_of_another_session_inside_it(
    pool: PoolUnderTest, session: Session
) -> None:
    torch.manual_seed(0)
    expected = [torch.rand(3) for _ in range(3)]
    torch.manual_seed(0)
    with pool.session("nested") as other:
        with session.capture() as outer:
            drawn = [torch.rand(3)]
            with other.capture() as inner:
                drawn.append(torch.rand(3))
            drawn.append(torch.rand(3))
        assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(drawn, expected, strict=True))
        assert (outer.report.ops_recorded, inner.report.ops_recorded) == (2, 1)
        with pytest.raises(ZeroDivisionError), session.capture(), other.capture():
            1 / 0  # noqa: B018
        assert not is_lazy(torch.ones(2) * 2)


def test_values_are_released_on_the_pool(pool: PoolUnderTest) -> None:
    with pool.session() as session:
        with session.capture() as cell:
            x = torch.ones(1_000_000)
        used = _session_bytes(pool, session)
        assert used == 4_000_000
        del x, cell
        with session.capture():
            y = torch.ones(1)
        assert wait_for(lambda: _session_bytes(pool, session) == 4)
        del y


def _session_bytes(pool: PoolUnderTest, session: Session) -> int:
    name = session.welcome.session
    return sum(device.session_bytes.get(name, 0) for device in pool.rest.status().devices)


def test_closing_a_session_frees_its_memory(pool: PoolUnderTest) -> None:
    with pool.session() as session:
        with session.capture():
            kept = torch.ones(1000)
        assert _session_bytes(pool, session) == 4000
        name = session.welcome.session
    assert wait_for(lambda: name not in [row.session for row in pool.rest.sessions()])
    assert kept.shape == (1000,)
    with pytest.raises(ValueLost, match="session or pool that went away"):
        kept.tolist()
    assert not session.connected


@pytest.mark.parametrize("use", ["read", "cell", "signal"])
def test_session_that_an_operator_closed_says_so_and_the_next_cell_runs(
    pool: PoolUnderTest, use: str
) -> None:
    with pool.session() as session:
        with session.capture():
            held = torch.ones(1000) * 3
        pool.rest.close_session(session.welcome.session)
        with pytest.raises(SessionLost, match=r"closed on the pool \(by root, with `djinn-lab close`"):
            if use == "read":
                held.sum().item()
            elif use == "signal":
                session.signal_phase("SOON")
            else:
                with session.capture():
                    held.mul_(2)
        if use == "signal":  # an agent signals again and again
            assert session.signal_phase("COMPUTE").answer == "accepted"
        with session.capture():
            after = torch.ones(3) + 1
        assert after.tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(ValueLost):
            held.tolist()


def test_session_that_an_operator_closed_while_its_cell_ran_says_so(pool: PoolUnderTest) -> None:
    with pool.session() as session:
        closing = threading.Thread(target=_close_once_running, args=(pool, session.welcome.session))
        closing.start()
        with pytest.raises(SessionLost), session.capture():
            value = torch.ones(400, 400)
            for _ in range(3000):
                value = (value @ value) * 1e-3
        closing.join()


def _close_once_running(pool: PoolUnderTest, session: str) -> None:
    wait_for(lambda: [one for one in pool.rest.jobs() if one.session == session and one.state == "RUNNING"])
    pool.rest.close_session(session)


def test_fetch_and_pull(session: Session) -> None:
    network = nn.Linear(3, 2)
    with session.capture():
        y = network(torch.ones(1, 3))
    assert is_lazy(network.weight)
    tree = djinn_lab.fetch({"y": y.detach(), "n": 3, "many": [y.detach()]})
    assert type(tree["y"]) is torch.Tensor
    assert tree["n"] == 3
    fetched = djinn_lab.fetch(network)
    assert type(fetched.weight) is nn.Parameter
    weight = network.weight
    session.pull(network)
    assert network.weight is weight
    assert type(network.weight) is nn.Parameter
    assert torch.equal(network.weight, fetched.weight)


def test_execute_model(session: Session) -> None:
    network = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    expected = copy.deepcopy(network)(x)
    y = djinn_lab.execute_model(network, x, session=session)
    assert type(y) is torch.Tensor
    assert torch.equal(y, expected)


def test_a_phase_is_signalled_for_the_session_opened_last(pool: PoolUnderTest, session: Session) -> None:
    with pool.session() as newer:
        djinn_lab.signal_phase("IO_WAIT", expected_s=30.0)
        row = next(one for one in pool.rest.memory().sessions if one.session == newer.welcome.session)
        assert row.phase == "IO_WAIT"
    assert djinn_lab.signal_phase("COMPUTE").answer == "accepted"
    assert djinn_lab.signal_phase("SLEEP").answer == "rejected"
    for expected_s in (-1.0, math.nan, math.inf):
        assert djinn_lab.signal_phase("IO_WAIT", expected_s).answer == "rejected"
    row = next(one for one in pool.rest.memory().sessions if one.session == session.welcome.session)
    assert row.phase == "COMPUTE"


def test_wrong_token_and_no_pool(pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djinn_lab.client.session.PATIENCE_S", 0.0)
    with pytest.raises(AuthenticationError, match="refused the token"):
        connect(pool.info.url, token="wrong")
    with pytest.raises(AuthenticationError, match="token is empty"):
        connect(pool.info.url, token="")
    with pytest.raises(PoolNotFound, match="no pool answers"):
        connect("http://127.0.0.1:9", token="x")


def test_a_silent_pool_is_said_while_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("djinn_lab.client.session.PATIENCE_S", 2.0)
    monkeypatch.setattr("djinn_lab.client.session.SAY_AFTER_S", 0.1)
    with pytest.raises(PoolNotFound, match="no pool answers"):
        connect("http://127.0.0.1:9", token="x")
    assert "The pool at http://127.0.0.1:9 does not answer yet; trying for 2 s." in capfd.readouterr().err


def test_values_and_the_next_cell_survive_a_killed_worker(tmp_path: Path) -> None:
    with PoolUnderTest(tmp_path) as pool, pool.session() as session:
        network = nn.Linear(4, 2)
        weight = network.weight.detach().clone()
        with session.capture() as cell:
            y = network(torch.ones(1, 4))
            made = torch.ones(3) + 1
        assert y.detach().cpu().shape == (1, 2)
        devices = {row.device: row.pid for row in pool.rest.status().devices}
        os.kill(devices[cell.report.device], signal.SIGKILL)
        with session.capture():
            assert (made * 2).sum().item() == 12
        assert made.tolist() == [2.0, 2.0, 2.0]
        assert torch.equal(network.weight.detach().cpu(), weight)
        with session.capture():
            again = network(torch.ones(1, 4))
        assert torch.equal(again.detach().cpu(), y.detach().cpu())


def test_a_killed_pool_is_named_and_the_next_one_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "RESUME_S", 0.5)
    with PoolUnderTest(tmp_path) as pool:
        session = connect()
        x = torch.randn(3, 3)
        with session.capture():
            y = x.cuda() @ x
        kept = y.cpu()
        pool.kill()
        with pytest.raises(PoolLost, match="went away"), session.capture():
            _ = (y + 1).sum().item()
        for _ in range(2):
            with pytest.raises(PoolNotFound), session.capture():
                _ = x.cuda() @ x
        pool.start()
        assert torch.equal(y.cpu(), kept)
        with session.capture():
            z = y + 1
        assert torch.equal(z.cpu(), kept + 1)
        session.close()


def test_connect_starts_a_pool_when_none_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    environment = {**os.environ, "DJINN_RUNTIME_DIR": str(tmp_path)}
    for name in ("DJINN_POOL", "DJINN_TOKEN"):
        environment.pop(name, None)
    code = (
        "import torch, djinn_lab\n"
        "session = djinn_lab.connect()\n"
        "with session.capture():\n"
        "    y = torch.ones(2) + 1\n"
        "print(y.tolist())\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "[2.0, 2.0]\n", done.stderr
    finally:
        subprocess.run(
            [sys.executable, "-m", "djinn_lab.cli", "pool", "stop"],
            env=environment,
            capture_output=True,
            check=True,
        )


@pytest.mark.parametrize("before", ["", "session.close()\n"], ids=["open", "closed and used again"])
def test_a_program_that_ends_frees_the_pool(pool: PoolUnderTest, before: str) -> None:
    code = (
        "import torch, djinn_lab\n"
        f"session = djinn_lab.connect(name='short-lived')\n{before}"
        "with session.capture():\n"
        "    kept = torch.ones(1_000_000)\n"
    )
    subprocess.run([sys.executable, "-c", code], env=pool.environment, check=True)
    assert wait_for(lambda: "short-lived" not in [row.name for row in pool.rest.sessions()])


@pytest.mark.parametrize("recorder", ["native", "python"])
def test_a_model_goes_on_when_its_session_is_closed(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch, recorder: str
) -> None:
    monkeypatch.setenv("DJINN_LAB_RECORDER", recorder)
    network, x = nn.Linear(3, 2), torch.randn(4, 3)
    reference = copy.deepcopy(network)

    def train(model: nn.Linear, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    remote, local = (torch.optim.Adam(model.parameters()) for model in (network, reference))
    with pool.session() as session:
        with session.capture():
            train(network, remote)
        train(reference, local)
        session.close(keep=True)
        assert torch.equal(network(x).detach(), reference(x).detach())
        with session.capture():  # opens a new session
            loss = train(network, remote)
        assert torch.equal(loss.cpu(), train(reference, local))
        session.close()
        with pytest.raises(ValueLost, match="session or pool that went away"):
            network(x)
    with pool.session() as other, pytest.raises(CaptureError, match="bring the tensor home"), other.capture():
        network(x)


def test_execute_model_again_and_again(pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(pool.directory))
    network = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    expected = copy.deepcopy(network)(x)
    for _ in range(3):
        assert torch.equal(djinn_lab.execute_model(network, x), expected)
    recorder_of(network.weight).owner.close()  # it stays open for the next call


def test_each_stage_is_shown_and_they_sum_to_the_total(session: Session) -> None:
    with session.capture() as cell:
        y = torch.randn(1000, 1000).cuda() @ torch.randn(1000, 300)
    report = cell.report
    assert y.shape == (1000, 300)
    shown = report.lines()[1]
    assert all(name in shown for name, seconds in report.stages.items() if seconds > 1e-6)
    assert abs(report.total_s - sum(report.stages.values())) <= 0.01 * report.total_s + 0.0005


def test_an_interrupt_while_recording_ends_the_cell(pool: PoolUnderTest, session: Session) -> None:
    with session.capture():
        kept = torch.ones(2) + 1
    with pytest.raises(KeyboardInterrupt), session.capture("stopped"):
        x = weight = torch.eye(300)
        for _ in range(3000):
            x = x @ weight
        raise KeyboardInterrupt
    job = next(row for row in pool.rest.jobs(limit=5) if row.cell == "stopped")
    assert wait_for(lambda: pool.rest.job(job.job).state == "CANCELLED")
    assert kept.tolist() == [2.0, 2.0]
    with session.capture():
        again = kept * 2
    assert again.tolist() == [4.0, 4.0]


def test_a_long_cell_is_one_graph(session: Session) -> None:
    with session.capture() as cell:
        x = torch.zeros(100)
        for _ in range(5000):
            x = x + 1
    assert x[0].item() == 5000.0
    assert len(cell.graph.nodes) == 5001
    assert "sent ahead" in str(cell.report)


def test_a_cell_sent_in_parts_is_one_graph_on_the_pool(session: Session) -> None:
    with session.capture() as cell:
        x = torch.zeros(2)
        for _ in range(2500):
            x = x + 1
        total = x.sum().item()
        y = x * 2
    assert total == 5000
    job = session.pool.job(cell.report.job or "")
    assert [cut.cause for cut in job.cuts] == ["item", "cell end"]
    assert job.segments > len(job.cuts)
    graph = session.pool.graph(job.job)
    assert len(graph.nodes) == 2502
    first = session.pool.graph(job.job, segment=job.cuts[0].segment)
    assert first.nodes == graph.nodes == session.pool.graph(job.job, segment=0).nodes
    assert session.pool.program(job.job).fetch
    schedule = session.pool.schedule(job.job)
    assert len(schedule.node_end_s) == 2502
    assert len(session.pool.graph(job.job, segment=job.segments - 1).nodes) == 1
    assert y.tolist() == [5000.0, 5000.0]


def test_inputs_of_a_cell_that_never_started_can_be_used_by_the_next(tmp_path: Path) -> None:
    """One cell is cancelled in the queue, another is refused for want of memory."""
    (tmp_path / "run").mkdir()
    with (
        PoolUnderTest(tmp_path / "run", f"{KIND}:1", memory_bytes=2**28) as pool,
        pool.session("ann") as ann,
        pool.session("bob") as bob,
    ):
        busy = threading.Thread(target=lambda: long_cell(ann))
        busy.start()
        running = pool.wait_for_job(user="ann", state="RUNNING").job
        network, x, scale = nn.Linear(600, 600), torch.randn(600, 600), torch.full((4,), 3.0)
        expected = network(x)
        cancel = threading.Thread(
            target=lambda: pool.rest.cancel(pool.wait_for_job(user="bob", state="QUEUED").job)
        )
        cancel.start()
        with pytest.raises(CellCancelled), bob.capture():
            kept = network(x @ x)
            with torch.no_grad():
                scale.mul_(2)
        cancel.join()
        pool.rest.cancel(running)
        busy.join()
        with pytest.raises(DeviceMemoryError), bob.capture():
            kept = network(x.repeat(400, 1))  # noqa: F841
        with bob.capture():
            y, tripled = network(x), scale * 1
        assert torch.equal(y.detach().cpu(), expected)
        assert torch.equal(tripled.cpu(), torch.full((4,), 3.0))


def long_cell(session: Session) -> None:
    with contextlib.suppress(CellCancelled), session.capture(priority="CRITICAL"):
        value = torch.ones(1000, 1000)
        for _ in range(600):
            value = (value @ value) / 1000
