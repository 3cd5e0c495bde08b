"""Usage of accounts, and which account is next.

Accounts are paths such as ``"vision/train/ann"``; every level has a weight, and accounts are created with
weight 1 when they are first named. Usage decays (:mod:`.decay`), is normalised to the pool's capacity, and
counts by its dominant resource (Ghodsi et al.: Dominant Resource Fairness, NSDI 2011). A job is charged
when it is admitted, for its estimate up to a quantum, and the charge is corrected while it runs and when
it ends. So a burst between two samples gains nothing (Kueue's admission fair sharing needed the same), nor
does a late sample."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, KeysView, Mapping

from djinn_lab.jobs.fairness.account import OWN, AccountNode, sides
from djinn_lab.jobs.fairness.decay import Decay
from djinn_lab.jobs.fairness.fair_tree import fair_order, ranks
from djinn_lab.jobs.fairness.limits import Limits, check_limits
from djinn_lab.jobs.fairness.overcommitted import overcommitted, short_of_devices
from djinn_lab.jobs.fairness.share_comparison import ShareComparison
from djinn_lab.jobs.fairness.state import (
    AccountState,
    AccountView,
    Amounts,
    Capacity,
    Charge,
    ShareSettings,
    ShareState,
)

Undo = tuple[str, Charge | None, list[tuple[AccountNode, float, float, float, float]]]
FEW = 8
"""An order among fewer than one leaf in so many is searched for; else all leaves are ordered."""
BELOW = 1 + 1e-9
"""A factor, so that what is reported as below something then is."""
_MICRO = 1_000_000
_MILLI = 1_000


class ShareTree:
    """All accounts of a pool. Between :meth:`checkpoint` and :meth:`rollback` jobs are admitted on trial."""

    def __init__(self, state: ShareState | None = None) -> None:
        state = state or ShareState()
        self.settings: ShareSettings = state.settings
        self.capacity: Capacity = state.capacity
        self.limited = self.limited_by_use = self.guarantees = False
        self.guaranteed_milli: Mapping[str, float] = {}
        """By account, thousandths of devices; another mapping after every change."""
        self._decay = Decay(state.settings.half_life_s, state.landmark_s)
        self._root = AccountNode("", None)
        self._nodes: dict[str, AccountNode] = {}
        self._leaves: dict[str, AccountNode] = {}
        self._charges: dict[str, Charge] = {charge.job: charge for charge in state.charges}
        self._undo: list[Undo] = []
        self._marks = 0
        self._factors = (0.0, 0.0, 0.0)
        for known in state.accounts:
            self._restore(known)
        self._look_at_limits()
        self.set_capacity(state.capacity)

    # -- accounts and targets --------------------------------------------------------------------------------

    def leaf(self, account: str) -> AccountNode:
        """Return the account that jobs of this name are charged to; new ones are created."""
        known = self._leaves.get(account)
        if known is not None:
            return known
        node = self._node(account)
        if node.children:
            node = self._own(node)
        node.leaf = True
        self._leaves[account] = node
        return node

    def register(self, accounts: KeysView[str]) -> None:
        """Give these accounts a place in the order, since jobs may be charged to them."""
        for account in sorted(accounts - self._leaves.keys()):
            self.leaf(account)

    def set_targets(
        self,
        account: str,
        weight: float | None = None,
        limits: Limits | None = None,
        min_runtime_s: float | None = None,
    ) -> None:
        """Set what is not None. Raises ValueError, with nothing changed."""
        if weight is not None:
            _check_weight(account, weight)
        if min_runtime_s is not None and not 0 <= min_runtime_s < math.inf:
            raise ValueError(
                f"a minimum run time of {min_runtime_s} s for {account}; it must be a number from 0 on"
            )
        if limits is not None:
            check_limits(account, limits)
        self._node(account)
        if weight is not None:
            self.set_weight(account, weight)
        if limits is not None:
            self.set_limits(account, limits)
        if min_runtime_s is not None:
            self.set_min_runtime(account, min_runtime_s)

    def set_weight(self, account: str, weight: float) -> None:
        _check_weight(account, weight)
        node = self._node(account)
        node.weight = weight
        self._level(node)

    def set_limits(self, account: str, limits: Limits) -> None:
        """Set the limits; ``""`` is the whole pool. Raises ValueError, with nothing changed."""
        check_limits(account, limits)
        self._node(account).limits = limits
        self._look_at_limits()

    def set_min_runtime(self, account: str, seconds: float | None) -> None:
        """Set how long a job below this account runs before jobs of other accounts may preempt it; None:
        as its parent."""
        self._node(account).min_runtime_s = seconds

    def set_capacity(self, capacity: Capacity) -> None:
        """Set what usage is a fraction of. As long as none is known, device time alone counts."""
        self.capacity = capacity
        capacity = capacity if any(capacity) else Capacity(devices=1.0)
        window_s = self._decay.window_s
        self._factors = (
            _factor(self.settings.resource_weights.device_s, capacity.devices * window_s),
            _factor(self.settings.resource_weights.memory_byte_s, capacity.memory_bytes * window_s),
            _factor(self.settings.resource_weights.transfer_bytes, capacity.transfer_bytes_per_s * window_s),
        )
        for node in self._nodes.values():
            self._level(node)

    # -- usage -----------------------------------------------------------------------------------------------

    def admit(self, job: str, account: str, at_s: float, amounts: Amounts) -> None:
        """Charge a starting job for its expected usage."""
        assert job not in self._charges, f"{job} is charged already"
        self.advance(at_s)
        self._put(job, Charge(job, account, at_s, amounts), amounts)

    def correct(self, job: str, amounts: Amounts) -> None:
        """Correct a running job's charge: its usage, past and ahead, since it was admitted."""
        charge = self._charges[job]
        self._put(job, Charge(job, charge.account, charge.at_s, amounts), _less(amounts, charge.amounts))

    def settle(self, job: str, amounts: Amounts) -> None:
        """Replace the charge of a job that ended or was parked by its real usage since it was admitted."""
        charge = self._charges[job]
        self._put(job, None, _less(amounts, charge.amounts))
        if not self._marks:
            leaf = self.leaf(charge.account)
            device_us, byte_ms, moved = leaf.used
            leaf.used = (
                device_us + round(amounts.device_s * _MICRO),
                byte_ms + round(amounts.memory_byte_s * _MILLI),
                moved + round(amounts.transfer_bytes),
            )

    def charge(self, job: str) -> Charge | None:
        return self._charges.get(job)

    def advance(self, at_s: float) -> None:
        """Make sure that charges at this time can be weighed; nothing visible changes."""
        if self._decay.covers(at_s):
            return
        assert not self._marks, "advance before a trial, not in it"
        if at_s < self._decay.landmark_s:
            raise ValueError(f"time {at_s} s lies more than {self._decay.half_life_s} s x 256 in the past")
        factor = self._decay.move_to(at_s)
        for node in self._nodes.values():
            node.device_s *= factor
            node.memory_byte_s *= factor
            node.transfer_bytes *= factor
            self._level(node)

    # -- trials ----------------------------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """Return a mark to roll back to; marks nest."""
        self._marks += 1
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Restore everything as it was at the mark, bit for bit."""
        assert self._marks, "no trial is on"
        while len(self._undo) > mark:
            job, before, nodes = self._undo.pop()
            if before is None:
                self._charges.pop(job, None)
            else:
                self._charges[job] = before
            for node, device_s, memory_byte_s, transfer_bytes, level in nodes:
                node.device_s, node.memory_byte_s = device_s, memory_byte_s
                node.transfer_bytes, node.level = transfer_bytes, level
                node.moved()
        self._marks -= 1

    # -- whose turn ------------------------------------------------------------------------------------------

    def order(self, accounts: Collection[str] | None = None) -> Iterator[list[AccountNode]]:
        """Yield leaves in groups of equal rank, the next one first; see :mod:`.fair_tree`. Groups without
        any of ``accounts`` may be left out."""
        if accounts is None or len(accounts) * FEW > len(self._leaves):
            return fair_order(self._root)
        return fair_order(self._root, {one for account in accounts for one in self.leaf(account).ancestry})

    def ranks(self) -> dict[str, int]:
        return {
            self._nodes[path].account: rank
            for path, rank in ranks(fair_order(self._root)).items()
            if self._nodes[path].leaf
        }

    def claim(self, account: str, gains: Amounts, at_s: float) -> ShareComparison:
        """Return the account's comparison with others once it is charged this. Good until the next charge."""
        weight = self._decay.weight(at_s)
        return ShareComparison(self.leaf(account), gains, weight, self._factors, self._decay.window_s)

    def min_runtime_s(self, victim: str, preemptor: str, default: float) -> float:
        """Return the victim's minimum run time against the preemptor, by KAI's rule: below the lowest
        common ancestor of both, the victim's side decides, and what it leaves open its ancestors decide.
        So a team protects its jobs from each other as it likes, but from other teams only as the account
        above both allows."""
        found = sides(self.leaf(victim), self.leaf(preemptor))
        node: AccountNode | None = self.leaf(victim) if found is None else found[0]
        while node is not None:
            if node.min_runtime_s is not None:
                return node.min_runtime_s
            node = node.parent
        return default

    def guarantee_met(self, account: str, other: str) -> tuple[str, float] | None:
        """Return the guarantee that counts for ``account`` against the other: its account, and how many
        devices."""
        found = sides(self.leaf(account), self.leaf(other))
        guaranteed = None if found is None else found[0].limits.devices_guaranteed
        return None if found is None or guaranteed is None else (found[0].account, guaranteed)

    def lineage(self, account: str) -> tuple[AccountNode, ...]:
        """Return the account and every account above it, the whole pool first."""
        return (self._root, *self.leaf(account).ancestry)

    def device_s(self, node: AccountNode, at_s: float) -> float:
        """Return the decayed device-seconds at that time."""
        weight = self._decay.weight(at_s)
        return node.device_s / weight if weight else 0.0

    def below_s(self, node: AccountNode, amount: float, at_s: float) -> float:
        """Return when its decayed device-seconds will be below this amount, if nothing more is charged."""
        now = self.device_s(node, at_s)
        if now <= amount:
            return at_s
        return at_s + self._decay.half_life_s * math.log2(now / amount * BELOW) if amount > 0 else math.inf

    # -- to look at and to store -----------------------------------------------------------------------------

    def short_of_devices(self, away: float) -> str:
        """Return a sentence where more devices are guaranteed than are left while so many are cordoned or
        down; empty where not."""
        return short_of_devices(self._root, self.capacity.devices, away) if self.guarantees else ""

    def view(self, at_s: float, away: float = 0.0) -> tuple[AccountView, ...]:
        """Return every account at that time, parents before children. ``away``: devices that are cordoned
        or down."""
        weight = self._decay.weight(at_s)
        found = ranks(fair_order(self._root))
        return tuple(
            self._view(node, weight, found.get(node.path), away) for _, node in sorted(self._nodes.items())
        )

    def state(self) -> ShareState:
        """Return the state. Accounts with nothing but a name are left out; they come back by themselves."""
        kept: dict[str, AccountNode] = {"": self._root}
        for node in self._nodes.values():
            if not node.blank:
                kept.update((one.path, one) for one in node.ancestry)
        return ShareState(
            self.settings,
            self.capacity,
            self._decay.landmark_s,
            tuple(
                AccountState(
                    node.path,
                    node.weight,
                    node.limits,
                    node.min_runtime_s,
                    Amounts(*node.usage),
                    node.used,
                    node.charged,
                )
                for _, node in sorted(kept.items())
            ),
            tuple(charge for _, charge in sorted(self._charges.items())),
        )

    # -- parts -----------------------------------------------------------------------------------------------

    def _node(self, account: str) -> AccountNode:
        if not account:
            return self._root
        known = self._nodes.get(account)
        if known is not None:
            return known
        parent_path, _, name = account.rpartition("/")
        if not name or account.startswith("/") or "//" in account:
            raise ValueError(
                f"account {account!r} has an empty part; write it like organisation/project/user"
            )
        parent = self._node(parent_path)
        if parent.leaf and name != OWN:
            self._own(parent)
        node = self._nodes[account] = parent.child(name)
        return node

    def _own(self, node: AccountNode) -> AccountNode:
        """Return the child for what is charged to an account that has others below it; it inherits former
        charges."""
        own = self._nodes.get(f"{node.path}/{OWN}")
        if own is None:
            was_leaf, node.leaf = node.leaf, False
            own = self._nodes[f"{node.path}/{OWN}"] = node.child(OWN)
            if was_leaf:
                own.device_s, own.memory_byte_s, own.transfer_bytes = node.usage
                own.used, node.used = node.used, (0, 0, 0)
                self._leaves[node.path] = own
            own.leaf = was_leaf
            self._level(own)
        return own

    def _look_at_limits(self) -> None:
        nodes = (self._root, *self._nodes.values())
        self.limited = any(node.limits.limiting for node in nodes)
        self.limited_by_use = any(node.limits.device_s_max is not None for node in nodes)
        guaranteed = ((node.account, node.limits.devices_guaranteed) for node in nodes)
        self.guaranteed_milli = {
            account: devices * 1000 for account, devices in guaranteed if devices is not None
        }
        self.guarantees = any(self.guaranteed_milli.values())

    def _put(self, job: str, charge: Charge | None, amounts: Amounts) -> None:
        old = self._charges.get(job)
        known = charge or old
        assert known is not None
        line = self.leaf(known.account).ancestry
        if self._marks:
            before = [(n, n.device_s, n.memory_byte_s, n.transfer_bytes, n.level) for n in line]
            self._undo.append((job, old, before))
        if charge is None:
            del self._charges[job]
        else:
            self._charges[job] = charge
        weight = self._decay.weight(known.at_s)
        device_s, memory_byte_s, moved = amounts
        for node in line:
            node.device_s = max(0.0, node.device_s + device_s * weight)
            if memory_byte_s:
                node.memory_byte_s = max(0.0, node.memory_byte_s + memory_byte_s * weight)
            if moved:
                node.transfer_bytes = max(0.0, node.transfer_bytes + moved * weight)
            self._level(node)

    def _level(self, node: AccountNode) -> None:
        by_device, by_memory, by_transfer = self._factors
        dominant = node.device_s * by_device
        if node.memory_byte_s * by_memory > dominant:
            dominant = node.memory_byte_s * by_memory
        if node.transfer_bytes * by_transfer > dominant:
            dominant = node.transfer_bytes * by_transfer
        node.level = dominant / node.weight
        node.moved()

    def _view(self, node: AccountNode, weight: float, rank: int | None, away: float) -> AccountView:
        share = 1.0
        for step in node.ancestry:
            assert step.parent is not None
            share *= step.weight / sum(sibling.weight for sibling in step.parent.children.values())
        unweighted = (1 / (c * self._decay.window_s * weight) if c else 0.0 for c in self.capacity)
        usage = Amounts(*(stored * factor for stored, factor in zip(node.usage, unweighted, strict=True)))
        return AccountView(
            node.path,
            node.weight,
            share,
            usage,
            node.level * node.weight / weight,
            node.level / weight,
            rank if node.leaf else None,
            Amounts(node.used[0] / _MICRO, node.used[1] / _MILLI, node.used[2]),
            node.limits,
            overcommitted(node, self.capacity.devices, away) if self.guarantees else "",
        )

    def _restore(self, known: AccountState) -> None:
        parent_path, _, name = known.account.rpartition("/")
        if known.account:
            node = self._nodes[known.account] = (
                self._nodes[parent_path] if parent_path else self._root
            ).child(name)
        else:
            node = self._root
        node.weight, node.limits, node.min_runtime_s = known.weight, known.limits, known.min_runtime_s
        node.device_s, node.memory_byte_s, node.transfer_bytes = known.usage
        node.used, node.leaf = known.used, known.leaf
        if known.leaf:
            self._leaves[node.account] = node


def _check_weight(account: str, weight: float) -> None:
    if not 0 < weight < math.inf:
        raise ValueError(f"a weight of {weight} for {account}; it must be a number above 0")


def _factor(weight: float, capacity: float) -> float:
    return weight / capacity if capacity > 0 else 0.0


def _less(amounts: Amounts, other: Amounts) -> Amounts:
    return Amounts(
        amounts.device_s - other.device_s,
        amounts.memory_byte_s - other.memory_byte_s,
        amounts.transfer_bytes - other.transfer_bytes,
    )
