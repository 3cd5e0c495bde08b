"""Connects to a Ray cluster, or starts one on this machine, and plans the devices of its nodes."""

from __future__ import annotations

import itertools
import logging
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from djinn_lab.config import PoolSettings
from djinn_lab.errors import OptionError, PoolError
from djinn_lab.pool.devices.plans import (
    CPU_DEVICES_DEFAULT,
    DevicePlan,
    check_recording,
    compiler_for,
    cpu_count_of,
    cpu_limit_bytes,
    default_host_bytes,
)
from djinn_lab.protocol.compiling import INDUCTOR

RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_agent_register_timeout_ms": "60000",
}
"""Ray sends no statistics and writes plain logs, and a node that starts here may take its time."""
CONNECT_WITHIN_S = 5.0
AGAIN_S = 3.0
NAME_CHARS_MAX = 40
STORE_BYTES_MAX = 2 * 2**30
STORE_SHARE_OF_MEMORY = 0.1
"""Of the object store of a cluster that the pool starts: tensors only pass through it."""

log = logging.getLogger(__name__)


class Node(msgspec.Struct, frozen=True):
    """One alive node of the cluster. ``resources``: all that it has, by Ray's names."""

    node: str
    name: str
    resources: Mapping[str, float]

    @property
    def cpus(self) -> int:
        return int(self.resources.get("CPU", 0))

    @property
    def gpus(self) -> int:
        return int(self.resources.get("GPU", 0))

    @property
    def memory_bytes(self) -> int:
        return int(self.resources.get("memory", 0))


class Asked(msgspec.Struct, frozen=True):
    """What :meth:`Cluster.plan` was asked for. ``wanted``: kind and number of each node's devices."""

    wanted: tuple[str, int | None] | None
    memory_bytes: int | None
    threads: int | None
    host_bytes: int | None = None
    disk_bytes: int = 0
    link_bytes_per_s: int = 0
    region_compiler: str = INDUCTOR


