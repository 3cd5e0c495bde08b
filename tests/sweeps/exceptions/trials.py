"""Throws exceptions into cells at random moments, in a process of its own, and looks at what is left.

Each trial throws one: by a handler of a signal, or out of another thread. It must leave the cell as itself,
the next cell must have eager torch's values bit for bit, and values of before must still be there.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

import djinn_lab
from djinn_lab.client.session import Session

HANGS_S = 100.0
"""So long nothing but a hang takes."""
MOMENTS_S = 0.06
STEPS = 20


class Thrown(Exception):
    """What most trials throw."""


def by_signal(delay_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, delay_s)


def by_thread(delay_s: float) -> None:
    target = ctypes.c_ulong(threading.get_ident())

    def throw() -> None:
        time.sleep(delay_s)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(target, ctypes.py_object(Thrown))

    threading.Thread(target=throw, daemon=True).start()


def by_interrupt(delay_s: float) -> None:
    threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT)).start()


WAYS: dict[str, tuple[Callable[[float], None], type[BaseException]]] = {
    "signal handler": (by_signal, Thrown),
    "thread": (by_thread, Thrown),
    "Ctrl-C": (by_interrupt, KeyboardInterrupt),
}


def forward(session: Session) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
    with session.capture(), torch.no_grad():
        total = torch.zeros(1)
        for index in range(3 * STEPS):
            total += model(torch.randn(4, 8)).sum()
            if index % STEPS == 0:
                total.item()


def train(session: Session) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters())
    with session.capture():
        for index in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).pow(2).mean()
            loss.backward()
            optimizer.step()
            if index % 8 == 0:
                loss.item()


def fetch(session: Session) -> None:
    with session.capture():
        made = [torch.arange(200.0) * index for index in range(8)]
        big = torch.ones(300, 300) * 2
    for one in (*made, big):
        djinn_lab.fetch(one)
    big.numpy()


CELLS = (forward, train, fetch)


@dataclass
class Found:
    """``late``: thrown where the cell had ended. ``reported``: Python could only print it, since it came
    while something was let go."""

    thrown: int = 0
    late: int = 0
    reported: int = 0
    polluted: list[str] = field(default_factory=list)


def values() -> list[torch.Tensor]:
    """Train a little; everything that comes out."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return [loss.detach(), *(parameter.detach() for parameter in model.parameters()), torch.rand(3)]


class Trials:
    def __init__(self, seed: int, progress: Callable[[Found], None]) -> None:
        self._chance = random.Random(seed)
        self._progress = progress
        self._found = Found()
        torch.set_num_threads(1)
        self._wanted = values()
        self._session = djinn_lab.connect()
        with self._session.capture():
            self._kept = torch.arange(100.0) * 3
        self._replaced = torch.nn.Module.__call__, torch.Tensor.to, torch.load
        sys.unraisablehook = self._note_reported
        signal.signal(signal.SIGALRM, self._throw)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background ignore it
        self._reported = False

    def _throw(self, number: int, frame: object) -> None:
        raise Thrown

    def _note_reported(self, report: sys.UnraisableHookArgs) -> None:
        if issubclass(report.exc_type, (Thrown, KeyboardInterrupt)):
            self._reported = True
        else:
            sys.__unraisablehook__(report)

    def run(self, count: int) -> Found:
        for index in range(count):
            faulthandler.dump_traceback_later(HANGS_S, exit=True)
            way = self._chance.choice([*WAYS])
            cell = self._chance.choice(CELLS)
            what = f"trial {index}: {way} in {cell.__name__}"
            self._throw_into(cell, way, what)
            torch.set_grad_enabled(True)  # torch's own, which its Python may leave off
            self._look(what)
            self._progress(self._found)
        faulthandler.cancel_dump_traceback_later()
        self._session.close()
        return self._found

    def _throw_into(self, cell: Callable[[Session], None], way: str, what: str) -> None:
        arm, kind = WAYS[way]
        self._reported = ended = False
        self._found.thrown += 1
        try:
            arm(self._chance.uniform(0.0005, MOMENTS_S))
            cell(self._session)
            ended = True
            while not self._reported:
                time.sleep(0.0005)
            self._found.reported += 1
        except kind:
            self._found.late += ended
        except BaseException as error:  # noqa: BLE001 - the finding
            self._found.polluted.append(f"{what}: left as {type(error).__name__}: {error}")
            with suppress(kind):
                time.sleep(2 * MOMENTS_S)  # it may still come

    def _look(self, what: str) -> None:
        """Compare the next cell, and what was before, with eager torch."""
        try:
            problem = self._problem()
        except BaseException as error:  # noqa: BLE001 - the finding
            problem = f"the next cell raised {type(error).__name__}: {error}"
        if problem:
            self._found.polluted.append(f"{what}: {problem}")

    def _problem(self) -> str:
        if (torch.nn.Module.__call__, torch.Tensor.to, torch.load) != self._replaced:
            return "torch is left replaced"
        if signal.getsignal(signal.SIGALRM) != self._throw:
            return "a handler is left replaced"
        with self._session.capture():
            found = values()
        for mine, wanted in zip(djinn_lab.fetch(found), self._wanted, strict=True):
            if not torch.equal(mine, wanted):
                return f"the next cell has {mine.flatten()[:3]}, eager torch {wanted.flatten()[:3]}"
        if not torch.equal(djinn_lab.fetch(self._kept), torch.arange(100.0) * 3):
            return "an earlier value changed"
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    options = parser.parse_args()

    def show(found: Any) -> None:
        print(json.dumps(asdict(found)), flush=True)

    show(Trials(options.seed, show).run(options.count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
