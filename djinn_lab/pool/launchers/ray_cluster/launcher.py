"""The launcher over Ray: an agent on each node, which has the workers of the node's devices.

Ray places an agent once, beside the resources that its devices take. Which cell runs where and when is
decided by the pool."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Hashable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from djinn_lab.pool.blobs.directory import Belonging
from djinn_lab.pool.devices.launcher import HostHealth, TakenCopy, WorkerEvents, WorkerHealth
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.launchers.adoption import LeftCopy
from djinn_lab.pool.launchers.ray_cluster.agent import HostAgent
from djinn_lab.pool.launchers.ray_cluster.cluster import Cluster
from djinn_lab.pool.launchers.ray_cluster.elastic_nodes import ElasticNodes
from djinn_lab.pool.launchers.ray_cluster.files import Content
from djinn_lab.pool.launchers.ray_cluster.host import GONE, Host
from djinn_lab.pool.launchers.ray_cluster.left_copies import TakenSessions, take_left_sessions
from djinn_lab.pool.launchers.ray_cluster.moves import NamedPiece, named_pieces
from djinn_lab.pool.launchers.ray_cluster.second_copies import KeepingHost, SecondCopies
from djinn_lab.pool.launchers.ray_cluster.tasks import begin
from djinn_lab.pool.launchers.ray_cluster.wire import ActorHandle, HostFacts, HostOptions, Piece
from djinn_lab.protocol.version import VERSION
from djinn_lab.protocol.worker import Cancel, Close, CopyOrder, Drop, Preempt, Restore, RunOrder

PLACED_WITHIN_S = 20.0
LOOK_EVERY_S = 2.0
"""For nodes that are about to leave, and second copies that are not needed any more, or could not be made."""
TRY_AGAIN_S_MAX = 60.0
"""To make these: so long after the last try at most, and twice as long after each one."""

log = logging.getLogger(__name__)


class RayLauncher:
    """Run the workers of a cluster's devices. See :class:`~djinn_lab.pool.devices.launcher.Launcher`.

    ``blobs``: the directory of the pool's. ``belonging``: of the pool's directories.
    ``elastic``: ask the cluster for nodes."""

    events: WorkerEvents

    def __init__(
        self,
        cluster: Cluster,
        pool: str,
        blobs: Path,
        belonging: Belonging,
        worker_command: Sequence[str] | None = None,
        elastic: bool = False,
    ) -> None:
        self.stopping = False
        self.blobs = blobs
        self._cluster = cluster
        self._pool = pool
        self._belonging = belonging
        self._taken = TakenSessions({}, {}, {})
        self._command = tuple(worker_command) if worker_command else None
        self._hosts: dict[str, Host] = {}
        """By device."""
        self._spawned: dict[str, list[DevicePlan]] = {}
        """By the node for which the devices were planned; gathered until the loop is next idle."""
        self._second_copies = SecondCopies()
        self._second_copies_changed = False
        """Since files of second copies were last removed."""
        self._leaving: frozenset[str] = frozenset()
        self._tasks: set[asyncio.Task[None]] = set()
        self._elastic = ElasticNodes(cluster, belonging.database, self) if elastic else None

    # -- the interface -------------------------------------------------------------------------------------

    def spawn(self, plan: DevicePlan, events: WorkerEvents) -> None:
        self.events = events
        node = self._cluster.node_of(plan.device)
        if node not in self._spawned:
            self._spawned[node] = []
            asyncio.get_running_loop().call_soon(self._begin, node)
        self._spawned[node].append(plan)

    def run(self, device: str, order: RunOrder) -> None:
        self._order(device, order)

    def copy(self, device: str, order: CopyOrder) -> None:
        self._order(device, order)
        if isinstance(order, Close | Drop):
            self.sweep()

    def cancel(self, device: str, job: str) -> None:
        self._order(device, Cancel(job))

    def preempt(self, device: str, job: str, segment: int) -> None:
        self._order(device, Preempt(job, segment))

    def health(self, device: str) -> WorkerHealth:
        host = self._hosts.get(device)  # None: it was given back with its node
        return GONE if host is None else host.health(device)

    def hosts(self) -> list[HostHealth]:
        kept = self._second_copies.nbytes
        return [host.health_of_host(kept.get(host, 0), self._leaving) for host in self._all]

    def cluster_dashboard(self) -> str:
        return self._cluster.dashboard

    def node_supply(self) -> ElasticNodes | None:
        return self._elastic

    def holder(self, device: str, session: str) -> Hashable:
        group = self.events.trust_group(session)
        host = self._hosts.get(device)  # None: it was given back with its node
        return device, group, None if host is None else host.lives(device, group)

    async def close(self, at_once: bool = False) -> None:
        self.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(host.close(at_once) for host in self._all))
        if self._elastic is not None and not at_once:
            await asyncio.to_thread(self._elastic.forget)

    @property
    def agents(self) -> list[HostFacts]:
        """List the hosts on which an agent was placed last."""
        return [host.facts for host in self._all if host.facts is not None]

    def present(self) -> list[Host]:
        return self._all

    async def give_up(self, host: Host) -> None:
        """Close a host whose parked sessions other hosts have as well. Raises OSError where they have not."""
        others = [one for one in self._all if one is not host]
        for manifest in list(self.events.manifests()):
            await self.secure(manifest)
            for piece in named_pieces(manifest):
                having = self._second_copies.holders(piece, self._all)
                if {one.node for one in having} == {host.node}:
                    raise OSError("what is parked there is on no other machine")
        devices = [plan.device for plan in host.plans]
        node = self._cluster.node_of(devices[0])
        for device in devices:
            del self._hosts[device]
        self._spawned.pop(node, None)
        self._cluster.drop(devices)
        await host.close(at_once=False)
        self._second_copies.lost(host)
        if others:
            self._begin_task(self._secure_all(), "what a node that was given back had")

    # -- for the pool's process ----------------------------------------------------------------------------

    def warm(self, plan: DevicePlan) -> None:
        """Nothing is to be started before the event loop runs."""

    def take_over(self, copies: Mapping[str, LeftCopy], left: Sequence[Path]) -> dict[str, TakenCopy]:
        self._taken = take_left_sessions(self._cluster, self._belonging, copies)
        return dict(self._taken.copies)

    def kill(self) -> None:
        """End every agent at once, and leave the cluster."""
        self.stopping = True
        for host in self._all:
            host.kill()
        self._cluster.leave()

    # -- parts ---------------------------------------------------------------------------------------------

    @property
    def _all(self) -> list[Host]:
        """List the hosts in the order of their devices."""
        return list(dict.fromkeys(self._hosts.values()))

    def _begin(self, node: str) -> None:
        plans = tuple(self._spawned[node])

        async def place() -> tuple[ActorHandle, HostFacts]:
            return await self._place(node, plans)

        if not self._hosts:
            self._begin_task(self._look_after_hosts(), "nodes and second copies")
        host = Host(self._cluster.name_of(node), plans, place, self)
        self._second_copies.found(host, self._taken.pieces.get(node, ()))
        for plan in plans:
            self._hosts[plan.device] = host
        host.serve()

    def _order(self, device: str, order: RunOrder | CopyOrder | Cancel | Preempt) -> None:
        host = self._hosts.get(device)  # None: it was given back with its node, with all that it had
        if not self.stopping and host is not None:
            host.order(device, order)

    async def _place(self, node: str, plans: tuple[DevicePlan, ...]) -> tuple[ActorHandle, HostFacts]:
        """Have an agent placed, on the node for which the devices were planned or, once that is lost, on
        another one with as many free resources."""
        shares = node == self._cluster.own_node
        options = HostOptions(
            self._pool,
            self._belonging,
            VERSION,
            version("torch"),
            plans,
            str(self.blobs) if shares else None,
            self._taken.directories.get(node, ()),
            tuple({piece.place.path for piece in self._taken.pieces.get(node, ())}),
            self._command,
        )
        agent = self._cluster.place(HostAgent, node, plans, hard=shares).remote(options)
        started = asyncio.wrap_future(agent.start.remote().future())
        try:
            while not (await asyncio.wait([started], timeout=PLACED_WITHIN_S))[0]:
                log.warning(
                    "host %s: Ray has not placed an agent yet, which needs %s: other programs have them, or "
                    "what ended has not let them go yet",
                    self._cluster.name_of(node),
                    self._cluster.describe_needs(plans),
                )
            facts: HostFacts = started.result()
            return agent, facts
        finally:
            started.cancel()  # where this is cancelled, nothing else waits for it

    def sweep(self) -> None:
        """Have files of parked sessions removed that are not needed any more; of second copies, soon."""
        for host in self._all:
            host.sweep(self.events.manifests())
        self._second_copies_changed = True

    async def secure(self, manifest: bytes) -> None:
        """Have two hosts keep what the manifest names. Raises OSError where that is not possible."""
        await self._second_copies.make(manifest, self._all)

    def began(self, host: Host) -> None:
        """Have what one host only has kept by this one as well."""
        self._begin_task(self._secure_all(), "second copies on another host")

    def lost(self, host: Host) -> None:
        """Have the others keep second copies of what was left with one host only."""
        self._second_copies.lost(host)
        if not self.stopping:
            self._begin_task(self._secure_all(), "what a lost host had")

    def _begin_task(self, work: Coroutine[None, None, None], name: str) -> None:
        """Do this until it ends, or the launcher is closed."""
        task = begin(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_after_hosts(self) -> None:
        now_s = asyncio.get_running_loop().time
        tried_s, again_s = now_s(), LOOK_EVERY_S
        while True:
            if not self._second_copies.behind:
                again_s = LOOK_EVERY_S
            elif now_s() >= tried_s + again_s:
                self._second_copies.behind = False
                await self._secure_all()
                tried_s, again_s = now_s(), min(2 * again_s, TRY_AGAIN_S_MAX)
            if self._second_copies_changed:  # every manifest is decoded for it: not at each copy
                self._second_copies_changed = False
                held = (one for host in self._all for one in host.held_manifests)
                self._second_copies.sweep([*self.events.manifests(), *held])
            try:
                self._leaving = await asyncio.to_thread(self._cluster.leaving)
            except Exception as error:  # noqa: BLE001 - of Ray's own kinds, none of which it documents
                log.warning("the cluster does not say which nodes are about to leave: %s", error)
            try:
                if await asyncio.to_thread(self._cluster.lost_own_node):
                    _end_process()
            except Exception as error:  # noqa: BLE001 - as above
                log.warning("the cluster does not say whether this node is lost: %s", error)
            if self._elastic is not None:
                try:
                    await self._elastic.look()
                except Exception as error:  # noqa: BLE001 - as above
                    log.warning("the cluster does not say which nodes there are: %s", error)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _secure_all(self) -> None:
        for manifest in list(self.events.manifests()):
            try:
                await self.secure(manifest)
            except OSError as error:
                log.warning("a parked session is on one host only: %s", error)

    async def pieces(self, order: Restore, host: Host) -> tuple[tuple[Piece, ...], Content | None]:
        """Fetch what an order's manifest names on other hosts, or what they keep of lost ones. Raises OSError
        where some of it is gone."""
        assert order.manifest is not None
        sources: dict[KeepingHost, list[tuple[Piece, Piece]]] = {}
        for piece in named_pieces(order.manifest):
            if not host.has(piece.place.path):
                source, place = self._source_of(piece)
                sources.setdefault(source, []).append((piece.place, place))
        ordered: list[Piece] = []
        objects: list[object] = []
        for source, pieces in sources.items():
            content = await source.read(tuple(place for _, place in pieces))
            ordered += (named for named, _ in pieces)
            objects += content.objects
        if not ordered:
            return (), None
        return tuple(ordered), Content(sum(piece.nbytes for piece in ordered), objects=tuple(objects))

    def _source_of(self, piece: NamedPiece) -> tuple[KeepingHost, Piece]:
        """Return the host that has a piece, and where. Raises OSError where none has it."""
        found = next(iter(self._second_copies.holders(piece, self._all).items()), None)
        if found is None:
            raise OSError("the host that had it is lost")
        return found


def _end_process() -> None:
    """End this process, to which Ray gives no agents any more; the next one connects anew."""
    log.critical("Ray lost the node of this process, and places no agents for it: it ends, to connect anew")
    logging.shutdown()
    os._exit(1)
