"""What a room answers: where something goes and why there, or what stands against it."""

from __future__ import annotations

from typing import Literal

import msgspec

from djinn_lab.jobs.request import Where, members_in

Constraint = Literal[
    "nodes", "selector", "taints", "devices", "device_share", "cpu", "memory", "one_node", "packed", "members"
]
"""What can be impossible: the named nodes do not exist; no node has the labels; none is tolerated; none has a
device, or one member's cpu or memory; a share is larger than a device; the members do not fit on one node, or
packed; there is not enough in the whole pool."""


class Placed(msgspec.Struct, frozen=True):
    """``scores``: of the node with the most members, its weighted terms by name; they add up to its score."""

    where: Where
    scores: dict[str, float]

    @property
    def members(self) -> int:
        return members_in(self.where)


class Misfit(msgspec.Struct, frozen=True):
    """Nodes by what excludes them, the first that applies in the order of the fields. ``open``: could take a
    member now; more of them were needed. ``members_open``: that many would fit on those."""

    not_ready: int = 0
    cordoned: int = 0
    not_named: int = 0
    label: int = 0
    taint: int = 0
    too_small: int = 0
    busy: int = 0
    open: int = 0
    members_open: int = 0

    @property
    def nodes(self) -> int:
        return (
            self.not_ready
            + self.cordoned
            + self.not_named
            + self.label
            + self.taint
            + self.too_small
            + self.busy
            + self.open
        )


class EverFits(msgspec.Struct, frozen=True):
    """Whether it fits when nothing else runs and every node is back. ``constraint``: the first that is
    impossible; ``needed`` and ``available`` are in its own unit (nodes, thousandths, MiB, members)."""

    fits: bool
    constraint: Constraint | None = None
    needed: int = 0
    available: int = 0

    def __bool__(self) -> bool:
        return self.fits
