"""Ctrl-C at every moment of a round trip."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch

from djinn_lab.capture.host import interrupts
from djinn_lab.capture.sending.segment import Segment
from djinn_lab.client import cell, executor
from djinn_lab.client.blobs import BlobTransfer
from djinn_lab.client.cell import Cell
from djinn_lab.client.connection import PoolConnection
from djinn_lab.client.session import Session
from djinn_lab.errors import CancelFailed, CellCancelled, ValueLost
from djinn_lab.protocol.messages import SegmentResult


def _interrupt_after(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Interrupt once, when this method is about to return (of messages: a segment's result)."""
    original, times = getattr(owner, name), iter([None])

    def interrupted(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if (name != "_next" or isinstance(result, SegmentResult)) and next(times, "none left") is None:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (PoolConnection, "_next"),
        (PoolConnection, "send"),
        (executor.PoolExecutor, "submit"),
        (executor.PoolExecutor, "result"),
        (BlobTransfer, "read"),
        (Segment, "_settle"),
    ],
)
def test_interrupt_in_a_round_trip_stops_the_cell_and_loses_no_answer(
    session: Session, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    monkeypatch.setattr(executor, "CANCEL_TIMEOUT_S", 1.0)
    with session.capture():
        kept = torch.ones(2) * 4
    with pytest.raises(KeyboardInterrupt), session.capture():
        x = torch.ones(2) + 1
        _interrupt_after(monkeypatch, owner, name)
        x.sum().item()
        pytest.fail("not stopped")
    with session.capture():
        y = kept + 1
    assert y.tolist() == [5.0, 5.0]


def long_cell(session: Session, a: torch.Tensor) -> torch.Tensor:
    """Several parts are on their way when it ends; the device is busy for a while."""
    with session.capture():
        x, count = a, torch.zeros(4)
        for _ in range(60):
            x = (x @ a) * 1e-2
            for _ in range(100):
                count = count + 1
    return count


def outlast_presses() -> None:
    """Presses later than the first stop are none of the test's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(0.1)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("presses", [1, 2, 3])
def test_stopping_a_cell_of_many_parts_leaves_earlier_values_readable(
    session: Session, monkeypatch: pytest.MonkeyPatch, presses: int
) -> None:
    with session.capture():
        kept, a = torch.arange(4.0) * 2, torch.randn(700, 700)
    ended = Cell._flush

    def press(ending: Cell, error: BaseException | None) -> None:
        monkeypatch.setattr(Cell, "_flush", ended)
        first = threading.Event()

        def press_again() -> None:
            first.wait()
            for _ in range(presses - 1):
                time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press_again).start()
        first.set()
        signal.raise_signal(signal.SIGINT)
        ended(ending, error)

    monkeypatch.setattr(Cell, "_flush", press)
    with pytest.raises(KeyboardInterrupt):
        try:
            long_cell(session, a)
        finally:
            outlast_presses()
    assert kept.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert long_cell(session, a).tolist() == [6000.0] * 4


def test_a_second_stop_while_the_pool_stops_the_cell_changes_nothing(session: Session) -> None:
    with session.capture():
        kept, a = torch.arange(4.0) * 2, torch.randn(700, 700)
    for at_s in (0.3, 0.301, 0.31):
        threading.Timer(at_s, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt) as stopped:
        try:
            for _ in range(100):
                long_cell(session, a)
        finally:
            outlast_presses()
    assert not isinstance(stopped.value, CancelFailed)
    assert kept.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert long_cell(session, a).tolist() == [6000.0] * 4


def test_what_was_recorded_before_an_interrupt_is_computed(session: Session) -> None:
    """Recorded ops have their eager results, also where the pool was several parts behind."""
    for steps in (100, 3000, 9000):
        x, y, done = torch.zeros(1), torch.nn.Parameter(torch.zeros(1)), 0
        with pytest.raises(KeyboardInterrupt), session.capture(), torch.no_grad():
            z = torch.zeros(1)
            for _ in range(steps):
                x += 1
                y += 1
                z += 1
                done += 1
            raise KeyboardInterrupt
        assert x.item() == y.item() == z.item() == done == steps


def test_interrupted_cell_that_takes_too_long_is_cancelled(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell, "RECORDED_TIMEOUT_S", 0.0)
    x = torch.ones(600, 600) / 600
    with pytest.raises(CellCancelled, match="stopped on cpu:"), session.capture():
        for _ in range(3000):
            x = x @ x
        raise KeyboardInterrupt
    with pytest.raises(ValueLost, match="was not computed: stopped on cpu:"):
        x.sum().item()
    with session.capture():
        y = torch.ones(2) + 1
    assert y.tolist() == [2.0, 2.0]


def test_held_interrupts_take_effect_at_the_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts.held():
        signal.raise_signal(signal.SIGINT)
        with interrupts.held():
            done.append("inside")
        done.append("held by the outer one")
    assert len(done) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_held_interrupts_are_taken_where_code_waits() -> None:
    with interrupts.held():
        signal.raise_signal(signal.SIGINT)
        assert isinstance(interrupts.take(), KeyboardInterrupt)
        assert interrupts.take() is None


def test_handler_of_the_user_is_called_with_held_interrupts(request: pytest.FixtureRequest) -> None:
    called = []
    before = signal.signal(signal.SIGINT, lambda number, frame: called.append(number))
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with interrupts.held():
        signal.raise_signal(signal.SIGINT)
        assert called == []
    assert called == [signal.SIGINT]


class Ended(BaseException):
    """As a time limit's exception that is no Exception."""


def test_cell_that_ends_with_a_base_exception_leaves_the_random_stream_as_eager_torch(
    session: Session,
) -> None:
    torch.manual_seed(1)
    with pytest.raises(Ended), session.capture():
        torch.rand(3)
        raise Ended
    after = torch.rand(3)
    with session.capture():
        captured = torch.rand(3)
    torch.manual_seed(1)
    torch.rand(3)
    assert torch.equal(after, torch.rand(3))
    assert torch.equal(captured.cpu(), torch.rand(3))
