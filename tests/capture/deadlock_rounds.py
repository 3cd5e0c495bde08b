"""Run threads that record, read, drop and collect tensors at once. If they hang, print the traceback of each
thread and exit with 1."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

import torch
from in_process import InProcessBackend, cell
from torch import nn

from djinn_lab.capture.recorders import Recorder, make_recorder

ROUNDS = 3
WATCHDOG_S = 120.0

_kept: deque[torch.Tensor] = deque(maxlen=64)
"""Made by the cell; the other threads read and drop them."""


class _Knot:
    """A reference cycle: the garbage collector alone drops its tensor, in any thread."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.itself = tensor, self


def record(recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Run a cell that trains, cuts, forks, and leaves reference cycles behind."""
    with cell(recorder):
        for _ in range(4):
            x = torch.randn(8, 16)
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            _kept.append(loss.detach() * 2)
            for part in x.unbind():
                _Knot(part + 1)
        loss.item()
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)


def read() -> None:
    """Fetch from the pool, as prints of another thread do."""
    if _kept:
        _kept[0].tolist()


def compute() -> None:
    """Ops on lazy tensors outside of the cell's thread, with a graph that ends there."""
    if _kept:
        x = _kept[-1].clone().requires_grad_()
        (x * x).backward()


def drop() -> None:
    """The last reference goes away in this thread."""
    if _kept:
        _kept.popleft()


def _repeat(step: Callable[[], object], done: threading.Event, failed: list[BaseException]) -> None:
    while not done.is_set():
        try:
            step()
        except IndexError:  # another thread dropped it first
            continue
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failed.append(error)
            return
        time.sleep(0.002)


def main() -> None:
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    sys.setswitchinterval(1e-4)
    gc.set_threshold(200)
    recorder = make_recorder(InProcessBackend())
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    done, failed = threading.Event(), list[BaseException]()
    steps = (read, compute, drop, gc.collect)
    threads = [threading.Thread(target=_repeat, args=(step, done, failed)) for step in steps]
    for thread in threads:
        thread.start()
    try:
        for _ in range(ROUNDS):
            record(recorder, model, optimizer)
    finally:
        done.set()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


if __name__ == "__main__":
    main()
