"""Decide how many nodes a pool asks its cluster for, and which idle one it gives back.

Nodes are asked for when cells wait, or are predicted to, for longer than a threshold, and further nodes
would start them at once: the decision itself is tried on a copy of the queue in which their devices are
there. So limits, targets and the costs of moves count as they do for real. A gang that needs more devices
than there are waits for no threshold. After each change the next waits for a cool-down, as controllers of
this kind do against oscillation (Gandhi et al., AutoScale, TOCS 30(4), 2012)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from djinn_lab.jobs.decision import DecisionSnapshot
from djinn_lab.jobs.request import ComputeNode
from djinn_lab.units import counted, format_seconds

TRIED_NODES_MAX = 16
"""So many further nodes are tried at once; more are asked for after the cool-down."""
IDLE_S = 300.0


class ScalingLimits(msgspec.Struct, frozen=True):
    """``nodes_max``: in all, those of the start included. ``idle_s``: a node that is idle for so long is
    given back. ``wait_s``: cells that wait for less need no node. ``give_up_s``: a requested node that has
    not come by then is not waited for any more; none is requested for as long again."""

    nodes_max: int
    idle_s: float = IDLE_S
    wait_s: float = 20.0
    cool_down_s: float = 30.0
    give_up_s: float = 600.0


class WaitingCell(msgspec.Struct, frozen=True):
    """A job that would start at once with ``nodes`` further nodes, and does not without. ``expected_s``:
    predicted wait from now, None when unknown. ``devices``: that it needs at once. ``short``: more than the
    pool has."""

    job: str
    nodes: int
    waited_s: float = 0.0
    expected_s: float | None = None
    devices: int = 1
    short: bool = False

    def due(self, wait_s: float) -> bool:
        """Return whether the wait is long enough to ask for nodes."""
        return self.short or self.waited_s >= wait_s or (self.expected_s or 0.0) >= wait_s


class SpareNode(msgspec.Struct, frozen=True):
    """A node that came on request. ``idle_since_s``: since when no cell runs there and all that its sessions
    hold is parked as well, None while that is not so."""

    host: str
    devices: int = 1
    idle_since_s: float | None = None


class NodeState(msgspec.Struct, frozen=True):
    """``nodes``: that serve, or are about to. ``requested``: in all, at the last request. ``short_since_s``:
    since when fewer are there. ``changed_s``: of the last request or release, ``gave_up_s``: of the last
    request that was given up, both None for never. ``spare``: nodes that came on request. ``gang_devices``:
    that the largest pending gang needs at once. ``devices``: that serve. ``releasing``: a release is under
    way."""

    nodes: int
    requested: int
    devices: int
    short_since_s: float | None = None
    changed_s: float | None = None
    gave_up_s: float | None = None
    spare: tuple[SpareNode, ...] = ()
    gang_devices: int = 0
    releasing: bool = False


class ScalingDecision(msgspec.Struct, frozen=True):
    """``nodes``: to be requested in all from now on, None for no change. ``release``: host of the node to
    give back, empty for none. ``gave_up``: the requested nodes are not waited for any more. ``why``: a part
    of a sentence."""

    nodes: int | None = None
    release: str = ""
    gave_up: bool = False
    why: str = ""


NO_CHANGE = ScalingDecision()


def decide_scaling(
    state: NodeState, waiting: Sequence[WaitingCell], limits: ScalingLimits, now_s: float
) -> ScalingDecision:
    """Return what is to change now. ``waiting``: as :func:`waiting_cells` finds them."""
    if state.requested > state.nodes and _since(state.short_since_s, now_s) >= limits.give_up_s:
        missing = counted(state.requested - state.nodes, "node")
        why = f"{missing} did not come within {format_seconds(limits.give_up_s)}"
        return ScalingDecision(nodes=state.nodes, gave_up=True, why=why)
    if state.changed_s is not None and now_s - state.changed_s < limits.cool_down_s:
        return NO_CHANGE
    due = [cell for cell in waiting if cell.due(limits.wait_s)]
    if due and not state.releasing:
        return _request(state, due, limits, now_s)
    return _release(state, limits, now_s)


def _request(
    state: NodeState, due: Sequence[WaitingCell], limits: ScalingLimits, now_s: float
) -> ScalingDecision:
    most = max(due, key=lambda cell: cell.nodes)
    wanted = min(limits.nodes_max, state.nodes + most.nodes)
    recently = state.gave_up_s is not None and now_s - state.gave_up_s < limits.give_up_s
    if wanted <= max(state.requested, state.nodes) or recently:
        return NO_CHANGE
    return ScalingDecision(nodes=wanted, why=_why_requested(due, limits))


def _release(state: NodeState, limits: ScalingLimits, now_s: float) -> ScalingDecision:
    """Release the node that is idle for longest, unless nodes are to come, or a gang would be short of it."""
    idle = [node for node in state.spare if _since(node.idle_since_s, now_s) >= limits.idle_s]
    idle = [node for node in idle if state.devices - node.devices >= state.gang_devices]
    if state.releasing or state.requested > state.nodes or not idle:
        return NO_CHANGE
    first = max(idle, key=lambda node: (_since(node.idle_since_s, now_s), node.host))
    return ScalingDecision(
        release=first.host, why=f"it was idle for {format_seconds(_since(first.idle_since_s, now_s))}"
    )


def _since(since_s: float | None, now_s: float) -> float:
    return -1.0 if since_s is None else now_s - since_s


def _why_requested(due: Sequence[WaitingCell], limits: ScalingLimits) -> str:
    gangs = [cell for cell in due if cell.short]
    if gangs:
        return f"job {gangs[0].job} needs {gangs[0].devices} devices at once, more than there are"
    longest = max(due, key=lambda cell: max(cell.waited_s, cell.expected_s or 0.0))
    waits = counted(len(due), "cell")
    if longest.waited_s >= limits.wait_s:
        return f"{waits} wait{'s' if len(due) == 1 else ''}, for {format_seconds(longest.waited_s)} at most"
    return f"{waits} would wait for {format_seconds(longest.expected_s or 0.0)} at most"


def waiting_cells(
    snapshot: DecisionSnapshot,
    further: Sequence[Sequence[str]],
    expected_at_s: Mapping[str, float],
) -> list[WaitingCell]:
    """Find the jobs that further nodes would start at once. ``further``: for each of these nodes the devices
    that it would bring, of those that the queue expects. ``expected_at_s``: predicted starts. Takes a while
    with many jobs, and reads nothing but its arguments: for another thread."""
    requests = {request.job: request for request in snapshot.cluster.waiting}
    have = sum(node.devices for node in snapshot.cluster.nodes if node.ready and not node.cordoned)
    started = _starts(snapshot, frozenset())
    found: list[WaitingCell] = []
    brought: set[str] = set()
    for nodes, devices in enumerate(further[:TRIED_NODES_MAX], 1):
        brought |= set(devices)
        for job in sorted(_starts(snapshot, frozenset(brought)) - started):
            request, now_s = requests[job], snapshot.now_s
            at_s = expected_at_s.get(job)
            needs = request.demand.members_min
            found.append(
                WaitingCell(
                    job,
                    nodes,
                    max(0.0, now_s - request.waits_since_s),
                    None if at_s is None else max(0.0, at_s - now_s),
                    needs,
                    short=needs > have,
                )
            )
            started.add(job)
    return found


def _starts(snapshot: DecisionSnapshot, brought: frozenset[str]) -> set[str]:
    """Return the jobs that would start now if these devices were there as well, and session memory kept none
    waiting. Jobs that wait for other sessions are left out, since no device helps them."""
    nodes = tuple(_there(node) if node.node in brought else node for node in snapshot.cluster.nodes)
    waiting = tuple(
        request if request.stuck else replace(request, startable=True) for request in snapshot.cluster.waiting
    )
    cluster = replace(snapshot.cluster, nodes=nodes, waiting=waiting)
    return {start.job for start in replace(snapshot, cluster=cluster).decide().starts}


def _there(node: ComputeNode) -> ComputeNode:
    return replace(node, ready=True, expected=False)
