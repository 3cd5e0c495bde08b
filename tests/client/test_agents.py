"""Tools signal their waits by themselves: signals that arrive at a stand-in session and at a live pool."""

from __future__ import annotations

import asyncio
import logging
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device_kind import KIND
from real_pool import PoolUnderTest

from djinn_lab.client import agents
from djinn_lab.client.agents import DjinnCallbackHandler, ToolWaits, waiting, wrap_tools
from djinn_lab.errors import PoolLost
from djinn_lab.protocol.messages import PhaseAnswered


class StandIn:
    """A session that records the signals it receives in ``said``."""

    def __init__(self) -> None:
        self.said: list[tuple[str, float | None]] = []
        self.error: PoolLost | None = None
        self.pool = self
        self.welcome = types.SimpleNamespace(session="its id")

    def signal_phase(self, session: str, phase: str, expected_s: float | None) -> PhaseAnswered:
        assert session == "its id"
        if self.error is not None:
            raise self.error
        self.said.append((phase, expected_s))
        return PhaseAnswered("accepted", f"-> {phase}")

    @property
    def phases(self) -> list[str]:
        return [phase for phase, _ in self.said]


@pytest.fixture
def session() -> Any:
    return StandIn()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that the test sets, for the tools alone: other threads use real time."""
    now = types.SimpleNamespace(s=100.0)
    monkeypatch.setattr(agents, "time", types.SimpleNamespace(monotonic=lambda: now.s))
    return now


def test_inside_the_session_waits_and_afterwards_computes(session: Any) -> None:
    with waiting(session, 5.0) as wait:
        assert session.said == [("IO_WAIT", 5.0)]
        assert wait.answer == "accepted: -> IO_WAIT"
    assert session.said[-1] == ("COMPUTE", None)


def test_failed_tool_signals_compute_again(session: Any) -> None:
    with pytest.raises(ZeroDivisionError), waiting(session):
        _ = 1 / 0
    assert session.phases == ["IO_WAIT", "COMPUTE"]


def test_a_tool_is_expected_to_take_the_median_of_its_own_past(session: Any, clock: Any) -> None:
    def search(seconds: float) -> None:
        clock.s += seconds

    tool = waiting(session)(search)
    for seconds in (1.0, 9.0, 2.0):
        tool(seconds)
    tool(0.0)
    expected = [expected_s for phase, expected_s in session.said if phase == "IO_WAIT"]
    assert expected == [None, 1.0, 5.0, 2.0]
    with waiting(session, tool="another"):
        assert session.said[-1] == ("IO_WAIT", None)
    with waiting(session, 0.5, tool="search"):
        assert session.said[-1] == ("IO_WAIT", 0.5)


def test_overlapping_tools_signal_the_longest_wait_until_the_last_ends(session: Any, clock: Any) -> None:
    waits = ToolWaits.of(session)
    waits.begin("a", "slow", 10.0)
    clock.s += 4.0
    waits.begin("b", "fast", 1.0)
    assert session.said[-1] == ("IO_WAIT", 6.0)
    waits.begin("c", "never seen")
    assert session.said[-1] == ("IO_WAIT", None)
    assert waits.end("a") == ""
    assert waits.end("c") == ""
    assert waits.end("never begun") == ""
    assert "COMPUTE" not in session.phases
    assert waits.end("b") == "accepted: -> COMPUTE"
    assert waits.expected_s("fast") == 0.0


def test_wrapped_tools_keep_their_names_results_and_errors(session: Any) -> None:
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    async def fetch(url: str) -> str:
        assert session.phases[-1] == "IO_WAIT"
        return url.upper()

    def fail() -> None:
        raise OSError("gone")

    tools = wrap_tools({"add": add, "fetch": fetch, "fail": fail}, session)
    assert tools["add"](2, b=3) == 5
    assert (tools["add"].__name__, tools["add"].__doc__) == ("add", "Adds.")
    assert asyncio.run(tools["fetch"]("x")) == "X"
    with pytest.raises(OSError, match="gone"):
        tools["fail"]()
    assert session.phases == ["IO_WAIT", "COMPUTE"] * 3


def test_tools_in_tasks_and_threads_are_one_wait(session: Any) -> None:
    async def both() -> None:
        started = asyncio.Event()

        async def first() -> None:
            started.set()
            await asyncio.sleep(0)

        async def second() -> None:
            await started.wait()

        tools = wrap_tools({"first": first, "second": second}, session)
        await asyncio.gather(tools["first"](), tools["second"]())

    asyncio.run(both())
    assert session.phases[-1] == "COMPUTE"
    barrier = threading.Barrier(4)
    tool = waiting(session, 1.0)(lambda: barrier.wait(5))
    before = session.phases.count("COMPUTE")
    threads = [threading.Thread(target=tool) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.phases.count("COMPUTE") == before + 1
    assert session.phases[-1] == "COMPUTE"


def test_a_signal_that_does_not_arrive_is_logged_and_the_tool_runs(
    session: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session.error = PoolLost("the pool went away.", "Start it.")
    with caplog.at_level(logging.WARNING):
        assert waiting(session)(lambda: 7)() == 7
    assert "did not reach the pool" in caplog.text
    session.error = None
    with waiting(session) as wait:
        assert wait.answer.startswith("accepted")


@pytest.fixture
def langchain(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """The base class of handlers: langchain-core's own where it is installed."""
    try:
        from langchain_core.callbacks import BaseCallbackHandler
    except ModuleNotFoundError:
        import sys

        class BaseCallbackHandler:  # type: ignore[no-redef]
            ignore_agent = False

        made = types.ModuleType("langchain_core.callbacks")
        made.BaseCallbackHandler = BaseCallbackHandler  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "langchain_core", types.ModuleType("langchain_core"))
        monkeypatch.setitem(sys.modules, "langchain_core.callbacks", made)
    return BaseCallbackHandler


