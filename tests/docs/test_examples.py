"""The examples of docs/extending.md run as they stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import Script

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.background import Background
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Hub, Snapshot
from djinn_lab.dashboard.route import Route
from djinn_lab.dashboard.widgets.theme import current_look
from djinn_lab.errors import PoolNotFound
from djinn_lab.protocol.rest.status import PoolStatus
from djinn_lab.srg.graph import SRG

PAGE = Path(__file__).parents[2] / "docs/extending.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]


def title_of(section: str) -> str:
    return section.partition("\n")[0]


def code_of(section: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE))


def no_pool() -> PoolClient:
    raise PoolNotFound("No pool is running on this machine.")


@pytest.fixture
def board() -> Iterator[Board]:
    """Of a dashboard that has found no pool."""
    hub = Hub(no_pool)
    yield Board(hub, Route(), Background(hub.executor), current_look())
    hub.stop()


def a_graph() -> SRG:
    script = Script()
    value = script.source((64, 64))
    for _ in range(3):
        value = script.op("aten.relu.default", value)
    return SRG.from_program(script.program(keep=(value,)))


def test_each_kind_of_extension_has_an_example() -> None:
    assert [title_of(section) for section in SECTIONS if not code_of(section)] == []
    assert len(SECTIONS) == 9


@pytest.mark.parametrize("section", SECTIONS, ids=title_of)
def test_an_example_runs(section: str, board: Board) -> None:
    """Each example asserts its own result."""
    snapshot = Snapshot(connection="live", status=PoolStatus("pool", uptime_s=61.0))
    names: dict[str, Any] = {"board": board, "snapshot": snapshot, "graph": a_graph()}
    code = code_of(section)
    assert "assert " in code
    exec(compile(code, str(PAGE), "exec"), names)
