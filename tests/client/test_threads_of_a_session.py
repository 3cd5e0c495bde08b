"""Python threads and sessions: cells one at a time, tensors from any thread."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch
from real_pool import PoolUnderTest
from torch import nn

from djinn_lab.capture.host import turns
from djinn_lab.capture.lazy import is_lazy
from djinn_lab.client.session import Session
from djinn_lab.errors import UserError

pytestmark = pytest.mark.processes
THREADS = 4


def together(work: Callable[[int], None]) -> None:
    """Run a call in several threads that begin at once. Raises what one of them raises."""
    begin = threading.Barrier(THREADS)

    def one(number: int) -> None:
        begin.wait()
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, range(THREADS)))


def test_capture_in_a_second_thread_is_refused_naming_the_first(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.2)
    network, x = nn.Linear(8, 3), torch.randn(4, 8)
    expected = copy.deepcopy(network)(x)
    plain = nn.Linear(8, 3)

    def helper() -> None:
        assert type(plain(x)) is torch.Tensor
        assert type(plain.weight) is nn.Parameter, "a module of a thread without a cell stays here"
        with (
            pytest.raises(UserError, match="to capture 'inner' while thread MainThread captures 'outer'"),
            session.capture("inner"),
        ):
            raise AssertionError("the cell began")

    with session.capture("outer"):
        y = network(x)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(helper).result()
        y = y * 1
    assert torch.equal(y.detach().cpu(), expected)
    with session.capture("after"), session.capture("within"):
        again = torch.ones(2) + 1
    assert again.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("own_sessions", [False, True])
def test_cells_of_threads_take_turns(pool: PoolUnderTest, session: Session, own_sessions: bool) -> None:
    """No thread's modules, results or reports are another's."""
    weights = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)) for _ in range(THREADS)]
    plain = copy.deepcopy(weights)
    with ExitStack() as stack:
        sessions = [stack.enter_context(pool.session()) if own_sessions else session for _ in weights]

        def train(number: int) -> None:
            network, x, mine = weights[number], torch.full((8, 32), float(number)), sessions[number]
            for _ in range(5):
                with mine.capture(f"cell {number}") as cell:
                    y = network(x)
                    total = y.sum().item()
                    kept = y * 2
                assert cell.report.cell == f"cell {number}"
                assert torch.equal(y.detach().cpu(), plain[number](x))
                assert total == y.sum().item()
                assert torch.equal(mine.fetch({"kept": kept})["kept"], 2 * y.detach().cpu())

        together(train)
        assert all(is_lazy(network[0].weight) for network in weights)
        with sessions[0].capture("afterwards") as cell:
            y = weights[0](torch.ones(1, 32))
        assert cell.report.ops_run > 0
        assert torch.equal(y.detach().cpu(), plain[0](torch.ones(1, 32)))


def test_lazy_tensors_can_be_looked_at_by_several_threads_at_once(session: Session) -> None:
    with session.capture("make"):
        rows = [torch.arange(1000.0) + number for number in range(THREADS * 10)]

    def look(number: int) -> None:
        for index in range(number, len(rows), THREADS):
            assert rows[index][3].item() == 3.0 + index
            assert rows[index].sum().item() == 499500.0 + 1000 * index

    together(look)


def test_signals_of_threads_get_their_own_answers(session: Session) -> None:
    answers: list[str] = []

    def signal(number: int) -> None:
        for _ in range(5):
            answers.append(session.signal_phase("IO_WAIT", 10.0 + number).answer)
            answers.append(session.signal_phase("COMPUTE").answer)

    with session.capture("cell"):
        y = torch.ones(3) * 2
        together(signal)
    assert len(answers) == 2 * 5 * THREADS
    assert set(answers) <= {"accepted", "clipped", "deferred", "rejected"}
    assert y.tolist() == [2.0] * 3


def test_a_cell_that_fails_gives_its_turn_back(session: Session) -> None:
    with pytest.raises(ZeroDivisionError), session.capture("fails"):
        1 / 0  # noqa: B018

    def other() -> None:
        with session.capture("of another thread"):
            results.append(torch.ones(2) * 3)

    results: list[torch.Tensor] = []
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert results[0].tolist() == [3.0, 3.0]


def test_a_thread_that_reads_takes_nothing_from_the_cells_that_write(session: Session) -> None:
    """What it fetched before a write must not be taken for what is there after it."""
    with session.capture("first"):
        weight = torch.zeros(4) + 0
    over, failures = threading.Event(), list[Exception]()

    def watch() -> None:
        try:
            while not over.is_set():
                values = weight.tolist()
                assert len(set(values)) == 1
        except Exception as error:  # noqa: BLE001 - asserted below
            failures.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for number in range(60):
            with session.capture(f"write {number}"):
                for _ in range(100):
                    weight.add_(1)
                if weight[0] > 0:
                    weight.add_(1000)
            assert weight[0].item() == (number + 1) * 1100
    finally:
        over.set()
        thread.join()
    assert failures == []
