"""Put this folder on the path of every test, for the kits that several folders share, and fail a module that
leaves threads behind.

A thread that still runs disturbs later tests: a connection's keep-alive, for instance, draws from ``random``
while hypothesis depends on its state.

Property tests have the same examples every time; ``make sweep-examples`` looks for others.

Every process computes with one thread, as on the devices of the tests' pools: kernels that add up a part in
every thread round differently with two.

A shell starts what runs in the background with interrupts ignored, which kernels and pools would inherit.

All that a test process starts ends with it (:mod:`ending`)."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from ending import end_with_this_process
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None, max_examples=35)
settings.register_profile("search", derandomize=False, deadline=None)
settings.load_profile("same")
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

end_with_this_process()
FIRST_BEGAN_S = pytest.StashKey[float]()
SERVE_ALL = (
    *("in-process worker", "asyncio_", "ThreadPoolExecutor-", "QueueFeederThread", "asyncio-waitpid-"),
    "tqdm_monitor",
)
"""Names of threads that outlive a module on purpose: of executors that are used again, and of torch's data
loaders and export, asyncio and playwright."""
ENDS_WITHIN_S = 20.0
LONG = ("browser", "compiles", "processes")
"""Marks of tests that take long."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget-s", type=float, help="skip tests that would begin so long after the first one")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))


class FailuresAtOnce:
    """Names each failure when it happens, on a line of its own: a run that is stopped has named them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"{report.when} failed: {report.nodeid}", red=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes, let each begin with the long files, those with pools and browsers: a long one at
    the end would run alone."""
    if hasattr(config, "workerinput"):
        count = Counter(item.path for item in items)
        long = {item.path for item in items if set(LONG) & {mark.name for mark in item.iter_markers()}}
        items.sort(key=lambda item: (item.path not in long, -count[item.path], item.path))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """``make check`` is quick whatever was touched; ``make test`` runs all."""
    budget_s, now_s = item.config.getoption("--budget-s"), time.monotonic()
    if budget_s is not None and now_s - item.session.stash.setdefault(FIRST_BEGAN_S, now_s) > budget_s:
        pytest.skip("left for make test")


@pytest.fixture(scope="module", autouse=True)
def leaves_no_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline_s = time.monotonic() + ENDS_WITHIN_S
    while left := [one for one in threading.enumerate() if _is_left(one, before)]:
        assert time.monotonic() < deadline_s, f"threads that no test ended: {left}"
        time.sleep(0.01)


def _is_left(thread: threading.Thread, before: set[threading.Thread]) -> bool:
    return thread not in before and not thread.name.startswith(SERVE_ALL)
