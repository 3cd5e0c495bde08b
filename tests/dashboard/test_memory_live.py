"""The page about session memory while a live pool moves sessions: four hold more than the device."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from device_kind import KIND
from real_pool import PoolUnderTest, wait_for

from djinn_lab.client.agents import waiting
from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.background import Background
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Hub
from djinn_lab.dashboard.memory.page import MemoryPage
from djinn_lab.dashboard.route import Route
from djinn_lab.dashboard.widgets.theme import DARK

pytestmark = pytest.mark.processes
MIB = 2**20
DEVICE_BYTES = 64 * MIB
STATE_BYTES = 20 * MIB
"""Three of these fit the device."""
LINK_BYTES_PER_S = 100 * MIB


@pytest.fixture(scope="module")
def pool(directory: Path) -> Iterator[PoolUnderTest]:
    (directory / "run").mkdir()
    with PoolUnderTest(
        directory / "run",
        f"{KIND}:1",
        DEVICE_BYTES,
        host_bytes=4 * DEVICE_BYTES,
        link_bytes_per_s=LINK_BYTES_PER_S,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def crowd(pool: PoolUnderTest) -> Iterator[list[tuple[Any, Any]]]:
    """Five sessions with 20 MiB each, and their tensors."""
    import torch

    import djinn_lab

    opened = []
    for number in range(5):
        session = djinn_lab.connect(name=f"notebook {number}")
        with session.capture():
            held = torch.arange(STATE_BYTES // 4, dtype=torch.int32) + number
        opened.append((session, held))
    yield opened
    for session, _ in opened:
        session.close()


def compute(session: Any, held: Any) -> int:
    """A cell that needs the session's state."""
    with session.capture():
        return int(held[:4].sum().item())


def tier(pool: PoolUnderTest, session: Any) -> str:
    own = session.welcome.session
    return next(one.tier for one in pool.rest.memory().sessions if one.session == own)


def parked(crowd: list[tuple[Any, Any]], pool: PoolUnderTest) -> tuple[int, tuple[Any, Any]]:
    """The first session that is on the host, with its number."""
    found: tuple[int, tuple[Any, Any]] = wait_for(
        lambda: next(((n, one) for n, one in enumerate(crowd) if tier(pool, one[0]) == "host"), None)
    )
    return found


@pytest.fixture
def board(crowd: Any) -> Iterator[Board]:
    hub = Hub(PoolClient.find)
    hub.poll()
    yield Board(hub, Route(), Background(hub.executor), DARK)
    hub.stop()


def test_memory_page_follows_a_session_parked_and_restored(
    board: Board, crowd: list[tuple[Any, Any]]
) -> None:
    page = MemoryPage(board)

    def shown_as_parked() -> list[str]:
        board.hub.poll()
        page.update(board.hub.snapshot())
        return [row["id"] for row in page.sessions.rows if row["state"]["text"] == "parked on the host"]

    own = wait_for(shown_as_parked)[0]
    assert re.search(r"parked \d+\.\d MiB", page.devices.object)
    number = [session.welcome.session for session, _ in crowd].index(own)
    assert compute(*crowd[number]) == 6 + 4 * number
    board.hub.poll()
    page.sessions.selected = own
    page.update(board.hub.snapshot())
    assert "hashes compared in 0" not in page.figures.object
    assert {"restored", "woke up"} <= {row["what"] for row in page.story.rows}
    restored = next(row for row in page.story.rows if row["what"] == "restored")
    assert restored["bytes"]["sort"] >= STATE_BYTES
    assert restored["reason"] not in ("", "done")
    assert sum(page.wakes.source.data["count"]) >= 1
    assert "restored" in page.lanes.copies.data["what"]
    assert "evicted" in page.lanes.marks.data["what"]


def test_metrics_of_the_pool_count_the_moves(crowd: list[tuple[Any, Any]], pool: PoolUnderTest) -> None:
    for session, held in crowd:
        compute(session, held)
    headers = {"Authorization": f"Bearer {pool.info.token}"}
    page = httpx.get(f"{pool.info.url}/metrics", headers=headers, trust_env=False).text
    found = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    for name in (
        'djinn_memory_transfers_total{kind="evict"}',
        'djinn_memory_transfers_total{kind="restore"}',
        'djinn_memory_transfers_total{kind="store"}',
        'djinn_memory_transferred_bytes_total{direction="in"}',
        'djinn_memory_transferred_bytes_total{direction="out"}',
        "djinn_memory_hash_checks_total",
        'djinn_wake_ups_total{outcome="wait"}',
        "djinn_wake_up_seconds_count",
        'djinn_wake_up_ratio{quantile="0.99"}',
        'djinn_memory_sessions{tier="host"}',
        'djinn_memory_session_bytes{part="stored"}',
    ):
        assert float(found[name]) > 0, name
    assert float(found["djinn_memory_hash_mismatches_total"]) == 0


@pytest.mark.browser
def test_the_browser_sees_moves_as_they_happen(
    visitor: Any, dashboard_url: str, crowd: list[tuple[Any, Any]], pool: PoolUnderTest
) -> None:
    page = visitor.open(f"{dashboard_url}?page=memory&theme=dark")
    page.wait_for_selector(".pill:text-is('parked on the host')")
    _, (session, held) = parked(crowd, pool)
    own = session.welcome.session
    page.click(f"tr[data-id='{own}']")
    page.wait_for_selector(f"table.facts >> text={own}")
    compute(session, held)
    done_s = time.monotonic()
    page.wait_for_selector("table.facts >> text=on a device")
    print(f"\nthe page shows a restore {time.monotonic() - done_s:.2f} s after it")
    page.wait_for_selector("td:text-is('restored')")
    page.wait_for_selector("td:text-is('woke up')")
    with waiting(session, 45.0):
        page.wait_for_selector(f"tr[data-id='{own}'] >> text=io wait")
        page.wait_for_selector("table.facts >> text=IO_WAIT, connected")
    page.wait_for_selector("table.facts >> text=COMPUTE, connected")
