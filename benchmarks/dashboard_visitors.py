"""How soon do 1, 10 and 50 visitors of one dashboard see a change of the pool, and what do they cost it?

One visitor is a real Chromium; the others are those of :mod:`benchmarks.visitors`. Half of these look at the
page Overview with all recent cells, half at the page Jobs: the pages with the most rows. Meanwhile the pool
runs a cell every now and then, and many more than the pages list have ended."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

import psutil
import torch

import djinn_lab
from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.dashboard_paint import FIRST_PAINT, TIMEOUT_MS, chromium, dashboard_server, missing_browser
from benchmarks.figures import OURS, Figure, Goal, figure, skipped
from benchmarks.scale_live import load_of
from benchmarks.scale_sessions import record_cell
from benchmarks.visitors import Ask, visitors_of
from djinn_lab.client.session import Session
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.runtime_file import RuntimeInfo

NAME = "dashboard-visitors"
CROWDS, QUICK_CROWDS = (1, 10, 50), (1, 3)
QUERIES = ("page=overview&show=all", "page=jobs")
SESSIONS = 10
CELLS, QUICK_CELLS = 1_000, 2
"""Of each session, before anybody looks."""
CELL_EVERY_S = 0.3
CHANGES, VISITS = 20, 5
PAUSE_S = 0.37
"""Between changes, so that they fall on all moments between two looks at the pool."""
SETTLING_S = 5.0
WATCHED_S, QUICK_WATCHED_S = 180, 2
LOOK_EVERY_S = 1.0
UPDATE = (Goal(1), Goal(1, "p99"))
PAINT, CLICK, GROWTH = Goal(2), Goal(1), Goal(1)
ALONE = "1 visitor"
LISTED, NONE_LISTED = re.compile(r"newest [1-9]\d* are listed"), "0 cells match"
MIB = 2**20


@dataclass
class Crowd:
    """What so many visitors saw, in seconds: a change, and their document when they came. ``rss_bytes`` of
    the dashboard's server, ``cpu_share`` of one core, ``bytes_per_s`` that a visitor got."""

    visitors: int
    updates_s: list[float]
    opened_s: list[float]
    rss_bytes: int
    cpu_share: float
    bytes_per_s: float


def measure(bench: Bench) -> list[Figure]:
    reason = missing_browser()
    if reason is not None:
        return [skipped(NAME, "change of the pool until a page has it", "s", reason)]
    from playwright.sync_api import sync_playwright

    growth: list[int] = []
    crowds: list[Crowd] = []
    with _pool() as info:
        jobs = _run_cells(info, bench.rounds(CELLS, QUICK_CELLS))
        with (
            closing(djinn_lab.connect(info.url, token=info.token, name="changes")) as session,
            _busy(info),
            sync_playwright() as playwright,
            closing(playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])) as browser,
        ):
            sizes = QUICK_CROWDS if bench.quick else CROWDS
            for visitors in sizes:
                watched_s = bench.rounds(WATCHED_S, QUICK_WATCHED_S) if visitors == sizes[-1] else 0
                crowd, growth = _crowd(browser, session, visitors, bench.rounds(CHANGES, 2), watched_s)
                crowds.append(crowd)
            paints_s, clicks_s = _jobs_page(browser, bench.rounds(VISITS, 1))
    page = {"jobs_of_the_pool": jobs}
    return [
        *_updates(crowds),
        *_costs(crowds, growth),
        figure(NAME, "page Jobs, first contentful paint", "s", {OURS: paints_s}, [PAINT], **page),
        figure(
            NAME, "page Jobs, click on a filter until the rows change", "s", {OURS: clicks_s}, [CLICK], **page
        ),
    ]


@contextmanager
def _pool() -> Iterator[RuntimeInfo]:
    with own_runtime():
        try:
            yield start_pool(devices="cpu:1", threads=1, wait_s=START_TIMEOUT_S)
        finally:
            stop_pool()


def _run_cells(info: RuntimeInfo, each: int) -> int:
    """Run so many cells of each session. Returns how many ended."""
    with load_of(info, record_cell(1), SESSIONS) as ask:
        ask("submit", each)
        return sum(ask("ended", 0).ended.values())


@contextmanager
def _busy(info: RuntimeInfo) -> Iterator[None]:
    """Run a cell now and then, as a notebook would."""
    over = threading.Event()

    def work() -> None:
        with closing(djinn_lab.connect(info.url, token=info.token, name="notebook")) as session:
            number = 0
            while not over.wait(CELL_EVERY_S):
                number += 1
                _cell(session, f"In [{number}]")

    thread = threading.Thread(target=work, name="notebook")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _cell(session: Session, name: str) -> None:
    with torch.no_grad(), session.capture(name):
        (torch.ones(64, 64) @ torch.ones(64, 64)).sum().item()


