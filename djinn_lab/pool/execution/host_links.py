"""Tells session memory how fast the links between hosts are."""

from __future__ import annotations

from djinn_lab import memory
from djinn_lab.pool.execution.driver import Driver

CHANGED = 0.2
"""A rate that changed by a smaller part decides nothing new."""


class HostLinks:
    """Pass on the rates that the launcher measured, as they change."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._known: dict[str, float] = {}

    def follow(self) -> None:
        for host in self._driver.launcher.hosts():
            rate, known = host.link_bytes_per_s, self._known.get(host.name)
            if rate is None or (known is not None and abs(rate - known) < CHANGED * known):
                continue
            self._known[host.name] = rate
            at_s = self._driver.core.clock.now_s()
            self._driver.handle(memory.HostLinkMeasured(at_s, host.name, rate))