def test_a_langchain_handler_signals_around_tools(session: Any, langchain: type[Any], clock: Any) -> None:
    handler = DjinnCallbackHandler(session)
    assert isinstance(handler, langchain)
    assert isinstance(handler, DjinnCallbackHandler)
    assert handler.ignore_agent is False  # type: ignore[attr-defined]
    handler.on_tool_start({"name": "search"}, "what", run_id=1, parent_run_id=None, tags=[])
    clock.s += 3.0
    handler.on_tool_end("found", run_id=1)
    handler.on_tool_start({"name": "search"}, "what else", run_id=2)
    handler.on_tool_error(ValueError("no"), run_id=2)
    assert session.said == [("IO_WAIT", None), ("COMPUTE", None), ("IO_WAIT", 3.0), ("COMPUTE", None)]


def test_a_real_langchain_tool_signals(session: Any) -> None:
    tools = pytest.importorskip("langchain_core.tools")

    @tools.tool
    def search(text: str) -> str:
        """Looks it up."""
        assert session.phases == ["IO_WAIT"]
        return text.upper()

    handler = DjinnCallbackHandler(session)
    assert search.invoke("x", config={"callbacks": [handler]}) == "X"
    assert session.phases == ["IO_WAIT", "COMPUTE"]


def test_without_langchain_the_handler_is_a_plain_object(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "langchain_core", None)
    monkeypatch.setitem(sys.modules, "langchain_core.callbacks", None)
    assert type(DjinnCallbackHandler(session)) is DjinnCallbackHandler


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("agents"), devices=f"{KIND}:1", memory_bytes=2**28) as pool:
        yield pool


@pytest.mark.processes
def test_a_live_pool_sees_a_tool_as_a_wait_that_ends(live: PoolUnderTest, tmp_path: Path) -> None:
    with live.session() as opened:

        def phase() -> tuple[str, Any]:
            own = opened.welcome.session
            [found] = [one for one in live.rest.memory().sessions if one.session == own]
            return found.phase, found.wake_at_s

        tools = wrap_tools({"read": lambda: phase()}, opened)
        assert tools["read"]()[0] == "IO_WAIT"
        with waiting(opened, 60.0) as wait:
            assert wait.answer.startswith("accepted")
            assert phase()[0] == "IO_WAIT"
        assert phase()[0] == "COMPUTE"
