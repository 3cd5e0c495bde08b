"""Prometheus metrics of one pool, in a registry of their own."""

from __future__ import annotations

from collections import Counter

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from djinn_lab.jobs import JobState
from djinn_lab.jobs.batch import Notebooks, NotebookState
from djinn_lab.jobs.fairness import jain
from djinn_lab.pool.execution.driver import Driver
from djinn_lab.pool.metrics.memory import MemoryCollector

SEGMENT_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """Prometheus gauges, set when ``/metrics`` is read."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._jobs = self._gauge("djinn_jobs", "Jobs remembered, by state", ["state"])
        self._notebooks = self._gauge("djinn_notebooks", "Batch notebooks remembered, by state", ["state"])
        self._queue = self._gauge("djinn_queue_length", "Pending jobs of a device", ["device"])
        self._used = self._gauge("djinn_device_used_bytes", "Live bytes on a device", ["device"])
        self._limit = self._gauge("djinn_device_memory_bytes", "Enforced limit of a device", ["device"])
        self._held = self._gauge(
            "djinn_device_process_bytes", "What the workers have from the system, in use or not", ["device"]
        )
        self._restarts = self._gauge("djinn_worker_restarts", "Restarts of a device's process", ["device"])
        self._silent = self._gauge("djinn_worker_silent", "1 while it does not answer pings", ["device"])
        self._host_serves = self._gauge("djinn_host_serves", "1 while a host's workers are reached", ["host"])
        self._host_received = self._gauge("djinn_host_received_bytes", "Tensors sent to a host", ["host"])
        self._host_sent = self._gauge("djinn_host_sent_bytes", "Results that a host sent", ["host"])
        self._host_copies = self._gauge(
            "djinn_host_second_copies_bytes", "Parked by other hosts, and kept by this one, too", ["host"]
        )
        self._sessions = self._gauge("djinn_sessions", "Sessions, connected and detached", [])
        self._plans = self._gauge(
            "djinn_plan_cache", "Submitted programs by whether their plan was cached", ["outcome"]
        )
        self._waiting = self._gauge("djinn_queue_waiting", "Pending jobs of an account", ["account"])
        self._share = self._gauge(
            "djinn_account_share", "Share of the pool by an account's weights", ["account"]
        )
        self._used_share = self._gauge(
            "djinn_account_used", "Usage of an account: part of the pool's window, decayed", ["account"]
        )
        self._jain = self._gauge("djinn_fairness_jain", "Jain's index over accounts' use per weight", [])
        self._decision = self._gauge(
            "djinn_decision_seconds", "Time to handle an event, decisions included", ["quantile"]
        )
        self._estimates = self._gauge(
            "djinn_start_estimate_error_seconds", "Error of predicted starts", ["quantile"]
        )
        self._preemptions = self._gauge("djinn_preemptions", "Preemptions so far", [])
        self._stalled = self._gauge(
            "djinn_stalled", "1 while a job is pending though a device could run it", []
        )
        self._unusual = self._gauge(
            "djinn_jobs_unusually_long", "Jobs that run far beyond their forecast", []
        )
        self._memory = MemoryCollector()
        self._registry.register(self._memory)
        self._segments = Histogram(
            "djinn_segment_seconds",
            "From receipt of a segment to its result",
            buckets=SEGMENT_BUCKETS_S,
            registry=self._registry,
        )

    def note_notebooks(self, notebooks: Notebooks) -> None:
        """Count the notebooks for the next page."""
        counts = Counter(one.state for one in notebooks)
        for state in NotebookState:
            self._notebooks.labels(state.value).set(counts[state])

    def render(self, driver: Driver) -> tuple[bytes, str]:
        """Render the page, and return it with its content type."""
        counts = dict.fromkeys((state.value for state in JobState), 0)
        for record in driver.accounting.records.values():
            counts[record.state] += 1
        for state, count in counts.items():
            self._jobs.labels(state).set(count)
        queue = driver.core.queue
        lengths = queue.queue_lengths()
        for view in queue.devices():
            self._queue.labels(view.device).set(lengths[view.device])
            health = driver.launcher.health(view.device)
            self._restarts.labels(view.device).set(health.restarts)
            self._silent.labels(view.device).set(health.alive and not health.answers)
        for host in driver.launcher.hosts():
            self._host_serves.labels(host.name).set(host.serves)
            self._host_received.labels(host.name).set(host.received_bytes)
            self._host_sent.labels(host.name).set(host.sent_bytes)
            self._host_copies.labels(host.name).set(host.second_copies_bytes)
        self._stalled.set(driver.core.engine.stall is not None)
        self._unusual.set(len(driver.accounting.unusual(queue.running_jobs())))
        self._render_queue(driver)
        snapshot = driver.core.accounts.snapshot()
        self._memory.note(snapshot, driver.core.clock.now_s())
        for account in snapshot.devices:
            self._used.labels(account.device).set(account.used_bytes)
            self._limit.labels(account.device).set(account.memory_bytes)
            held_bytes = driver.transfers.reported(account.device).held_bytes
            self._held.labels(account.device).set(held_bytes)
        self._sessions.set(len(driver.registry))
        plans = driver.submissions.plans
        self._plans.labels("hit").set(plans.hits)
        self._plans.labels("resized").set(plans.resized)
        self._plans.labels("miss").set(plans.misses - plans.resized)
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _render_queue(self, driver: Driver) -> None:
        queue, now_s = driver.core.queue, driver.core.clock.now_s()
        accounts = [view for view in queue.accounts(now_s) if view.rank is not None]
        waiting = Counter(queue.contending_accounts())
        for view in accounts:
            self._waiting.labels(view.account).set(waiting[view.account])
            self._share.labels(view.account).set(view.share)
            self._used_share.labels(view.account).set(view.dominant)
        levels = [view.level for view in accounts]
        if any(levels):
            self._jain.set(jain(levels))
        times, error = driver.core.decision_times(), driver.accounting.starts.error
        if times is not None:
            self._decision.labels("0.5").set(times.p50_s)
            self._decision.labels("0.99").set(times.p99_s)
        if error is not None:
            self._estimates.labels("0.5").set(error.median_s)
            self._estimates.labels("0.9").set(error.p90_s)
        self._preemptions.set(queue.preemptions)

    def observe_segment(self, seconds: float) -> None:
        self._segments.observe(seconds)

    def _gauge(self, name: str, text: str, labels: list[str]) -> Gauge:
        return Gauge(name, text, labels, registry=self._registry)
