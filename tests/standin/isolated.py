"""Runs tests on the stand-in in processes of their own.

A device is registered with torch once a process, and a fault ends all use of it, so no test process has one.
A template process imports torch and the stand-in once and forks a child for each test, before any device is
used.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).parent
FILES = {"card", "log"}
LONGEST_S = 120
"""A child that takes longer is ended by a signal: no test waits for it longer."""


@dataclass(frozen=True)
class Task:
    """A function of a module in this folder, to be called in a child that is configured by ``settings``."""

    module: str
    function: str
    arguments: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of a child: its status by os.waitpid, and the traceback or what the function returned."""

    status: int
    trace: str = ""
    returned: Any = None


def on_standin(
    dies_by: signal.Signals | None = None, **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the decorated test in a child, where the stand-in is installed and configured by ``settings``.

    The files ``card`` and ``log`` lie in the test's ``tmp_path``. With ``dies_by`` the test passes when this
    signal ends the child.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            files = {key: str(arguments["tmp_path"] / settings[key]) for key in FILES & settings.keys()}
            module = Path(function.__code__.co_filename).stem
            task = Task(module, function.__name__, arguments, {**settings, **files})
            outcome = template().run(task)
            assert not outcome.trace, f"in the child:\n{outcome.trace}"
            ended_by = os.WTERMSIG(outcome.status) if os.WIFSIGNALED(outcome.status) else None
            assert ended_by == dies_by, f"the child ended by signal {ended_by}, status {outcome.status}"

        return run

    return decorate


class Template:
    """The process that forks the children; it ends when its input is closed.

    ``modules`` are imported there, once for all children.
    """

    def __init__(self, *modules: str) -> None:
        paths = (str(HERE), str(HERE.parent), str(HERE.parents[1]), os.environ.get("PYTHONPATH", ""))
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", "import isolated; isolated.main()", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )

    def run(self, task: Task) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(task, self._process.stdin)
        self._process.stdin.flush()
        outcome = pickle.load(self._process.stdout)
        assert isinstance(outcome, Outcome)
        return outcome

    def close(self) -> None:
        self._process.communicate()


@functools.cache
def template() -> Template:
    return Template()


def end_template() -> None:
    """End the template process where there is one."""
    if template.cache_info().currsize:
        template().close()
        template.cache_clear()


# --- in the template process --------------------------------------------------------------------------------


def serve(tasks: IO[bytes], outcomes: IO[bytes]) -> None:
    """Fork a child for each task until there are no more."""
    while True:
        try:
            task = pickle.load(tasks)
        except EOFError:
            return
        pickle.dump(_in_child(task), outcomes)
        outcomes.flush()


def _in_child(task: Task) -> Outcome:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(LONGEST_S)
        _run(task, write)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        written = answer.read()
    status = os.waitpid(child, 0)[1]
    return Outcome(status, *pickle.loads(written)) if written else Outcome(status)


def _run(task: Task, write: int) -> None:
    """Call the task's function, write what it raised or returned, and end this process."""
    import standin

    trace, returned = "", None
    try:
        standin.configure(**task.settings)
        function = inspect.unwrap(getattr(importlib.import_module(task.module), task.function))
        returned = function(**task.arguments)
    except BaseException:  # noqa: BLE001 - whatever it was, it is the test's
        trace = traceback.format_exc()
    with os.fdopen(write, "wb") as answer:
        pickle.dump((trace, returned), answer)
    os._exit(0)


def main() -> None:
    """Serve the process that started this one, with torch and the stand-in imported once for all children."""
    outcomes = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a test prints is no outcome
    import standin
    import torch

    torch.set_num_threads(1)
    standin.install()
    for module in ("pytest", *sys.argv[1:]):
        importlib.import_module(module)
    serve(sys.stdin.buffer, outcomes)
