"""Asks the cluster for nodes while cells wait for devices, and gives idle ones back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from djinn_lab import jobs
from djinn_lab.jobs.autoscaling import (
    NodeState,
    ScalingDecision,
    ScalingLimits,
    SpareNode,
    WaitingCell,
    decide_scaling,
    waiting_cells,
)
from djinn_lab.pool.devices.launcher import NodeSupply
from djinn_lab.pool.execution.driver import Driver
from djinn_lab.units import counted, format_seconds

CONTENDING_MAX = 200
"""With more waiting cells the queue is not tried with further nodes: that would take too long."""
EMPTY_WITHIN_S = 120.0
"""A node that is to be given back serves again when it is not empty by then."""

log = logging.getLogger(__name__)


class _Release:
    """A node that is being given back. ``ending``: of its agent, once its devices are empty."""

    def __init__(self, host: str, devices: tuple[str, ...], why: str, since_s: float) -> None:
        self.host, self.devices, self.why, self.since_s = host, devices, why, since_s
        self.ending: asyncio.Future[None] | None = None


class ElasticHosts:
    """``limits``: None where no nodes are asked for."""

    def __init__(self, driver: Driver, limits: ScalingLimits | None) -> None:
        self._driver = driver
        self._limits = limits
        supply = driver.launcher.node_supply()
        self._supply = None if limits is None else supply
        self._requested = 0 if supply is None else supply.count()
        self._why = ""
        self._sent = False
        self._unheard = False
        self._looking: asyncio.Task[None] | None = None
        self._short_since_s: float | None = None
        self._changed_s: float | None = None
        self._gave_up_s: float | None = None
        self._idle_since_s: dict[str, float] = {}
        self._release: _Release | None = None
        self._expected: set[str] = set()
        if self._supply is not None:
            self._expect(self._supply)

    def follow(self) -> None:
        """Begin a look, unless the last still goes on: a cluster without its head answers late or never."""
        if self._supply is None or (self._looking is not None and not self._looking.done()):
            return
        self._looking = asyncio.get_running_loop().create_task(self.look(), name="elastic hosts")
        self._looking.add_done_callback(_log_failure)

    def stop(self) -> None:
        """End a look that goes on: nothing may be asked of a cluster that the pool leaves."""
        if self._looking is not None:
            self._looking.cancel()

    async def look(self) -> None:
        """Take in nodes that came, and carry out what is decided now."""
        if self._supply is None or self._limits is None:
            return
        supply, limits = self._supply, self._limits
        self._take_arrived(supply)
        if not self._sent:
            await self._ask(supply)
        await self._go_on_releasing(supply)
        waiting = await self._waiting(supply, limits)
        state = self._state(supply)
        now_s = self._driver.core.clock.now_s()
        await self._carry_out(supply, state, decide_scaling(state, waiting, limits, now_s), now_s)
        self._driver.node_requests = self._sentence(supply.count(), now_s)

    # -- what is there -------------------------------------------------------------------------------------

    def _expect(self, supply: NodeSupply) -> None:
        """Let jobs ask for the devices of nodes that may come."""
        assert self._limits is not None
        now_s = self._driver.core.clock.now_s()
        for devices in supply.further(max(0, self._limits.nodes_max - supply.count())):
            for device in sorted(set(devices) - self._expected):
                self._expected.add(device)
                self._driver.handle(jobs.DeviceExpected(now_s, device))

    def _take_arrived(self, supply: NodeSupply) -> None:
        plans = supply.arrived()
        for plan in plans:
            self._expected.discard(plan.device)
            self._driver.fleet.add(plan)
            self._driver.launcher.spawn(plan, self._driver)
        if plans:
            came = ", ".join(plan.device for plan in plans)
            self._note("node came", f"{plans[0].host}, with {came}")

    async def _waiting(self, supply: NodeSupply, limits: ScalingLimits) -> list[WaitingCell]:
        """Find the cells that further nodes would start, beside the event loop."""
        core, further = self._driver.core, supply.further(max(0, limits.nodes_max - supply.count()))
        if not further or not 0 < core.queue.contending <= CONTENDING_MAX:
            return []
        now_s, starts = core.clock.now_s(), self._driver.accounting.starts
        snapshot = core.queue.decision(now_s)
        waits = {one.job: starts.wait_s(one.job, now_s) for one in snapshot.cluster.waiting}
        expected = {job: now_s + wait_s for job, wait_s in waits.items() if wait_s is not None}
        return await asyncio.to_thread(waiting_cells, snapshot, further, expected)

    def _state(self, supply: NodeSupply) -> NodeState:
        core, now_s, nodes = self._driver.core, self._driver.core.clock.now_s(), supply.count()
        if nodes >= self._requested:
            self._short_since_s = None
        elif self._short_since_s is None:
            self._short_since_s = now_s
        waiting = core.queue.decision(now_s).cluster.waiting if core.queue.contending else ()
        return NodeState(
            nodes,
            self._requested,
            sum(view.alive and not view.cordoned for view in core.queue.devices()),
            self._short_since_s,
            self._changed_s,
            self._gave_up_s,
            tuple(self._spare(supply, now_s)),
            max((one.demand.members_min for one in waiting), default=0),
            releasing=self._release is not None,
        )

    def _spare(self, supply: NodeSupply, now_s: float) -> Iterable[SpareNode]:
        for host in self._driver.launcher.hosts():
            if not supply.came_on_request(host.name):
                continue
            if host.serves and self._is_empty(host.devices):
                self._idle_since_s.setdefault(host.name, now_s)
            else:
                self._idle_since_s.pop(host.name, None)
            yield SpareNode(host.name, len(host.devices), self._idle_since_s.get(host.name))

    def _is_empty(self, devices: Iterable[str]) -> bool:
        """Return whether nothing runs or waits there, and all that sessions hold there is parked as well."""
        core, wanted = self._driver.core, set(devices)
        lengths, busy = core.queue.queue_lengths(), core.queue.busy_devices()
        if busy & wanted or any(lengths[device] for device in wanted):
            return False
        bound = [one for view in core.queue.devices() if view.device in wanted for one in view.sessions]
        accounts = [one for one in map(core.accounts.session, bound) if one is not None]
        return all(one.moving is None and one.stored_bytes == one.total_bytes for one in accounts)

    # -- what is done --------------------------------------------------------------------------------------

    async def _ask(self, supply: NodeSupply) -> None:
        """Ask the cluster for the nodes that are wanted; the next look does it again where that failed."""
        try:
            await asyncio.to_thread(supply.scale, self._requested)
        except OSError as error:
            if not self._unheard:
                self._note("node request failed", f"{error}. It is repeated until it succeeds.", status=503)
            self._sent, self._unheard = False, True
        else:
            self._sent, self._unheard = True, False

    async def _carry_out(
        self, supply: NodeSupply, state: NodeState, decision: ScalingDecision, now_s: float
    ) -> None:
        if decision.nodes is not None:
            self._requested, self._changed_s, self._short_since_s = decision.nodes, now_s, None
            self._why = "" if decision.gave_up else decision.why
            if decision.gave_up:
                self._gave_up_s = now_s
                self._note("node request given up", decision.why, status=504)
            else:
                further = counted(decision.nodes - state.nodes, "node")
                self._note("nodes requested", f"{further}, {decision.nodes} in all: {decision.why}")
            await self._ask(supply)
        if decision.release:
            devices = next(
                one.devices for one in self._driver.launcher.hosts() if one.name == decision.release
            )
            self._release = _Release(decision.release, devices, decision.why, now_s)
            self._changed_s = now_s
            for device in devices:
                self._driver.handle(jobs.DeviceCordoned(now_s, device, cordoned=True, drain=True))

    async def _go_on_releasing(self, supply: NodeSupply) -> None:
        """End the agent of a drained node, and give the node back once that is done."""
        release, now_s = self._release, self._driver.core.clock.now_s()
        if release is None:
            return
        if release.ending is None:
            if self._is_empty(release.devices):
                release.ending = asyncio.ensure_future(supply.release(release.host))
            elif now_s - release.since_s > EMPTY_WITHIN_S:
                self._keep(release, f"it was not empty within {format_seconds(EMPTY_WITHIN_S)}")
        elif release.ending.done():
            error = release.ending.exception()
            if isinstance(error, OSError):
                self._keep(release, str(error))
            elif error is not None:
                raise error
            else:
                self._gone(release)
                self._expect(supply)
                self._requested = supply.count()
                await self._ask(supply)

    def _keep(self, release: _Release, why: str) -> None:
        """Let a node serve again that could not be given back; its idle time begins anew."""
        self._release = None
        self._idle_since_s.pop(release.host, None)
        self._note("node kept", f"{release.host}, which was to be given back: {why}", status=409)
        for device in release.devices:
            now_s = self._driver.core.clock.now_s()
            self._driver.handle(jobs.DeviceCordoned(now_s, device, cordoned=False))

    def _gone(self, release: _Release) -> None:
        self._release = None
        self._idle_since_s.pop(release.host, None)
        for device in release.devices:
            self._driver.device_left(device, "was given back with its node")
        self._note("node given back", f"{release.host}: {release.why}")

    def _note(self, action: str, detail: str, status: int = 200) -> None:
        log.log(logging.INFO if status == 200 else logging.WARNING, "%s: %s", action, detail)
        self._driver.accounting.audit.note("", action, detail, status)

    def _sentence(self, nodes: int, now_s: float) -> str:
        """Say what is under way, empty for nothing."""
        if self._requested > nodes:
            missing = self._requested - nodes
            since = format_seconds(max(0.0, now_s - (self._short_since_s or now_s)))
            verb = "is" if missing == 1 else "are"
            why = f": {self._why}" if self._why else ""
            return f"{counted(missing, 'node')} {verb} requested, since {since}{why}."
        if self._release is not None:
            return f"Host {self._release.host} is being given back: {self._release.why}."
        return ""


def _log_failure(look: asyncio.Task[None]) -> None:
    if not look.cancelled() and (error := look.exception()) is not None:
        log.error("looking after the cluster's nodes failed, and is tried again", exc_info=error)
