"""Prometheus metrics of session memory, made from its snapshot when ``/metrics`` is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from djinn_lab.memory.snapshot import Counters, DeviceAccount, MemorySnapshot, Tier, WakeUps

WAKE_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class WakeHistogram:
    """Wake-ups by length. The snapshot has the last thousand: of more than that between two looks, the
    oldest are missing here (but not in ``djinn_wake_ups_total``)."""

    def __init__(self) -> None:
        self._seen = 0
        self._counts = [0] * (len(WAKE_BUCKETS_S) + 1)
        self._sum_s = 0.0

    def note(self, wakes: WakeUps) -> None:
        fresh = min(max(0, wakes.count - self._seen), len(wakes.recent_s))
        self._seen = wakes.count
        for seconds in wakes.recent_s[len(wakes.recent_s) - fresh :]:
            self._sum_s += seconds
            self._counts[sum(seconds > bucket for bucket in WAKE_BUCKETS_S)] += 1

    def family(self) -> Metric:
        family = HistogramMetricFamily(
            "djinn_wake_up_seconds", "From the wish to compute to the grant, of sessions that hold state"
        )
        names = [*map(floatToGoString, WAKE_BUCKETS_S), "+Inf"]
        family.add_metric(
            [], list(zip(names, map(float, accumulate(self._counts)), strict=True)), self._sum_s
        )
        return family


class MemoryCollector(Collector):
    """Give it a snapshot with :meth:`note` before the registry is rendered."""

    def __init__(self) -> None:
        self._snapshot: MemorySnapshot | None = None
        self._now_s = 0.0
        self._wakes = WakeHistogram()

    def note(self, snapshot: MemorySnapshot, now_s: float) -> None:
        self._snapshot, self._now_s = snapshot, now_s
        self._wakes.note(snapshot.wake_ups)

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        if snapshot is None:
            return
        yield from _devices(snapshot.devices)
        yield from _sessions(snapshot)
        yield from _deferred(snapshot, self._now_s)
        yield from _wake_ups(snapshot.wake_ups)
        yield self._wakes.family()
        yield from _counters(snapshot.counters)


def _devices(devices: tuple[DeviceAccount, ...]) -> Iterator[Metric]:
    held = GaugeMetricFamily(
        "djinn_memory_bytes", "Bytes by tier, and by what holds them", labels=["device", "tier", "kind"]
    )
    rates = GaugeMetricFamily(
        "djinn_memory_link_bytes_per_second",
        "Bytes per second over the last ten seconds",
        labels=["device", "direction"],
    )
    limits = GaugeMetricFamily(
        "djinn_memory_link_limit_bytes_per_second", "The link's measured rate", labels=["device"]
    )
    for account in devices:
        for tier, kinds in _bytes_by_tier(account).items():
            for kind, nbytes in kinds.items():
                held.add_metric([account.device, tier, kind], nbytes)
        rates.add_metric([account.device, "out"], account.out_bytes_per_s)
        rates.add_metric([account.device, "in"], account.in_bytes_per_s)
        if account.link_bytes_per_s is not None:
            limits.add_metric([account.device], account.link_bytes_per_s)
    yield from (held, rates, limits)


def _bytes_by_tier(account: DeviceAccount) -> dict[str, dict[str, int]]:
    """Split each tier's bytes by kind. They add up to its size, but for reserved bytes, which are part of
    ``free``."""
    used = account.busy_bytes + account.idle_bytes + account.loading_bytes + account.shared_bytes
    return {
        "device": {
            "busy": account.busy_bytes,
            "idle": account.idle_bytes,
            "loading": account.loading_bytes,
            "shared": account.shared_bytes,
            "other": max(0, account.used_bytes - used),
            "reserved": account.reserved_bytes,
            "free": max(0, account.memory_bytes - max(used, account.used_bytes)),
        },
        "host": {
            "parked": account.host_used_bytes,
            "free": max(0, account.host_bytes - account.host_used_bytes),
        },
        "disk": {
            "parked": account.disk_used_bytes,
            "free": max(0, account.disk_bytes - account.disk_used_bytes),
        },
    }


def _sessions(snapshot: MemorySnapshot) -> Iterator[Metric]:
    tiers = GaugeMetricFamily("djinn_memory_sessions", "Sessions by memory tier", labels=["tier"])
    counts = Counter(session.tier for session in snapshot.sessions)
    for tier in get_args(Tier):
        tiers.add_metric([tier], counts[tier])
    moving = GaugeMetricFamily(
        "djinn_memory_moving_sessions", "Sessions with a transfer under way", labels=["kind"]
    )
    kinds = Counter(session.moving for session in snapshot.sessions if session.moving)
    for kind in ("store", "evict", "restore", "demote", "forget"):
        moving.add_metric([kind], kinds[kind])
    live = GaugeMetricFamily("djinn_memory_session_bytes", "Bytes of all sessions together", labels=["part"])
    live.add_metric(["total"], sum(session.total_bytes for session in snapshot.sessions))
    live.add_metric(["kv"], sum(session.kv_bytes for session in snapshot.sessions))
    live.add_metric(["stored"], sum(session.stored_bytes for session in snapshot.sessions))
    yield from (tiers, moving, live)


def _deferred(snapshot: MemorySnapshot, now_s: float) -> Iterator[Metric]:
    deferred = GaugeMetricFamily(
        "djinn_memory_deferred_segments",
        "Deferred segments: waiting for a copy of their state, or for other sessions to leave",
        labels=["wait"],
    )
    admission = sum(segment.release.of_other_sessions for segment in snapshot.deferred)
    deferred.add_metric(["admission"], admission)
    deferred.add_metric(["copy"], len(snapshot.deferred) - admission)
    longest_s = max((now_s - segment.since_s for segment in snapshot.deferred), default=0.0)
    yield deferred
    yield GaugeMetricFamily(
        "djinn_memory_longest_deferral_seconds", "Longest wait of deferred segments", longest_s
    )


def _wake_ups(wakes: WakeUps) -> Iterator[Metric]:
    counts = CounterMetricFamily(
        "djinn_wake_ups",
        "Wake-ups without a copy to wait for (hit), and with one (wait)",
        labels=["outcome"],
    )
    counts.add_metric(["hit"], wakes.hits)
    counts.add_metric(["wait"], max(0, wakes.count - wakes.hits))
    recent = GaugeMetricFamily(
        "djinn_wake_up_recent_seconds", "Quantiles over the last thousand wake-ups", labels=["quantile"]
    )
    ratios = GaugeMetricFamily(
        "djinn_wake_up_ratio", "Wake-ups with a copy over bytes by the link's rate", labels=["quantile"]
    )
    for family, quantile, value in (
        (recent, "0.5", wakes.p50_s),
        (recent, "0.99", wakes.p99_s),
        (recent, "1", wakes.max_s),
        (ratios, "0.5", wakes.p50_ratio),
        (ratios, "0.99", wakes.p99_ratio),
    ):
        if value is not None:
            family.add_metric([quantile], value)
    yield from (counts, recent, ratios)


def _counters(counts: Counters) -> Iterator[Metric]:
    transfers = CounterMetricFamily("djinn_memory_transfers", "Transfers that succeeded", labels=["kind"])
    transfers.add_metric(["store"], counts.stores)
    transfers.add_metric(["evict"], counts.evictions)
    transfers.add_metric(["restore"], counts.restores)
    transfers.add_metric(["demote"], counts.demotions)
    moved = CounterMetricFamily(
        "djinn_memory_transferred_bytes", "Copied from devices (out) and to them (in)", labels=["direction"]
    )
    moved.add_metric(["out"], counts.bytes_out)
    moved.add_metric(["in"], counts.bytes_in)
    outcomes = CounterMetricFamily(
        "djinn_memory_prefetch_outcomes", "Prefetches by outcome", labels=["outcome"]
    )
    outcomes.add_metric(["on_time"], counts.prefetches_on_time)
    outcomes.add_metric(["late"], counts.prefetches_late)
    outcomes.add_metric(["wasted"], counts.prefetches_wasted)
    yield from (transfers, moved, outcomes)
    for name, text, value in (
        ("djinn_memory_prefetches", "Restores begun before a cell needed them", counts.prefetches),
        ("djinn_memory_useful_swaps", "Evictions whose freed memory was used", counts.useful_swaps),
        ("djinn_memory_hash_checks", "Pieces compared with their hash in restores", counts.hash_checks),
        ("djinn_memory_hash_mismatches", "Pieces that differed from their hash", counts.mismatches),
        ("djinn_memory_failed_transfers", "Transfers that failed", counts.failed_transfers),
        (
            "djinn_memory_admission_waits",
            "Segments that waited for other sessions to leave",
            counts.admission_waits,
        ),
        ("djinn_memory_values_lost", "Times that a session lost values", counts.values_lost),
    ):
        yield CounterMetricFamily(name, text, value)
