"""What the pool's process asks of a launcher outside its event loop, beside its interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from djinn_lab.pool.devices.launcher import Launcher, TakenCopy
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.launchers.adoption import LeftCopy


class PoolLauncher(Launcher, Protocol):
    """Each of :mod:`djinn_lab.pool.launchers` is one."""

    def warm(self, plan: DevicePlan) -> None:
        """Start a device's first process before :meth:`spawn`, where that is possible."""

    def take_over(self, copies: Mapping[str, LeftCopy], left: Sequence[Path]) -> dict[str, TakenCopy]:
        """Take over the sessions that dead pools parked, by session, before any :meth:`spawn`; what is not
        among the result is gone. ``left``: their directories."""

    def kill(self) -> None:
        """End every worker at once, for good."""
