"""Who still runs where a reservation of others has begun."""

from __future__ import annotations

from djinn_lab.jobs.decision.cluster import Calendar, Cluster
from djinn_lab.jobs.request import Holding, Request


class Overstaying:
    """Those who started before the reservation was made, or ran longer than was expected. Nobody makes them
    move aside but those whom the nodes are kept for: a reservation that nobody uses costs no parking."""

    def __init__(self, cluster: Cluster, now_s: float) -> None:
        self._kept: list[tuple[Calendar, list[Holding]]] = []
        for _, entry in sorted(cluster.calendar.items()):
            if entry.begins_s <= now_s < entry.ends_s:
                there = (cluster.on_node.get(node, {}).values() for node in sorted(entry.nodes))
                others = [one for held in there for one in held if not entry.admits(one.request.account)]
                if others:
                    self._kept.append((entry, others))

    def __bool__(self) -> bool:
        return bool(self._kept)

    def against(self, request: Request, node: str | None = None) -> list[Holding]:
        """Those who are where this one is to be, each once. ``node``: only there."""
        found = {
            holding.request.job: holding
            for entry, holdings in self._kept
            if entry.admits(request.account)
            for holding in holdings
            if node is None or any(node == here for here, _ in holding.where)
        }
        return list(found.values())
