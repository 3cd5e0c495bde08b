"""Agents signal by themselves: while a tool runs their session needs no device, and is expected back.

Three ways in, for a loop of one's own (:func:`waiting`), for functions that a model may call
(:func:`wrap_tools`) and for LangChain (:class:`DjinnCallbackHandler`). A signal is a hint: it changes no
result, and when it cannot be delivered the tool runs all the same.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import logging
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from djinn_lab.client.session import Session
from djinn_lab.errors import DjinnError

REMEMBERED = 32
"""How many of a tool's last durations its expectation is made of."""
log = logging.getLogger(__name__)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ToolWaits:
    """The tools that a session waits for, and how long they took before. The tools may run in several threads
    or tasks at once: the session waits from the first one's start to the last one's end."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._identity: str | None = None
        self._lock = threading.Lock()
        self._durations: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._running: dict[object, tuple[str, float, float | None]] = {}

    @classmethod
    def of(cls, session: Session) -> ToolWaits:
        """The one of this session."""
        waits: ToolWaits = vars(session).setdefault("tool_waits", cls(session))
        return waits

    def expected_s(self, tool: str) -> float | None:
        """The median of how long the tool took lately; None when it never ran."""
        with self._lock:
            durations = self._durations.get(tool)
            return statistics.median(durations) if durations else None

    def begin(self, call: object, tool: str, expected_s: float | None = None) -> str:
        """``call`` names this call at its end. Returns the pool's answer in words, empty when there was
        none."""
        expected_s = self.expected_s(tool) if expected_s is None else expected_s
        now_s = time.monotonic()
        with self._lock:
            self._running[call] = (tool, now_s, None if expected_s is None else now_s + expected_s)
            ends = [end_s for _, _, end_s in self._running.values()]
        known = [end_s for end_s in ends if end_s is not None]
        return self._say("IO_WAIT", max(0.0, max(known) - now_s) if len(known) == len(ends) else None)

    def end(self, call: object) -> str:
        """For each begin, also when the tool failed. Unknown calls are ignored."""
        with self._lock:
            if call not in self._running:
                return ""
            tool, began_s, _ = self._running.pop(call)
            self._durations[tool].append(time.monotonic() - began_s)
            waits_on = bool(self._running)
        return "" if waits_on else self._say("COMPUTE", None)

    def _say(self, phase: str, expected_s: float | None) -> str:
        """Over REST: a tool's thread may not use the session's own connection."""
        try:
            self._identity = self._identity or self._session.welcome.session
            answered = self._session.pool.signal_phase(self._identity, phase, expected_s)
        except DjinnError as error:
            self._identity = None
            log.warning("the signal %s did not reach the pool: %s", phase, error)
            return ""
        return f"{answered.answer}: {answered.message}"


class waiting:
    """The session has nothing to compute inside: ``with waiting(session):``, ``async with``, or a decorator
    of a function or a coroutine function.

    ``expected_s``: how long it will take; by default the median of what ``tool`` (of a decorator: the
    function's name) took before. ``answer``: what the pool said, ``accepted: ...`` for instance."""

    def __init__(self, session: Session, expected_s: float | None = None, tool: str = "") -> None:
        self._waits = ToolWaits.of(session)
        self._session, self._expected_s, self._tool = session, expected_s, tool
        self.answer = ""

    def __enter__(self) -> Self:
        self.answer = self._waits.begin(self, self._tool, self._expected_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waits.end(self)

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def __call__(self, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        tool = self._tool or getattr(function, "__name__", "tool")

        def one_call() -> waiting:
            return waiting(self._session, self._expected_s, tool)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Parameters.args, **options: Parameters.kwargs) -> object:
                async with one_call():
                    return await function(*args, **options)

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def called(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
            with one_call():
                return function(*args, **options)

        return called


def wrap_tools(
    tools: Mapping[str, Callable[..., Result]], session: Session
) -> dict[str, Callable[..., Result]]:
    """The same functions by name, as one passes them to a model that calls tools; each signals around
    itself."""
    return {name: waiting(session, tool=name)(function) for name, function in tools.items()}


class DjinnCallbackHandler:
    """For LangChain: ``config={"callbacks": [DjinnCallbackHandler(session)]}``. With langchain-core installed
    its objects are ``BaseCallbackHandler``, too."""

    raise_error = False
    run_inline = False

    def __new__(cls, session: Session) -> Self:
        made: Self = object.__new__(_with_langchain_base(cls))
        return made

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._waits = ToolWaits.of(session)

    def on_tool_start(
        self, serialized: dict[str, object] | None, input_str: str, *, run_id: object, **more: object
    ) -> None:
        name = (serialized or {}).get("name") or more.get("name") or "tool"
        self._waits.begin(run_id, str(name))

    def on_tool_end(self, output: object, *, run_id: object, **more: object) -> None:
        self._waits.end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: object, **more: object) -> None:
        self._waits.end(run_id)


def _with_langchain_base(kind: type[object]) -> type[Any]:
    try:
        base = importlib.import_module("langchain_core.callbacks").BaseCallbackHandler
    except ModuleNotFoundError:
        return kind
    return kind if issubclass(kind, base) else type(kind.__name__, (kind, base), {"__doc__": kind.__doc__})
