"""Exceptions thrown into cells from outside, at any moment (``make sweep-exceptions`` throws more)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from real_pool import PoolUnderTest
from sweeps.exceptions.harness import Sum, throw

from djinn_lab.capture.host import interrupts
from djinn_lab.capture.recorders import CHOICE
from djinn_lab.capture.sending.backend import RunResult
from djinn_lab.client.cell import Cell
from djinn_lab.client.executor import PoolExecutor
from djinn_lab.client.session import Session
from djinn_lab.errors import RemoteError
from djinn_lab.native import load


class Thrown(Exception):
    pass


needs_extension = pytest.mark.skipif(load("interrupts") is None, reason="needs the C++ extension")


def send_to(thread: int) -> None:
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Thrown)) == 1


@pytest.fixture
def alarm() -> Iterator[None]:
    def throw_it(number: int, frame: object) -> None:
        raise Thrown

    before = signal.signal(signal.SIGALRM, throw_it)
    yield
    signal.signal(signal.SIGALRM, before)


@needs_extension
@pytest.mark.processes
@pytest.mark.parametrize(("recorder", "count"), [("native", 24), ("python", 8)])
def test_an_exception_at_any_moment_leaves_the_cell_as_itself_and_the_next_cell_works(
    pool: PoolUnderTest, recorder: str, count: int
) -> None:
    if recorder == "native" and load("recorder") is None:
        pytest.skip("needs the native recorder")
    total = Sum()
    throw(pool.environment, recorder, 7, count, total)
    assert not total.problems
    assert total.thrown == count


@pytest.mark.usefixtures("alarm")
def test_a_handler_that_raises_while_the_cell_waits_cancels_it(session: Session) -> None:
    with session.capture():
        kept, a = torch.arange(4.0) * 2, torch.randn(700, 700)
    with pytest.raises(Thrown) as stopped, session.capture():
        x = a
        for _ in range(400):
            x = x @ a
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        x.sum().item()
        pytest.fail("not stopped")
    assert stopped.value.__traceback__ is not None
    assert session.last_cell is not None
    assert session.pool.job(str(session.last_cell.report.job)).state == "CANCELLED"
    with session.capture():
        y = kept + 1
    assert y.tolist() == [1.0, 3.0, 5.0, 7.0]


ASKED: dict[str, Callable[[torch.Tensor], object]] = {
    "index of a tensor": lambda number: torch.arange(4)[number],
    "index of a list": lambda number: [1, 2, 3, 4][number],
    "slice": lambda number: torch.arange(4)[number:],
    "range": lambda number: range(number),  # type: ignore[call-overload]
    "view": lambda number: torch.ones(1).view(number),  # type: ignore[call-overload]
    "zeros": lambda number: torch.zeros(number),  # type: ignore[call-overload]
    "zeros of sizes": lambda number: torch.zeros([2, number]),  # type: ignore[list-item]
    "sum": lambda number: torch.ones(1, 1).sum(number),
    "tensor of numbers": lambda number: torch.tensor([number, 2]),
    "int": int,
    "float": float,
    "complex": complex,
    "bool": bool,
    "item": lambda number: number.item(),
    "tolist": lambda number: number.tolist(),
    "numpy": lambda number: number.numpy(),
    "array": lambda number: np.array([number, number]),
    "iteration": lambda number: [int(item) for item in number.expand(2)],
    "format": lambda number: f"{number:d}",
    "text": str,
    "comparison": lambda number: number == 3 or number > 2,
    "membership": lambda number: number in [3, 4],
    "equality of lists": lambda number: [number] == [number + 1],
}


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("recorder", ["native", "python"])
@pytest.mark.parametrize("asked", ASKED)
def test_a_handler_that_raises_while_a_number_is_asked_for_leaves_the_cell_as_itself(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch, recorder: str, asked: str
) -> None:
    if recorder == "native" and load("recorder") is None:
        pytest.skip("needs the native recorder")
    monkeypatch.setenv(CHOICE, recorder)
    with pool.session() as session:
        with session.capture():
            a = torch.eye(600)
        with pytest.raises(Thrown), session.capture():
            x = a
            for _ in range(1000):
                x = x @ a
            number = x[0, 0].long()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            ASKED[asked](number)
            pytest.fail("not stopped")
        with session.capture():
            y = torch.ones(2) + 1
        assert y.tolist() == [2.0, 2.0]


@pytest.mark.usefixtures("alarm")
def test_a_handler_that_raises_ends_the_wait_for_a_handle_and_cancels_the_cell(session: Session) -> None:
    with session.capture():
        a = torch.randn(700, 700)
    with session.capture(wait=False) as cell:
        x = a
        for _ in range(400):
            x = x @ a
        cell.result = x
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(Thrown):
        cell.handle.get()
    with session.capture():
        y = torch.ones(2) + 1
    assert y.tolist() == [2.0, 2.0]


@pytest.mark.skipif(load("recorder") is None, reason="the Python recorder sends nothing behind a part")
@pytest.mark.usefixtures("alarm")
def test_an_exception_while_parts_behind_a_failed_one_are_answered_leaves_the_cell(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session.capture():
        kept = torch.arange(4.0) * 2
        a = torch.randn(1500, 1500)  # slow: parts are sent behind the one that fails
    answer, answered = PoolExecutor._answer, []

    def raise_at_the_follower(self: PoolExecutor, *arguments: Any) -> RunResult:
        if answered and isinstance(answered[-1].error, RemoteError):
            signal.raise_signal(signal.SIGALRM)
        answered.append(answer(self, *arguments))
        return answered[-1]

    monkeypatch.setattr(PoolExecutor, "_answer", raise_at_the_follower)
    with pytest.raises(Thrown) as raised, session.capture():
        x, count = a, torch.zeros(4)
        for _ in range(60):
            x = (x @ a) * 1e-2
            count = count + kept[torch.tensor([9])]
            for _ in range(100):
                count = count + 1
    assert isinstance(raised.value.__context__, RemoteError)
    monkeypatch.undo()
    with session.capture():
        y = kept + 1
    assert y.tolist() == [1.0, 3.0, 5.0, 7.0]


@pytest.mark.usefixtures("alarm")
def test_an_exception_while_a_cell_begins_leaves_no_cell_open(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Cell._begin

    def interrupted(*arguments: Any) -> None:
        monkeypatch.undo()
        begin(*arguments)
        signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(Cell, "_begin", interrupted)
    cell = session.capture()
    with pytest.raises(Thrown), cell:
        pytest.fail("not stopped")
    assert not session.recorder.capturing
    assert session.executor.cell is None
    with session.capture():
        y = torch.ones(2) + 1
    assert y.tolist() == [2.0, 2.0]


@needs_extension
def test_what_a_thread_sends_arrives_also_after_a_handler_that_holds(
    request: pytest.FixtureRequest,
) -> None:
    @interrupts.whole
    def hold(number: int, frame: object) -> None:
        send_to(threading.get_ident())

    before = signal.signal(signal.SIGALRM, hold)
    request.addfinalizer(lambda: signal.signal(signal.SIGALRM, before))
    for _ in range(2):
        with pytest.raises(Thrown):
            with interrupts.held():
                signal.raise_signal(signal.SIGALRM)
            for _ in range(10):
                pass


@needs_extension
def test_what_a_thread_sends_is_raised_where_holding_ends() -> None:
    done = []

    @interrupts.whole
    def hold() -> None:
        send_to(threading.get_ident())
        done.extend(range(100))

    with pytest.raises(Thrown):
        hold()
        for _ in range(10):
            pass
    assert len(done) == 100


@needs_extension
def test_what_a_thread_sends_is_taken_where_code_waits() -> None:
    with interrupts.held():
        send_to(threading.get_ident())
        assert isinstance(interrupts.take(), Thrown)
        assert interrupts.take() is None


@pytest.mark.usefixtures("alarm")
def test_a_held_exception_names_the_one_in_flight_as_its_context() -> None:
    with pytest.raises(Thrown) as raised, interrupts.held():
        signal.raise_signal(signal.SIGALRM)
        raise ValueError
    assert isinstance(raised.value.__context__, ValueError)


def test_a_child_of_code_that_holds_holds_too() -> None:
    with interrupts.held():
        child = os.fork()
        if child == 0:
            with interrupts.held():
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


TRACED = """
import ctypes, sys, threading
from djinn_lab.capture.host.interrupts import held

class Thrown(Exception): pass

def call(): pass

def work():
    me = ctypes.c_ulong(threading.get_ident())
    with held():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(me, ctypes.py_object(Thrown))
        call()
    call()

def trace(*about): return trace

sys.settrace(trace)
try:
    work()
except Thrown:
    print("arrived")
"""


def test_what_a_thread_sends_arrives_under_a_debugger() -> None:
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=60)
    assert done.stdout == "arrived\n", done.stderr
