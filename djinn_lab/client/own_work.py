"""A user's last graphs and the pool's devices, as the setup wizard compares settings on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from djinn_lab.client.rest import PoolClient
from djinn_lab.config import BUILT_IN
from djinn_lab.config.detection import RunningPool
from djinn_lab.errors import DjinnError, PoolError, PoolLost, PoolNotFound
from djinn_lab.memory.snapshot import DeviceAccount
from djinn_lab.protocol.rest.costs import CostView, DeviceCosts
from djinn_lab.protocol.rest.sessions import MemoryView
from djinn_lab.protocol.rest.status import DeviceView, PoolStatus
from djinn_lab.scheduler.costs import DeviceProfile
from djinn_lab.scheduler.what_if import SettingsComparison
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.graph import SRG

GRAPHS_MAX = 5
JOBS_READ = 50
"""Of the user's newest jobs; a fetch is one, too."""
OPS_MAX = 12_000
"""Of all graphs together: more take seconds to plan. A larger one is left out."""


def look_at_pool(find: Callable[[], PoolClient]) -> tuple[RunningPool, SettingsComparison | None]:
    """Return the running pool, and the user's last graphs there."""
    try:
        client = find()
        devices = ", ".join(device.device for device in client.status().devices)
    except DjinnError as error:
        return RunningPool("absent", error.message), None
    found = f"{client.url} runs with {devices}; it takes new settings at its next start"
    try:
        return RunningPool("found", found), own_work(client)
    except DjinnError as error:
        return RunningPool("found", f"{found}; your cells there are not known: {error.message}"), None


def own_work(client: PoolClient) -> SettingsComparison | None:
    """Return the last graphs of the client's user and the pool's devices, with the built-in profiles
    compared; None where no graph is kept or no device is there. Raises PoolError or AuthenticationError where
    the pool cannot be asked."""
    status = client.status()
    devices = device_profiles(status, client.costs(details=True), client.memory())
    graphs = list(_last_graphs(client, status.user))
    if not graphs or not devices:
        return None
    work = SettingsComparison(graphs[::-1], devices)
    for profile in BUILT_IN.values():
        work.effect(profile.scheduler)
    return work


def _last_graphs(client: PoolClient, user: str) -> Iterator[SRG]:
    """Yield graphs of cells that ended well, newest first, of a cell with cuts that of its largest part. The
    pool keeps those of its last cells only."""
    found, left = 0, OPS_MAX
    for job in client.jobs(state="DONE", user=user, limit=JOBS_READ):
        if found == GRAPHS_MAX:
            return
        if 0 < job.ops_total <= left:
            try:
                graph = SRG.from_program(client.program(job.job))
            except (PoolLost, PoolNotFound):
                raise
            except PoolError:  # the pool keeps it no more, nor older ones
                return
            found, left = found + 1, left - job.ops_total
            yield graph


def device_profiles(status: PoolStatus, costs: CostView, memory: MemoryView) -> list[DeviceProfile]:
    """Return the scheduler's profiles of the pool's devices, with measured and corrected curves where there
    are any."""
    priced = {one.device: one for one in costs.devices}
    tiers = {one.device: one for one in memory.devices}
    return [
        _profile(device, priced[device.device], tiers[device.device], costs.curves)
        for device in status.devices
        if device.device in priced and device.device in tiers
    ]


def _profile(
    device: DeviceView, priced: DeviceCosts, tiers: DeviceAccount, curves: Mapping[str, DeviceCurves]
) -> DeviceProfile:
    kind = "cpu" if device.kind == "cpu" else "cuda"
    known = DeviceProfile.default(kind, device.device, device.memory_bytes)
    if priced.kind in curves:
        factors = {one.family: one.factor for one in priced.families}
        known = replace(known, curves=curves[priced.kind].corrected(factors), measured=True)
    return replace(
        known,
        used_bytes=device.used_bytes,
        below_bytes=tiers.host_bytes + tiers.disk_bytes if tiers.host_bytes else 0,
        link_bytes_per_s=tiers.link_bytes_per_s,
        watts=device.watts,
    )
