"""Nodes that the cluster's autoscaler adds for the pool, and ends when they are not needed any more.

While nodes or their agents are to come, Ray is asked for bundles: one for each node that the pool has, of all
that the node has, and one for each further node, of what its devices take. So no bundle of a further node
fits a present one. The request holds until the next one, also when the pool's server dies; which nodes it
began with is therefore written down in the cluster, where the server that is started again reads it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Protocol

from ray.autoscaler.sdk import request_resources
from ray.experimental import internal_kv

from djinn_lab.errors import OptionError
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.launchers.ray_cluster.cluster import Cluster
from djinn_lab.pool.launchers.ray_cluster.host import Host

KEY = "djinn-lab nodes of the start: "

log = logging.getLogger(__name__)


class Hosts(Protocol):
    """What the launcher has of hosts."""

    def present(self) -> Sequence[Host]:
        """List the hosts in the order of their devices."""

    async def give_up(self, host: Host) -> None:
        """Close a host whose parked sessions other hosts have as well. Raises OSError where they have not."""


class ElasticNodes:
    """See :class:`djinn_lab.pool.devices.launcher.NodeSupply`. ``pool``: a name that lasts as long as the
    pool's database."""

    def __init__(self, cluster: Cluster, pool: str, hosts: Hosts) -> None:
        self._cluster = cluster
        self._key = (KEY + pool).encode()
        self._hosts = hosts
        self._wanted = 0
        self._arrived: list[DevicePlan] = []
        self._refused: set[str] = set()
        self._release: asyncio.Task[None] | None = None
        self.of_start = self._recall()

    def count(self) -> int:
        return len(self._cluster.used) - len({plan.host for plan in self._arrived})

    def arrived(self) -> Sequence[DevicePlan]:
        found, self._arrived = self._arrived, []
        return found

    def further(self, nodes: int) -> list[tuple[str, ...]]:
        return self._cluster.further(nodes)

    def came_on_request(self, host: str) -> bool:
        return self._cluster.node_named(host) not in self.of_start

    def scale(self, nodes: int) -> None:
        self._wanted = nodes
        bundles = [] if self._are_there(nodes) else self._cluster.bundles(nodes)
        log.info("the cluster is asked for %d nodes: %s", nodes, bundles)
        try:
            request_resources(bundles=bundles)
        except Exception as error:  # of Ray's own kinds, none of which it documents
            raise ConnectionError(f"the cluster could not be asked for nodes: {error}") from error

    def release(self, host: str) -> asyncio.Future[None]:
        found = next(one for one in self._hosts.present() if one.name == host)
        return asyncio.ensure_future(self._give_up(found))

    async def _give_up(self, host: Host) -> None:
        """Give a host up. Its node, which lives on for a while, would come again if it were still wanted."""
        wanted_before = self._wanted
        self._wanted = min(self._wanted, len(self._cluster.used) - 1)
        try:
            await self._hosts.give_up(host)
        except OSError:
            self._wanted = wanted_before
            raise

    def _are_there(self, nodes: int) -> bool:
        """Return whether there are so many nodes, with their agents. Those keep a node; with bundles as well,
        Ray could let an idle node stand for the bundle of a busy one, and keep it."""
        return nodes <= len(self._cluster.used) and not any(
            host.awaits_agent for host in self._hosts.present()
        )

    # -- for the launcher ----------------------------------------------------------------------------------

    async def look(self) -> None:
        """Plan the devices of nodes that came since the last call, as long as some are to come."""
        if any(host.awaits_agent for host in self._hosts.present()):
            return  # the node is for an agent that was lost
        taken = {host.facts.node for host in self._hosts.present() if host.facts is not None}
        for node in await asyncio.to_thread(self._cluster.look_for_nodes):
            if len(self._cluster.used) >= self._wanted:
                return
            if node.node in taken or node.node in self._refused or node.node in self._cluster.used:
                continue
            try:
                self._arrived += self._cluster.plan_further(node)
            except OptionError as error:
                self._refused.add(node.node)
                log.error("node %s came, and has no devices for the pool: %s", node.name, error)

    def forget(self) -> None:
        """Ask for nothing any more, and let the nodes of the next start be those that are there then."""
        try:
            request_resources(bundles=[])
            internal_kv._internal_kv_del(self._key)
        except Exception as error:  # noqa: BLE001 - of Ray's own kinds, none of which it documents
            log.warning("the cluster goes on with what it was asked for last: %s", error)

    def _recall(self) -> frozenset[str]:
        """Return the nodes of the start, as an earlier run of this pool wrote them down if it crashed."""
        present = frozenset(self._cluster.used)
        written = internal_kv._internal_kv_get(self._key)
        before = frozenset() if written is None else present & frozenset(json.loads(written))
        found = before or present
        internal_kv._internal_kv_put(self._key, json.dumps(sorted(found)).encode())
        return found
