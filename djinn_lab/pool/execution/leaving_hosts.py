"""Empties hosts that are about to be taken away."""

from __future__ import annotations

from djinn_lab import jobs
from djinn_lab.pool.execution.driver import Driver


class LeavingHosts:
    """Cordon and drain the devices of such hosts, until these serve again. What operators cordoned stays
    so."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._cordoned: set[str] = set()

    def follow(self) -> None:
        leaving = {one for host in self._driver.launcher.hosts() if host.leaves for one in host.devices}
        if leaving == self._cordoned:
            return
        core = self._driver.core
        serving = {view.device for view in core.queue.devices() if not view.cordoned}
        for device in sorted((leaving - self._cordoned) & serving):
            self._cordoned.add(device)
            self._driver.handle(jobs.DeviceCordoned(core.clock.now_s(), device, cordoned=True, drain=True))
        for device in sorted(self._cordoned - leaving):
            self._cordoned.discard(device)
            self._driver.handle(jobs.DeviceCordoned(core.clock.now_s(), device, cordoned=False))
