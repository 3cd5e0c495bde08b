"""Memory that several processes share: each sees at once what another one wrote, in and out of cells. And
forks, which see what the notebook had read before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import cell
from torch import multiprocessing, nn

from djinn_lab.capture.recorders import Recorder

_FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.usefixtures("no_sharer")


@pytest.fixture
def no_sharer() -> Iterator[None]:
    """End the thread that gives other processes what a queue refers to."""
    yield
    resource_sharer.stop()


def in_child(function: Callable[[], Any]) -> Any:
    """Run a function in a fork of this process, and return what it returns as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            try:
                said = repr(function())
            except BaseException as error:  # noqa: BLE001 - the parent asserts on it
                said = f"{type(error).__name__}: {error}"
            os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


def from_file(path: Path) -> torch.Tensor:
    np.ones(3, dtype=np.float32).tofile(path / "shared")
    return torch.from_file(str(path / "shared"), shared=True, size=3)


def from_queue(path: Path) -> torch.Tensor:
    queue = _FORK.SimpleQueue()
    queue.put(torch.ones(3))
    received: torch.Tensor = queue.get()
    return received


SHARED: dict[str, Callable[[Path], torch.Tensor]] = {
    "share_memory_": lambda path: torch.ones(3).share_memory_(),
    "a parameter": lambda path: nn.Parameter(torch.ones(3), requires_grad=False).share_memory_(),
    "from_file": from_file,
    "from a queue": from_queue,
    "a memory map": lambda path: torch.from_numpy(np.memmap(path / "map", np.float32, "w+", shape=3)).fill_(
        1
    ),
}


@pytest.mark.parametrize("kind", SHARED)
def test_what_another_process_writes_is_read(kind: str, recorder: Recorder, tmp_path: Path) -> None:
    shared = SHARED[kind](tmp_path)
    with cell(recorder):
        first = shared + 1
        in_child(lambda: shared.fill_(5))
        second = shared + 1
    in_child(lambda: shared.fill_(7))
    with cell(recorder):
        third = shared + 1
    assert [first.tolist(), second.tolist(), third.tolist()] == [[2.0] * 3, [6.0] * 3, [8.0] * 3]


@pytest.mark.parametrize("kind", SHARED)
def test_another_process_reads_what_a_cell_writes(kind: str, recorder: Recorder, tmp_path: Path) -> None:
    shared = SHARED[kind](tmp_path)
    with cell(recorder):
        shared.mul_(torch.full((3,), 3.0))
        assert in_child(shared.tolist) == "[3.0, 3.0, 3.0]"
    assert in_child(shared.tolist) == "[3.0, 3.0, 3.0]"


def test_a_model_and_its_optimizer_are_shared_while_a_cell_trains(recorder: Recorder) -> None:
    model = nn.Linear(2, 1)
    model.share_memory()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)

    def train() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 2)).square().sum().backward()
        optimizer.step()

    train()
    moments = [state["exp_avg"].share_memory_() for state in optimizer.state.values()]
    before = [model.weight.tolist(), moments[0].tolist()]
    with cell(recorder):
        train()
        seen = in_child(lambda: [model.weight.tolist(), moments[0].tolist()])
        assert seen == repr([model.weight.tolist(), moments[0].tolist()])
    assert seen != repr(before)


def test_gradients_that_are_shared(recorder: Recorder) -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.zeros(3).share_memory_()
    with cell(recorder):
        (weight * 2).sum().backward()
        assert in_child(weight.grad.tolist) == "[2.0, 2.0, 2.0]"


def test_a_model_is_shared_after_a_cell_used_it(recorder: Recorder) -> None:
    model = nn.Linear(2, 1, bias=False)
    with cell(recorder):
        model(torch.ones(1, 2))
    model.share_memory()
    assert model.weight.is_shared()
    with cell(recorder), torch.no_grad():
        model.weight.fill_(3.0)
        assert in_child(model.weight.tolist) == "[[3.0, 3.0]]"
        in_child(lambda: model.weight.data.fill_(4.0))
        doubled = model.weight * 2
    assert doubled.tolist() == [[8.0, 8.0]]


def test_a_captured_tensor_is_sent_through_a_queue(recorder: Recorder) -> None:
    queue = _FORK.SimpleQueue()
    with cell(recorder):
        sent = torch.arange(3.0) * 2
    queue.put(sent)
    received = queue.get()
    assert received.tolist() == [0.0, 2.0, 4.0]
    received.fill_(9)
    with cell(recorder):
        more = sent + 1
        sent.zero_()
    assert more.tolist() == [10.0] * 3
    assert received.tolist() == [0.0] * 3


def test_a_fork_reads_the_parameters_that_were_read_before(recorder: Recorder) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with cell(recorder):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    weight = model.weight.tolist()
    assert in_child(model.weight.tolist) == repr(weight)
    assert in_child((model.weight * 2).tolist) == repr([[2 * weight[0][0], 2 * weight[0][1]]])
    unread = in_child(model.bias.tolist)
    assert unread.startswith("CaptureError: this process was forked")
    assert "session.pull(model)" in unread
    model.bias.tolist()
    assert in_child(model(torch.ones(1, 2)).tolist) == repr(model(torch.ones(1, 2)).tolist())
