"""The values that decisions are about: nodes, requests for them, and holdings. Frozen; times are seconds
of the clock that drives the core, live or simulated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from djinn_lab.srg.structure import GraphPhase

WHOLE_DEVICE_MILLI = 1000

Together = Literal["anywhere", "packed", "one_node"]
"""How the members of a gang may lie: on any nodes; as few nodes as possible (up to a node's size on one node,
more on whole empty nodes and the rest on one other); on one node."""

Where = tuple[tuple[str, int], ...]
"""Members by node, in the order in which they were chosen."""


def left_s(estimate_s: float, had_s: float) -> float:
    """Return the predicted run time left after ``had_s``. Past its estimate, a job counts as running for as
    long again as it has: predictions order the queue, none ends a job (Tsafrir, Etsion, Feitelson, IEEE TPDS
    18(6), 2007)."""
    return estimate_s - had_s if estimate_s > had_s else had_s


def members_in(where: Where) -> int:
    """Return how many members there are in all."""
    if len(where) == 1:
        return where[0][1]
    return sum(members for _, members in where)


class ComputeNode(msgspec.Struct, frozen=True):
    """A machine, or one device of the live pool. ``devices``: how many it has. ``labels``: ``key=value``.
    ``taints``: only requests that tolerate all of them come here. ``cordoned``: nothing new starts.
    ``price``: of a device-hour, energy included, in any currency; only a cost score looks at it.
    ``expected``: it is not there, and may come; not ``ready`` then."""

    node: str
    devices: int = 1
    cpu_milli: int = 0
    memory_mib: int = 0
    labels: frozenset[str] = frozenset()
    taints: frozenset[str] = frozenset()
    cordoned: bool = False
    ready: bool = True
    price: float = 0.0
    expected: bool = False


def devices_away(nodes: Iterable[ComputeNode]) -> int:
    """Count the devices of nodes on which nothing can start, without those that were never there."""
    return sum(node.devices for node in nodes if not node.expected and (node.cordoned or not node.ready))


class Demand(msgspec.Struct, frozen=True):
    """What a request wants to hold, all at once. ``members``: gang size, each ``device_milli`` thousandths
    of one device and the rest of the fields on the same node; ``members_min``: the fewest to start with.
    ``selector``: labels that a node must have; ``prefers``: that it should have. ``nodes``: only these,
    None for any. ``anchor``: one of the members must be here, since state that cannot be moved lies there.
    """

    members: int = 1
    members_min: int = 1
    device_milli: int = WHOLE_DEVICE_MILLI
    cpu_milli: int = 0
    memory_mib: int = 0
    together: Together = "anywhere"
    selector: frozenset[str] = frozenset()
    tolerates: frozenset[str] = frozenset()
    nodes: frozenset[str] | None = None
    anchor: str | None = None
    prefers: frozenset[str] = frozenset()


class Request(msgspec.Struct, frozen=True):
    """A job as decisions see it. ``account``: the leaf of the share tree that pays, such as
    ``"vision/train/ann"``. ``rank``: of its priority, 0 first. ``number``: of its arrival, unique.
    ``estimate_s``: predicted run time still to come, None when unknown; it orders and sizes holes, and never
    kills. ``spread``: nine of ten such requests end within so many times their estimate. ``attained_s``:
    device-seconds attained so far. ``home``: the node with its state; another one costs ``move_s``,
    and ``other_host_s`` more on another host. ``preempted``: how often it was preempted, last at
    ``preempted_at_s``. ``startable`` False: its state or memory is not on its device yet; it keeps its queue
    position, and other jobs may start before it. ``stuck``: nothing is being restored or freed for it, so
    that no capacity is reserved for it. ``park_s``: the expected cost of preempting it once it runs.
    ``phase``: a decode step, with its memory, may preempt a prefill. ``process``: the worker process of its
    session, in which brief requests run between two ops of it; empty where they may not. ``brief``: it may
    itself run so, at its home."""

    job: str
    account: str
    rank: int
    number: int
    arrived_s: float
    demand: Demand = Demand()
    estimate_s: float | None = None
    attained_s: float = 0.0
    deadline_s: float | None = None
    home: str | None = None
    move_s: float = 0.0
    other_host_s: float = 0.0
    preempted: int = 0
    startable: bool = True
    preempted_at_s: float | None = None
    park_s: float = 0.0
    stuck: bool = False
    segment_at_s: float = 0.0
    spread: float = 1.0
    phase: GraphPhase = ""
    process: str = ""
    brief: bool = False

    @property
    def promised_s(self) -> float | None:
        """The conservative end of the estimate, for all that is promised on it: holes before reservations,
        starts that are held, deadlines."""
        return None if self.estimate_s is None else self.estimate_s * self.spread

    @property
    def waits_since_s(self) -> float:
        """When its present wait began: at its arrival, or at that of its segment, or at its preemption."""
        return max(self.arrived_s, self.segment_at_s, self.preempted_at_s or 0.0)


class Holding(msgspec.Struct, frozen=True):
    """A request that runs since ``started_s``. ``ends_s``: when it is expected to end, None when unknown.
    ``park_s``: the cost of preempting and resuming it now. ``exempt_until_s``: its minimum run time; it is
    not preempted before. ``charged_until_s``: so far its account has been charged for it, None when it is
    not charged ahead. ``interleaved_s``: for so long the device has run others between its ops."""

    request: Request
    where: Where
    started_s: float
    ends_s: float | None = None
    park_s: float = 0.0
    exempt_until_s: float = 0.0
    preemptible: bool = True
    charged_until_s: float | None = None
    interleaved_s: float = 0.0


class Interleaved(msgspec.Struct, frozen=True):
    """A brief request that runs since ``started_s`` on ``node``, between two ops of what holds the node."""

    request: Request
    node: str
    started_s: float
