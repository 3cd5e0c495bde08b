"""Slow work off the event loop, its result back on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

import msgspec
import panel as pn

from djinn_lab.errors import DjinnError, PoolError

Result = TypeVar("Result")
Value = TypeVar("Value")


def in_one_message(call: Callable[[], object]) -> Callable[[], None]:
    """Send all that ``call`` changes on a page to the browser at once.

    Bokeh sends a change of its models when the callback ends, Panel at once or, where the socket is being
    written to, later still: a change came before the model that it is one of, which no browser takes.
    """

    def held() -> None:
        with pn.io.hold():
            call()

    return held


class Background:
    """Runs functions on ``executor`` for one browser session.

    Of several runs with the same ``key`` only the latest one's result is delivered.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._document = pn.state.curdoc
        self._latest: dict[str, int] = {}
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], object]] | None = [] if self._is_served else None

    @property
    def _is_served(self) -> bool:
        return self._document is not None and self._document.session_context is not None

    @property
    def loaded(self) -> bool:
        """Return whether the browser has the page; changes made earlier can get lost on their way to it."""
        return self._waiting is None

    def page_loaded(self) -> None:
        """Deliver the results that waited for the browser. Call it once, when the browser has the page."""
        with self._lock:
            waiting, self._waiting = self._waiting or [], None
        for call in waiting:
            self.soon(call)

    def soon(self, call: Callable[[], object]) -> None:
        """Call on the session's event loop, holding its document (at once where there is no session).

        Bokeh models may be changed there, and not in the handlers of Panel's widgets.
        """
        with self._lock:
            if self._waiting is not None:
                self._waiting.append(call)
                return
        if self._is_served:
            self._document.add_next_tick_callback(in_one_message(call))
        else:
            call()

    def run(
        self,
        key: str,
        work: Callable[[], Result],
        done: Callable[[Result], None],
        failed: Callable[[DjinnError], None],
    ) -> None:
        """``done`` or ``failed`` is called on the session's event loop."""
        number = self._latest.get(key, 0) + 1
        self._latest[key] = number

        def deliver(call: Callable[[Value], None], value: Value) -> None:
            def if_latest() -> None:
                if self._latest[key] == number:
                    call(value)

            self.soon(if_latest)

        def task() -> None:
            try:
                result = work()
            except DjinnError as error:
                deliver(failed, error)
            except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
                deliver(failed, PoolError(f"The pool's answer is not understood: {error!r}"))
            else:
                deliver(done, result)

        self._executor.submit(task)