class Cluster:
    """A connection to Ray. ``own_node``: on which this process runs. ``address``: that was given, and
    ``dashboard``: URL of Ray's own page, both empty for none."""

    def __init__(self, nodes: Sequence[Node], own_node: str, address: str = "", dashboard: str = "") -> None:
        self.address = address
        self.dashboard = dashboard
        self.nodes = nodes
        self.own_node = own_node
        self._planned: dict[str, str] = {}
        """The node of each device."""
        self._asked = Asked(None, None, None)
        self._pattern: list[DevicePlan] = []
        """The devices of a further node."""

    def node_of(self, device: str) -> str:
        return self._planned[device]

    def name_of(self, node: str) -> str:
        return next(one.name for one in self.nodes if one.node == node)

    def plan(
        self,
        devices: str | None,
        memory_bytes: int | None,
        threads: int | None,
        *,
        host_bytes: int | None = None,
        disk_bytes: int = 0,
        link_bytes_per_s: int | None = None,
        region_compiler: str = INDUCTOR,
    ) -> list[DevicePlan]:
        """Plan the devices of every node. ``devices``: ``"cpu:N"``, ``"cuda"`` or ``"auto"``, of each node;
        the sizes are those of each device. Raises OptionError."""
        wanted = _wanted(devices)
        rate = PoolSettings().link_bytes_per_s if link_bytes_per_s is None else link_bytes_per_s
        self._asked = Asked(wanted, memory_bytes, threads, host_bytes, disk_bytes, rate, region_compiler)
        plans = [plan for node in self.nodes for plan in self._plan_node(node, self._asked)]
        if not plans:
            raise OptionError(
                "No node of the cluster has a CPU or a GPU for Ray."
                if wanted is None
                else f"No node of the cluster has {devices}.",
                "Start nodes with ray start --num-cpus=N, and --num-gpus=N where there are GPUs.",
            )
        check_recording(region_compiler, plans)
        self._pattern = [plan for plan in plans if plan.host == plans[-1].host]
        return plans

    def _plan_node(self, node: Node, asked: Asked) -> list[DevicePlan]:
        kind, here = _devices_of(node, asked.wanted)
        each = asked.threads or max(1, node.cpus // max(here, 1))
        if here * each > node.cpus:
            raise OptionError(
                f"Node {node.name} has {node.cpus} CPUs for Ray, and {here} devices with {each} threads "
                f"each need {here * each}.",
                "Give fewer devices, or fewer threads.",
            )
        plans = []
        for device in self._free_names(kind, here):
            self._planned[device] = node.node
            limit, parked = _sizes(node, kind, here, asked.memory_bytes)
            parked = parked if asked.host_bytes is None else asked.host_bytes
            link = asked.link_bytes_per_s if kind == "cpu" else 0
            plans.append(
                DevicePlan(
                    *(device, kind, limit, each, parked, asked.disk_bytes, link),
                    host=node.name,
                    region_compiler=compiler_for(kind, asked.region_compiler),
                )
            )
        return plans

    def _free_names(self, kind: str, count: int) -> list[str]:
        """Return the first names that no device has."""
        numbers = (number for number in itertools.count() if f"{kind}:{number}" not in self._planned)
        return [f"{kind}:{number}" for number in itertools.islice(numbers, count)]

    # -- nodes that come and go ----------------------------------------------------------------------------

    def node_named(self, name: str) -> str:
        return next(one.node for one in self.nodes if one.name == name)

    def further(self, nodes: int) -> list[tuple[str, ...]]:
        """Name the devices of so many further nodes."""
        each = len(self._pattern)
        names = self._free_names(self._pattern[0].kind, nodes * each)
        return [tuple(names[at : at + each]) for at in range(0, len(names), each)]

    def bundles(self, nodes: int) -> list[dict[str, float]]:
        """Return what to ask Ray for so that the cluster has so many nodes with devices."""
        have = {one.node: one for one in self.nodes}
        present = [have[node] for node in self.used][:nodes]
        wanted = {"CPU": sum(plan.threads for plan in self._pattern)}
        if gpus := sum(plan.kind == "cuda" for plan in self._pattern):
            wanted["GPU"] = gpus
        bundles = [{"CPU": one.cpus} | ({"GPU": one.gpus} if one.gpus else {}) for one in present]
        return [dict(one) for one in (*bundles, *([wanted] * (nodes - len(present))))]

    def look_for_nodes(self) -> list[Node]:
        """Return the nodes that are there and have no devices of the pool. Asks the cluster."""
        return [node for node in _nodes() if node.node not in self._planned.values()]

    def plan_further(self, node: Node) -> list[DevicePlan]:
        """Plan a node's devices as those of the nodes of the start are. Raises OptionError."""
        if any(one.name == node.name for one in self.nodes):
            node = msgspec.structs.replace(node, name=f"{node.name}-{node.node[-6:]}")
        plans = self._plan_node(node, msgspec.structs.replace(self._asked, threads=self._pattern[0].threads))
        self.nodes = [*self.nodes, node]
        return plans

    def drop(self, devices: Iterable[str]) -> None:
        """Forget the devices of a node that is given back."""
        gone = {self._planned.pop(device) for device in devices}
        self.nodes = [one for one in self.nodes if one.node not in gone]

    def place(self, agent: type, node: str, plans: Sequence[DevicePlan], hard: bool) -> Any:
        """Return an actor class whose instance takes the devices' resources. ``hard``: on no other node."""
        return ray.remote(agent).options(
            num_cpus=sum(plan.threads for plan in plans),
            num_gpus=sum(plan.kind == "cuda" for plan in plans),
            max_concurrency=1000,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=not hard),
        )

    @property
    def used(self) -> tuple[str, ...]:
        """List the nodes of which devices are planned."""
        return tuple(dict.fromkeys(self._planned.values()))

    def on_node(self, work: Callable[..., Any], node: str) -> Any:
        """Return a remote function that runs on one node, whatever else that has to do."""
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(work).options(num_cpus=0, scheduling_strategy=where)

    def describe_needs(self, plans: Sequence[DevicePlan]) -> str:
        gpus = sum(plan.kind == "cuda" for plan in plans)
        return f"{sum(plan.threads for plan in plans)} free CPUs" + (f" and {gpus} GPUs" if gpus else "")

    def leaving(self) -> frozenset[str]:
        """Return the nodes that Ray is about to end, such as those with a spot notice. Asks the cluster."""
        draining: dict[str, int] = ray._private.state.state.get_draining_nodes()  # as Ray Train asks for it
        return frozenset(draining)

    def lost_own_node(self) -> bool:
        """Return whether the cluster counts the node of this process as lost. Asks the cluster."""
        rows = ray.nodes()  # type: ignore[no-untyped-call]
        return any(row["NodeID"] == self.own_node and not row["Alive"] for row in rows)

    def leave(self) -> None:
        """Disconnect; a cluster that :func:`connect` started ends with that."""
        ray.shutdown()


