"""Slow work off the event loop, its result back on it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import msgspec
import panel as pn

from djinn_lab.errors import DjinnError, PoolError

Result = TypeVar("Result")


class Background:
    """Runs functions on ``executor`` for one browser session.

    Of several runs with the same ``key`` only the latest one's result is delivered.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._document = pn.state.curdoc
        self._latest: dict[str, int] = {}

    def run(
        self,
        key: str,
        work: Callable[[], Result],
        done: Callable[[Result], None],
        failed: Callable[[DjinnError], None],
    ) -> Future[Any]:
        """``done`` or ``failed`` is called on the session's event loop (at once where there is none)."""
        number = self._latest.get(key, 0) + 1
        self._latest[key] = number

        def deliver(call: Callable[[Any], None], value: object) -> None:
            def on_loop() -> None:
                if self._latest[key] == number:
                    call(value)

            if self._document is None or self._document.session_context is None:
                on_loop()
            else:
                self._document.add_next_tick_callback(on_loop)

        def task() -> None:
            try:
                result = work()
            except DjinnError as error:
                deliver(failed, error)
            except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
                deliver(failed, PoolError(f"The pool's answer is not understood: {error!r}"))
            else:
                deliver(done, result)

        return self._executor.submit(task)