def _crowd(
    browser: Any, session: Session, visitors: int, changes: int, watched_s: int
) -> tuple[Crowd, list[int]]:
    """Return what a crowd saw, and the server's memory at each second afterwards, in bytes."""
    with dashboard_server() as url, visitors_of(url) as ask, closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(f"{url}?{QUERIES[0]}", wait_until="commit")
        page.get_by_text("notebook").first.wait_for(timeout=TIMEOUT_MS)
        opened_s = ask("open", [QUERIES[number % len(QUERIES)] for number in range(visitors - 1)])
        sleep(SETTLING_S)
        server = _server_of(url)
        cpu_s, got_bytes, began_s = _cpu_s(server), ask("bytes")[0], perf_counter()
        updates_s: list[float] = []
        for number in range(changes):
            updates_s += _update(session, page, ask, f"change {visitors}-{number}.")
        during_s = perf_counter() - began_s
        crowd = Crowd(
            visitors,
            updates_s,
            opened_s,
            server.memory_info().rss,
            (_cpu_s(server) - cpu_s) / during_s,
            (ask("bytes")[0] - got_bytes) / during_s / max(1, visitors - 1),
        )
        memory_bytes: list[int] = []
        for _ in range(watched_s):
            memory_bytes.append(server.memory_info().rss)
            sleep(LOOK_EVERY_S)
        return crowd, memory_bytes


def _update(session: Session, page: Any, ask: Ask, name: str) -> list[float]:
    """Run a cell of this name. Returns seconds from its submission until each visitor's page has it."""
    ask("expect", name)
    submitted_s = perf_counter()
    _cell(session, name)
    page.get_by_text(name).first.wait_for(timeout=TIMEOUT_MS)
    seen_s = [perf_counter(), *ask("seen")]
    sleep(PAUSE_S)
    return [seen - submitted_s for seen in seen_s]


def _jobs_page(browser: Any, visits: int) -> tuple[list[float], list[float]]:
    """Return seconds from the start of navigation until the first paint of the page Jobs, and from a click on
    a filter until the rows are those of it."""
    paints_s: list[float] = []
    clicks_s: list[float] = []
    with dashboard_server() as url:
        for _ in range(visits):
            with closing(browser.new_context()) as context:
                page = context.new_page()
                page.goto(f"{url}?page=jobs", wait_until="commit")
                page.get_by_text(LISTED).wait_for(timeout=TIMEOUT_MS)
                paints_s.append(page.evaluate(FIRST_PAINT) / 1e3)
                for choice, shown in (("Failed", NONE_LISTED), ("All", LISTED)):
                    clicked_s = perf_counter()
                    page.get_by_role("button", name=choice, exact=True).click()
                    page.get_by_text(shown).wait_for(timeout=TIMEOUT_MS)
                    clicks_s.append(perf_counter() - clicked_s)
    return paints_s, clicks_s


def _server_of(url: str) -> psutil.Process:
    """Return the process that listens at an address: one that this process started."""
    port = int(url.rsplit(":", 1)[1].partition("/")[0])
    for process in psutil.Process().children():
        listening = [one.laddr.port for one in process.net_connections("inet") if one.status == "LISTEN"]
        if port in listening:
            return process
    raise AssertionError("no child listens there")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _updates(crowds: Sequence[Crowd]) -> list[Figure]:
    alone = crowds[0].updates_s
    name = "change of the pool until the page has it, {} visitors"
    return [
        figure(
            NAME,
            name.format(crowd.visitors),
            "s",
            {OURS: crowd.updates_s}
            if crowd.visitors == 1
            else {OURS: crowd.updates_s, ALONE: _repeated(alone, len(crowd.updates_s))},
            UPDATE,
            cpu_share_of_a_core=crowd.cpu_share,
            bytes_per_s_of_a_visitor=crowd.bytes_per_s,
        )
        for crowd in crowds
    ]


def _repeated(samples: Sequence[float], count: int) -> list[float]:
    """Samples of different crowds make no pairs: those of one visitor are repeated, for a ratio."""
    return [samples[number % len(samples)] for number in range(count)]


def _costs(crowds: Sequence[Crowd], growth_bytes: Sequence[int]) -> list[Figure]:
    """``growth_bytes``: the server's memory with the largest crowd, at each second."""
    first, last = crowds[0], crowds[-1]
    each_mib = (last.rss_bytes - first.rss_bytes) / (last.visitors - first.visitors) / MIB
    facts: dict[str, Any] = {"rss_bytes": {f"{crowd.visitors}": crowd.rss_bytes for crowd in crowds}}
    grown = {"seconds": len(growth_bytes), "first_bytes": growth_bytes[0], "last_bytes": growth_bytes[-1]}
    return [
        figure(
            NAME, f"page until its document is there, {last.visitors} visitors", "s", {OURS: last.opened_s}
        ),
        figure(NAME, "memory of the server for a visitor", "MiB", {OURS: [each_mib]}, **facts),
        figure(
            NAME,
            f"growth of the server's memory in a minute, {last.visitors} visitors",
            "MiB",
            {OURS: [_slope(growth_bytes) * 60 / LOOK_EVERY_S / MIB]},
            [GROWTH],
            **grown,
        ),
    ]


def _slope(samples: Sequence[int]) -> float:
    """Return the slope of the straight line nearest to the samples, for a step."""
    middle, mean = (len(samples) - 1) / 2, sum(samples) / len(samples)
    above = sum((number - middle) * (value - mean) for number, value in enumerate(samples))
    return above / sum((number - middle) ** 2 for number in range(len(samples)))
