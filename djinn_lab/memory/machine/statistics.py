"""Counters, wake-ups, rates and the latest changes of session memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from djinn_lab.memory.messages import TransferKind
from djinn_lab.memory.snapshot import Counters, MemoryChange, WakeUps

RECENT = 1000
"""Wake-ups that percentiles are taken over."""
HAPPENINGS = 300
RATE_S = 10.0
"""Rates are over this many last seconds."""


@dataclass(slots=True)
class Swap:
    """An eviction that is not settled as useful or not. ``used``: another session took its capacity."""

    device: str
    nbytes: int
    used: bool = False


@dataclass(slots=True)
class Statistics:
    """Counts what session memory does. ``swaps``: by session, the evictions whose session has neither
    returned nor closed."""

    counted: Counters = field(default_factory=Counters)
    wake_count: int = 0
    wake_hits: int = 0
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=RECENT))
    happenings: deque[MemoryChange] = field(default_factory=lambda: deque(maxlen=HAPPENINGS))
    swaps: dict[str, Swap] = field(default_factory=dict)
    copies: deque[tuple[float, str, bool, int]] = field(default_factory=lambda: deque(maxlen=4096))

    def note(
        self,
        at_s: float,
        what: str,
        session: str,
        device: str,
        nbytes: int = 0,
        seconds: float | None = None,
        reason: str = "",
    ) -> None:
        self.happenings.append(MemoryChange(at_s, what, session, device, nbytes, seconds, reason))

    def count(self, **more: int) -> None:
        """Add to counters, by the names of :class:`~djinn_lab.memory.snapshot.Counters`."""
        self.counted = replace(
            self.counted, **{name: getattr(self.counted, name) + by for name, by in more.items()}
        )

    def copied(self, at_s: float, device: str, kind: TransferKind, nbytes: int) -> None:
        """Count bytes over the link: stores go out, restores come in."""
        if kind == "store":
            self.count(bytes_out=nbytes)
        elif kind == "restore":
            self.count(bytes_in=nbytes)
        else:
            return
        self.copies.append((at_s, device, kind == "store", nbytes))

    def eviction_began(self, session: str, device: str, nbytes: int) -> None:
        """Note that an eviction began; other sessions may take its capacity before its end is reported."""
        self.swaps[session] = Swap(device, nbytes)

    def eviction_failed(self, session: str) -> None:
        """Note that the eviction failed."""
        self.swaps.pop(session, None)

    def capacity_taken(self, session: str, device: str, nbytes: int, free_bytes: int) -> None:
        """Mark the evictions that made it possible for a restore or grant to take ``nbytes`` of
        ``free_bytes``."""
        idle = [
            (name, swap)
            for name, swap in self.swaps.items()
            if not swap.used and swap.device == device and name != session
        ]
        without = free_bytes - sum(swap.nbytes for _, swap in idle)
        for _, swap in idle:
            if nbytes <= without:
                return
            swap.used = True
            without += swap.nbytes

    def came_back(self, session: str) -> None:
        swap = self.swaps.pop(session, None)
        if swap is not None and swap.used:
            self.count(useful_swaps=1)

    def woke(self, seconds: float, floor_s: float | None, hit: bool) -> None:
        """Record a wake-up. ``floor_s``: how long the copy takes at least; None when unknown."""
        self.wake_count += 1
        self.wake_hits += hit
        self.recent.append((seconds, seconds / floor_s if floor_s and not hit else 0.0))

    def rates(self, device: str, now_s: float) -> tuple[float, float]:
        """Bytes per second out and in, over the last seconds."""
        sums = [0, 0]
        for at_s, where, out, nbytes in reversed(self.copies):
            if at_s < now_s - RATE_S:
                break
            if where == device:
                sums[0 if out else 1] += nbytes
        return sums[0] / RATE_S, sums[1] / RATE_S

    def counters(self) -> Counters:
        """The counters. A used swap whose session is still expected counts as useful, until it closes."""
        expected = sum(swap.used for swap in self.swaps.values())
        return replace(self.counted, useful_swaps=self.counted.useful_swaps + expected)

    def wake_ups(self) -> WakeUps:
        seconds = sorted(second for second, _ in self.recent)
        ratios = sorted(ratio for _, ratio in self.recent if ratio > 0)
        return WakeUps(
            count=self.wake_count,
            hits=self.wake_hits,
            p50_s=percentile(seconds, 0.5),
            p99_s=percentile(seconds, 0.99),
            max_s=seconds[-1] if seconds else None,
            p50_ratio=percentile(ratios, 0.5),
            p99_ratio=percentile(ratios, 0.99),
            recent_s=tuple(second for second, _ in self.recent),
            recent_ratios=tuple(ratio for _, ratio in self.recent),
        )

    def last_happenings(self) -> tuple[MemoryChange, ...]:
        return tuple(islice(self.happenings, HAPPENINGS))


def percentile(ordered: list[float], share: float) -> float | None:
    """Return the nearest rank: a value that was measured, at least ``share`` of all are not above it."""
    if not ordered:
        return None
    rank = max(1, -int(-share * len(ordered) // 1))
    return ordered[rank - 1]