def connect(address: str | None, patience_s: float = 0.0) -> Cluster:
    """Connect to the cluster at ``HOST:PORT``, or that of this machine (``"auto"``), or start one here
    (None), and try again for ``patience_s``. Raises PoolError."""
    give_up_s = time.monotonic() + patience_s
    while True:
        try:
            return _connect(address)
        except PoolError as error:
            if time.monotonic() >= give_up_s:
                raise
            log.error("%s It is tried again.", error.message)
            time.sleep(AGAIN_S)


def _connect(address: str | None) -> Cluster:
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    store = min(STORE_BYTES_MAX, int(memory * STORE_SHARE_OF_MEMORY))
    if address not in (None, "auto"):
        _expect_answer(address)
    try:
        if address is None:
            context = ray.init("local", include_dashboard=False, object_store_memory=store)
        else:
            context = ray.init(address, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise PoolError(
            f"No Ray cluster was found: {error}",
            f"Start one with ray start --head, or leave --address out.{_about_token()}",
        ) from error
    except Exception as error:  # Ray raises this very class where a node does not start in time
        raise PoolError(
            f"Ray cannot be used: {error}",
            "Nodes and this program need the same versions of Ray and Python: see ray --version on each.",
        ) from error
    dashboard = f"http://{context.dashboard_url}" if context.dashboard_url else ""
    return Cluster(_nodes(), str(ray.get_runtime_context().get_node_id()), address or "", dashboard)


def _about_token() -> str:
    """Say how to connect to a cluster with a token: Ray's own error does not name that. Empty where it is so
    already."""
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return ""
    return (
        " If it was started with a token, as ray start does unless RAY_AUTH_MODE=disabled is set, set "
        "RAY_AUTH_MODE=token here, too."
    )


def _expect_answer(address: str) -> None:
    """Raises PoolError where nothing listens: Ray itself would try for minutes."""
    match = re.fullmatch(r"(.+):(\d{1,5})", address)
    if not match:
        raise OptionError(
            f"--address {address!r} is none.", "Write auto, or HOST:PORT, such as 10.0.0.1:6379."
        )
    try:
        socket.create_connection((match[1], int(match[2])), CONNECT_WITHIN_S).close()
    except OSError as error:
        raise PoolError(
            f"No Ray cluster answers at {address}: {error}.",
            "Start one there with ray start --head, or give another --address.",
        ) from None


def _nodes() -> list[Node]:
    alive = [row for row in ray.nodes() if row["Alive"]]  # type: ignore[no-untyped-call]
    shared = Counter(row["NodeManagerHostname"] for row in alive)
    return [
        Node(
            row["NodeID"],
            _short(row["NodeManagerHostname"])
            + (f"-{row['NodeID'][-6:]}" if shared[row["NodeManagerHostname"]] > 1 else ""),
            row["Resources"],
        )
        for row in alive
    ]


def _short(name: str) -> str:
    """Return a host's name as labels may have it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:NAME_CHARS_MAX]


def _wanted(devices: str | None) -> tuple[str, int | None] | None:
    """Return the kind of devices and how many of each node; None: what each node has."""
    if devices in (None, "auto"):
        return None
    if devices == "cuda":
        return "cuda", None
    return "cpu", cpu_count_of(str(devices))


def _devices_of(node: Node, wanted: tuple[str, int | None] | None) -> tuple[str, int]:
    """Return the kind of a node's devices, and how many it has."""
    if wanted is not None and wanted[0] == "cpu":
        return "cpu", wanted[1] or 0
    if wanted is not None or node.gpus:
        return "cuda", node.gpus
    return "cpu", min(CPU_DEVICES_DEFAULT, node.cpus)


def _sizes(node: Node, kind: str, count: int, memory_bytes: int | None) -> tuple[int, int]:
    """Return the limits of a device and of its host tier. 0 for the memory of a GPU, which its host knows."""
    limit = memory_bytes or (0 if kind == "cuda" else cpu_limit_bytes(node.memory_bytes, count))
    return limit, default_host_bytes(kind, limit, node.memory_bytes, count)
