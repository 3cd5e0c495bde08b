"""Cells captured with ``wait=False``: handles in threads, lost workers, closed sessions, random numbers."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from cut_connections import Proxy
from device_kind import KIND
from real_pool import PoolUnderTest, kill_worker, wait_for
from torch import nn

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.client.handle import CellHandle
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.errors import CaptureError, CellCancelled, PoolLost, UserError, ValueLost

pytestmark = pytest.mark.processes
SIZE = 300


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[PoolUnderTest]:
    """A pool of its own, for tests that do it harm."""
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1") as running:
        yield running


def powers(ops: int) -> torch.Tensor:
    product, factor = torch.eye(SIZE), torch.eye(SIZE)
    for _ in range(ops):
        product = product @ factor
    return product


def sent(session: Session, ops: int, name: str | None = None) -> tuple[CellHandle, torch.Tensor]:
    with session.capture(name, wait=False) as cell:
        product = powers(ops)
        cell.result = product.sum()
    return cell.handle, product


def running(pool: PoolUnderTest, handle: CellHandle) -> str:
    """Wait until the pool runs the cell, and return its job."""
    return str(pool.wait_for_job(job=handle.job, state="RUNNING").job)


def test_handle_gives_what_the_cell_set_as_its_result(session: Session) -> None:
    with session.capture("nested", wait=False) as cell:
        y = torch.ones(3) + 1
        cell.result = {"sum": y.sum(), "rest": [y, "text"]}
    found = cell.handle.get()
    assert isinstance(found, dict)
    assert found["sum"].item() == 6
    assert found["rest"][0] is y
    assert is_lazy(y)
    assert cell.handle.get() is found
    assert "<b>nested</b>" in cell.handle._repr_html_()


def test_handle_of_a_cell_without_torch_work_is_ready(session: Session) -> None:
    with session.capture(wait=False) as cell:
        cell.result = 3
    assert cell.handle.ready
    assert cell.handle.successful
    assert cell.handle.get() == 3
    assert cell.handle.cancel() is False


def test_cell_has_no_handle_before_its_end_or_when_it_waits(session: Session) -> None:
    with session.capture() as waiting, pytest.raises(UserError, match="has no handle"):
        _ = waiting.handle
    with pytest.raises(UserError, match="has no handle"):
        _ = waiting.handle
    with session.capture(wait=False) as cell, pytest.raises(UserError, match="has no handle"):
        _ = cell.handle
    assert cell.handle.wait()


def test_report_of_a_pending_cell_is_completed_and_its_stages_make_its_total(session: Session) -> None:
    handle, _ = sent(session, 200)
    assert handle.report.outcome == "pending"
    assert wait_for(lambda: handle.ready)
    handle.get()
    report = handle.report
    assert report.outcome == "done"
    assert report.ops_run == report.ops_recorded == 203
    assert abs(report.unattributed_s) <= 0.01 * report.total_s + 1e-4
    assert handle.cell.graph.nodes
    assert handle.cell.schedule.predicted_s > 0


def test_result_is_freed_with_its_handle_and_the_sessions_last_cell(session: Session) -> None:
    with session.capture(wait=False) as cell:
        y = torch.ones(3) + 1
        cell.result = y
    handle = cell.handle
    handle.get()
    with session.capture():
        _other = torch.ones(3) + 1
    reference = weakref.ref(y)
    gc.disable()  # nothing may be in a cycle of references
    try:
        del y, cell, handle
        assert reference() is None
    finally:
        gc.enable()


def test_written_plain_tensors_are_up_to_date_when_the_cell_ends(session: Session) -> None:
    history = torch.zeros(4)
    view = history[:2]
    with session.capture(wait=False) as cell:
        history += torch.ones(4) * 2
        cell.result = history.sum()
    assert view.tolist() == [2.0, 2.0]
    assert float(cell.handle.get()) == 8  # type: ignore[arg-type]


def test_gradients_and_optimizers_over_pending_cells_equal_eager_torch(session: Session) -> None:
    def trained(capture: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        inputs = torch.randn(32, 8)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        losses = []
        for _ in range(4):
            if capture:
                with session.capture(wait=False):
                    losses.append(step())
            else:
                losses.append(step())
        return [*losses, *model.parameters(), *model.buffers()]

    for ours, theirs in zip(trained(True), trained(False), strict=True):
        assert torch.equal(ours.detach().cpu(), theirs.detach())


# -------------------------------------------------------------------- random numbers


def test_random_numbers_after_a_pending_cell_continue_its_stream(session: Session) -> None:
    torch.manual_seed(5)
    expected = [torch.randn(4), torch.randn(4), torch.rand(3)]
    torch.manual_seed(5)
    with session.capture(wait=False):
        first = torch.randn(4)
    with session.capture(wait=False) as cell:
        second = torch.randn(4)
    cell.handle.get()
    third = torch.rand(3)
    for ours, theirs in zip((first, second, third), expected, strict=True):
        assert torch.equal(ours.cpu(), theirs)


def test_seed_set_while_a_cell_is_pending_counts_even_if_it_is_the_same_seed(session: Session) -> None:
    torch.manual_seed(5)
    expected = torch.randn(4)
    torch.manual_seed(5)
    with session.capture(wait=False) as cell:
        drawn = torch.randn(4)
    torch.manual_seed(5)
    cell.handle.get()
    assert torch.equal(torch.randn(4), expected)
    assert torch.equal(drawn.cpu(), expected)


def test_plain_draws_while_a_cell_is_pending_do_not_repeat_its_numbers(session: Session) -> None:
    torch.manual_seed(5)
    with session.capture(wait=False) as cell:
        drawn = torch.randn(4)
    meanwhile = torch.randn(4)
    cell.handle.get()
    assert not torch.equal(drawn.cpu(), meanwhile)


def test_failed_pending_cell_gives_the_random_stream_back(session: Session) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with session.capture(wait=False) as cell:
        bad = torch.ones(3)[torch.tensor([9])]
        drawn = torch.randn(4) + bad
    assert cell.handle.wait()
    assert not cell.handle.successful
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueLost):
        drawn.cpu()


# -------------------------------------------------------------------- threads


def test_handle_is_read_from_another_thread_while_the_session_is_used(session: Session) -> None:
    handle, product = sent(session, 1500)
    with ThreadPoolExecutor(2) as threads:
        results = [threads.submit(handle.get) for _ in range(2)]
        watched = threads.submit(lambda: (handle.progress, handle.ready, repr(handle)))
        assert float(product[0, 0]) == 1
        assert [float(one.result()) for one in results] == [SIZE, SIZE]  # type: ignore[arg-type]
        assert watched.result()


def test_cancel_from_another_thread_ends_a_wait(session: Session) -> None:
    handle, product = sent(session, 60000)
    begun = threading.Event()

    def get() -> object:
        begun.set()
        return handle.get()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(get)
        assert begun.wait(60)
        assert handle.cancel()
        with pytest.raises(CellCancelled):
            waiting.result()
    with pytest.raises(ValueLost):
        product.cpu()
    with session.capture():
        assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]


def test_two_sessions_have_a_pending_cell_each(pool: PoolUnderTest, session: Session) -> None:
    with pool.session() as other:
        one, _ = sent(session, 400, "one")
        two, product = sent(other, 400, "two")
        assert float(two.get()) == SIZE  # type: ignore[arg-type]
        assert float(one.get()) == SIZE  # type: ignore[arg-type]
        assert float(product[0, 0]) == 1


# -------------------------------------------------------------------- what else ends a cell


def test_cell_cancelled_on_the_pool_says_so_at_the_next_use(pool: PoolUnderTest, session: Session) -> None:
    handle, _ = sent(session, 60000, "long")
    pool.rest.cancel(running(pool, handle))
    assert handle.wait()
    assert handle.progress.state == "CANCELLED"
    with pytest.raises(CellCancelled) as raised, session.capture():
        torch.ones(2) + 1
    assert "an error of long" in raised.value.__notes__[0]
    with session.capture():
        assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]


def test_handle_after_its_session_was_closed(pool: PoolUnderTest) -> None:
    with pool.session() as session:
        done, _ = sent(session, 3)
        done.get()
        pending, product = sent(session, 60000)
        running(pool, pending)
    assert float(done.get()) == SIZE  # type: ignore[arg-type]
    assert pending.ready
    assert not pending.successful
    assert pending.cancel() is False
    for use in (pending.get, lambda: product.cpu()):
        with pytest.raises((PoolLost, ValueLost)):
            use()
    assert "FAILED" in repr(pending)
    assert wait_for(lambda: pool.rest.job(str(pending.job)).state == "CANCELLED")
    with session.capture():  # opens a new session
        assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
    session.close()


def test_pending_cell_survives_its_worker_where_the_host_has_its_inputs(fragile: PoolUnderTest) -> None:
    with fragile.session() as session:
        weights = torch.eye(SIZE) * 2
        with session.capture(wait=False) as cell:
            product = powers(4000) @ weights
            cell.result = product.sum()
        handle = cell.handle
        running(fragile, handle)
        kill_worker(fragile)
        assert float(handle.get()) == 2 * SIZE  # type: ignore[arg-type]
        assert float(product[0, 0]) == 2


def test_killed_worker_between_pending_cells_is_recovered_from(fragile: PoolUnderTest) -> None:
    with fragile.session() as session:
        model = nn.Linear(8, 8)
        reference = copy.deepcopy(model)
        inputs = torch.ones(1, 8)
        with session.capture(wait=False) as cell:
            cell.result = model(inputs)
        wait_for(lambda: cell.handle.ready)
        kill_worker(fragile)
        with session.capture(wait=False) as cell:
            cell.result = model(inputs).detach()
        assert torch.equal(cell.handle.get(), reference(inputs).detach())  # type: ignore[arg-type]


@pytest.mark.parametrize("use", ["ready", "wait", "get", "fetch"])
def test_pending_cell_ends_well_though_the_connection_broke(pool: PoolUnderTest, use: str) -> None:
    with Proxy(pool.info.url) as proxy:
        session = Session(proxy.url, pool.info.token, default_profile(), "behind a proxy")
        handle, product = sent(session, 1500)
        running(pool, handle)
        proxy.cut()
        if use == "ready":
            assert wait_for(lambda: handle.ready)
        elif use == "wait":
            assert wait_for(lambda: handle.wait(0.05))
        elif use == "fetch":
            assert float(product[0, 0]) == 1
        assert float(handle.get()) == SIZE  # type: ignore[arg-type]
        assert pool.rest.job(str(handle.job)).state == "DONE"
        session.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_handle_in_a_forked_process_asks_nothing_of_the_pool(session: Session) -> None:
    handle, _ = sent(session, 1500)
    child = os.fork()
    if not child:
        told = not handle.ready and "SUBMITTED" in repr(handle)
        try:
            handle.get()
        except CaptureError:
            os._exit(0 if told else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert float(handle.get()) == SIZE  # type: ignore[arg-type]


def test_killed_pool_is_an_error_of_the_handle_and_the_next_cell_runs(fragile: PoolUnderTest) -> None:
    with fragile.session() as session:
        handle, product = sent(session, 60000)
        running(fragile, handle)
        os.kill(fragile.info.pid, signal.SIGTERM)
        with pytest.raises(PoolLost):
            handle.get()
        assert handle.ready
        with pytest.raises(ValueLost):
            product.cpu()
        fragile.start()
