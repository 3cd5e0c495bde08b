"""Exceptions from outside, at safe moments only.

A handler of a signal may raise between any two bytecodes (Ctrl-C, ``signal.alarm``, pytest-timeout), and so
may another thread (``PyThreadState_SetAsyncExc``). Between taking an answer of the pool and noting what it
says, that would lose the answer; elsewhere it would leave torch half replaced. So all code of ours that
user code calls is held as a whole: by :func:`whole`, or as the inside of ``with held()``. What arrives
meanwhile is raised where the user's code continues. Where we wait, :func:`take` looks for it.

The C++ extension holds from before the first bytecode until after the last. Without it signals are held but
for a bytecode or two at either end, and exceptions of other threads are not.
"""

from __future__ import annotations

import signal
import sys
import threading
from _signal import getsignal, valid_signals  # type: ignore[import-not-found]
from _signal import signal as set_signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from time import perf_counter
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar, cast

from djinn_lab.native import load
from djinn_lab.system.processes import UNCATCHABLE

Function = TypeVar("Function", bound=Callable[..., Any])
Manager = TypeVar("Manager", bound=AbstractContextManager[Any])
Entered = TypeVar("Entered")
Handler = Callable[[int, FrameType | None], Any]
TICK_S = 0.05
"""So long what arrives may go unnoticed where we wait."""


class Stopped(BaseException):
    """Carries, out of a wait that holds, the exception ``error`` that arrived."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class _Lock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


class _SignalsOfThread(threading.local):
    """What a thread holds, without the extension."""

    def __init__(self) -> None:
        self.depth = 0
        self.handlers: dict[int, Handler] = {}
        self.arrived: list[int] = []

    def begin(self) -> None:
        self.depth += 1
        if self.depth > 1 or threading.current_thread() is not threading.main_thread():
            return
        for number in valid_signals() - UNCATCHABLE:
            handler = getsignal(number)
            if callable(handler) and not isinstance(handler, signal.Handlers):
                self.handlers[number] = handler
                set_signal(number, self.note)

    def note(self, number: int, frame: FrameType | None) -> None:
        self.arrived.append(number)

    def end(self) -> None:
        self.depth -= 1
        if self.depth:
            return
        handlers, self.handlers = self.handlers, {}
        for number, handler in handlers.items():
            if getsignal(number) == self.note:
                set_signal(number, handler)
        arrived, self.arrived = self.arrived, []
        _call([(handlers[number], number) for number in arrived])

    def take(self) -> BaseException | None:
        if not self.depth:
            return None
        depth, self.depth = self.depth, 1
        try:
            self.end()
        except BaseException as error:  # noqa: BLE001 - returned
            return error
        finally:
            self.begin()
            self.depth = depth
        return None


def _call(handlers: list[tuple[Handler, int]]) -> None:
    """Call them all; of what they raise, the last is raised in the context of those before."""
    for done, (handler, number) in enumerate(handlers, start=1):
        try:
            handler(number, None)
        except BaseException:
            _call(handlers[done:])
            raise


_signals = _SignalsOfThread()


class _HeldSignals:
    def __enter__(self) -> None:
        _signals.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _signals.end()


_native: Any = load("interrupts")
_held: AbstractContextManager[None] = _HeldSignals() if _native is None else _native.Held()


def held() -> AbstractContextManager[None]:
    """Return a context manager that holds inside, for this thread."""
    return _held


def whole(function: Function) -> Function:
    """Make a function hold while it runs."""
    if _native is not None:
        return cast(Function, wraps(function)(_native.Whole(function)))

    @wraps(function)
    def holding(*args: Any, **options: Any) -> Any:
        with _held:
            return function(*args, **options)

    return cast(Function, holding)


def entering(enter: Callable[[Manager], Entered]) -> Callable[[Manager], Entered]:
    """Make the ``__enter__`` of a context manager hold. What arrives meanwhile is raised once all is entered:
    Python calls no ``__exit__`` then, so that it is called here."""

    @whole
    def hold(manager: Manager, done: list[bool]) -> Entered:
        entered = enter(manager)
        done.append(True)
        return entered

    @wraps(enter)
    def entered(manager: Manager) -> Entered:
        done: list[bool] = []
        try:
            return hold(manager, done)
        except BaseException as error:
            if done:
                manager.__exit__(type(error), error, error.__traceback__)
            raise

    return entered


def file_of_caller() -> str:
    """Return the file of the code that calls a function of ours through :func:`entering`."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


def take() -> BaseException | None:
    """Return the exception that arrived since this thread holds, None without one. Handlers of signals run
    here."""
    found: BaseException | None = _signals.take() if _native is None else _native.take()
    return found


def later(stop: BaseException, arrived: BaseException | None) -> BaseException:
    """Return what a cell ends with where another exception arrived after ``stop``: to press Ctrl-C again
    changes nothing."""
    if arrived is None or (isinstance(stop, KeyboardInterrupt) and isinstance(arrived, KeyboardInterrupt)):
        return stop
    arrived.__context__ = stop
    return arrived


def check() -> None:
    """Raise Stopped with the exception that arrived, if one did."""
    error = take()
    if error is not None:
        raise Stopped(error)


def acquire(lock: _Lock, timeout_s: float | None = None) -> bool:
    """Acquire a lock while holding, and return whether it could be. Raises what arrives before."""
    if lock.acquire(blocking=False):
        return True
    deadline_s = None if timeout_s is None else perf_counter() + timeout_s
    while True:
        left_s = TICK_S if deadline_s is None else min(TICK_S, deadline_s - perf_counter())
        if left_s > 0 and lock.acquire(timeout=left_s):
            return True
        error = take()
        if error is not None:
            raise error
        if left_s <= 0:
            return False


class locked:
    """A lock inside a ``with`` statement of code that holds. Raises what arrives before it is acquired."""

    def __init__(self, lock: _Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        acquire(self._lock)

    def __exit__(self, *failure: object) -> None:
        self._lock.release()
