"""The local launcher: the workers of this machine's devices as processes, spoken to over socket pairs.

Workers are forked from one template process (:mod:`djinn_lab.pool.launchers.template`), or started by a given
command. Each device's are kept by :mod:`djinn_lab.pool.launchers.device`. A dead worker closes its end of the
pair, which is seen at once."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path

from djinn_lab.pool.blobs.directory import PARKED
from djinn_lab.pool.devices.launcher import HostHealth, TakenCopy, WorkerEvents, WorkerHealth
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.launchers.adoption import LeftCopy
from djinn_lab.pool.launchers.device import DeviceWorkers
from djinn_lab.pool.launchers.premises import Premises
from djinn_lab.pool.launchers.processes import WORKER_COMMAND, CommandStarter, Starter
from djinn_lab.protocol.worker import Cancel, CopyOrder, Preempt, RunOrder


class LocalLauncher:
    """Run the workers of this machine's devices as processes. See
    :class:`~djinn_lab.pool.devices.launcher.Launcher`.

    ``blob_directory``: of :mod:`djinn_lab.pool.blobs.store`. ``worker_command``: starts each worker, in place
    of a template. ``host_directory``, ``disk_directory``: where workers park sessions; None where no plan
    has such a tier.
    """

    def __init__(
        self,
        blob_directory: Path,
        worker_command: Sequence[str] | None = None,
        host_directory: Path | None = None,
        disk_directory: Path | None = None,
    ) -> None:
        self._starter = _starter(worker_command)
        self._premises = Premises(self._starter, blob_directory, host_directory, disk_directory)
        self._devices: dict[str, DeviceWorkers] = {}

    # -- the interface -------------------------------------------------------------------------------------

    def spawn(self, plan: DevicePlan, events: WorkerEvents) -> None:
        self.warm(plan)
        self._premises.events = events
        self._starter.attach()
        self._devices[plan.device].serve(events)

    def run(self, device: str, order: RunOrder) -> None:
        if not self._premises.stopping:
            self._devices[device].run(order)

    def copy(self, device: str, order: CopyOrder) -> None:
        if not self._premises.stopping:
            self._devices[device].copy(order)
            self._premises.sweep()

    def cancel(self, device: str, job: str) -> None:
        self._devices[device].send(Cancel(job))

    def preempt(self, device: str, job: str, segment: int) -> None:
        self._devices[device].send(Preempt(job, segment))

    def health(self, device: str) -> WorkerHealth:
        return self._devices[device].health()

    def hosts(self) -> Sequence[HostHealth]:
        return ()

    def cluster_dashboard(self) -> str:
        return ""

    def node_supply(self) -> None:
        return None

    def holder(self, device: str, session: str) -> Hashable:
        return self._devices[device].holder(session)

    async def close(self, at_once: bool = False) -> None:
        self._premises.stopping = True
        self._premises.left = self._premises.left or at_once
        if at_once:
            self.kill()
        else:
            for device in self._devices.values():
                device.shut_down()
        await self._premises.compiler.close()
        await self._starter.close()
        for device in self._devices.values():
            await device.end()
        self._premises.clear()

    # -- for an agent, which runs this launcher on another host ---------------------------------------------

    def lives(self, device: str) -> dict[str, int]:
        """Count the workers that each trust group had on a device before its present one; empty: none yet."""
        return self._devices[device].lives()

    def orphans(self) -> list[str]:
        """List the files that dead workers left, and those that :meth:`adopt` made."""
        return [str(path) for path in self._premises.orphans.files]

    def remove_orphans(self, paths: Iterable[Path]) -> None:
        """Remove files that no manifest names."""
        self._premises.orphans.remove(paths)

    async def adopt(self, group: str, name: str, write: Callable[[Path], Awaitable[None]]) -> Path:
        """Let what was parked elsewhere be written where the workers of a trust group can read it. ``name``:
        how the file's name begins."""
        return await self._premises.adopt(group, name, write)

    # -- for the pool's process, outside its event loop ------------------------------------------------------

    def warm(self, plan: DevicePlan) -> None:
        """Start a device's first process before :meth:`spawn`, so that it loads while the server does."""
        if plan.device not in self._devices:
            self._premises.check_host(plan)
            device = self._devices[plan.device] = DeviceWorkers(plan, self._premises)
            device.warm()

    def take_over(self, copies: Mapping[str, LeftCopy], left: Sequence[Path]) -> dict[str, TakenCopy]:
        """Take over the sessions that dead pools parked, by session, before any :meth:`spawn`; what is not
        among the result is gone. ``left``: their directories."""
        parked = [path / PARKED for path in left if (path / PARKED).is_dir()]
        return self._premises.take_over(
            copies, parked, [path for path in left if path / PARKED not in parked]
        )

    def kill(self) -> None:
        """End every worker at once, for good."""
        self._premises.stopping = True
        self._premises.compiler.kill()
        self._starter.kill()


def _starter(worker_command: Sequence[str] | None) -> Starter:
    """Return what starts workers. Where forks of a process with threads are not safe, none is forked."""
    if worker_command is None and sys.platform == "linux":
        from djinn_lab.pool.launchers.template import TemplateStarter

        return TemplateStarter()
    return CommandStarter(worker_command or WORKER_COMMAND)
