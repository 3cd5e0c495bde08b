"""The pool's one answer to what a program takes: its devices' curves, what runs taught, and how sure that
is."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

from djinn_lab.jobs.cost_drift import CostDrift, FamilySums
from djinn_lab.jobs.run_times import RunTime, RunTimeHistory
from djinn_lab.pool.devices.cost_records import CostRecords
from djinn_lab.pool.devices.estimator_plugin import EstimatorPlugin
from djinn_lab.pool.devices.fleet import DeviceStatus, Fleet
from djinn_lab.protocol.rest.costs import CostView, DeviceCosts
from djinn_lab.protocol.rest.status import PlanCacheUsage
from djinn_lab.protocol.worker import NodeTimes, SegmentDone
from djinn_lab.srg.costs import Work, node_charges
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.program import decode_program
from djinn_lab.srg.program_costs import MeasuredDevice

SAMPLED_OPS_MAX = 5_000
"""Longer programs are not looked at node by node."""
LEARN_PART = 0.02
"""Of the pool's time at most goes into looking at nodes of sampled runs."""
UNMEASURED = DeviceCurves.of_rates(flops_per_s=2e10, memory_bytes_per_s=5e9, op_s=5e-6)
"""Taken for devices that were never measured: a slow core."""


class SampledRun(NamedTuple):
    """``times``: of the nodes."""

    device: str
    program: bytes
    times: NodeTimes


class CostModel:
    """``now_s``: the pool's clock. ``ratios``: of run times over predictions, in an earlier pool.
    ``estimator``: predicts programs that have not run, in place of the curves, where it can. For the event
    loop."""

    def __init__(
        self,
        fleet: Fleet,
        now_s: Callable[[], float],
        ratios: dict[str, tuple[float, ...]] | None = None,
        estimator: EstimatorPlugin | None = None,
    ) -> None:
        self._fleet = fleet
        self._estimator = estimator
        self.history = RunTimeHistory(ratios)
        self._records = CostRecords(now_s)
        self._drifts: dict[str, CostDrift] = defaultdict(CostDrift)
        self._sample: SampledRun | None = None
        self._rests_until_s = 0.0
        fleet.on_measured = self._measured

    # -- predicting ----------------------------------------------------------------------------------------

    def predict(
        self,
        key: bytes | None,
        work: Work,
        device: str | None = None,
        gang: int = 1,
        gang_s: float | None = None,
    ) -> RunTime | None:
        """Predict a program's run on a device, or on the slowest where it has none yet; None: unknown.
        ``gang``: how many devices it runs on at once, ``gang_s``: what that takes by its graph."""
        found = []
        for status in self._candidates(device):
            price = partial(self._graph_s, work, status, gang_s)
            one = self.history.predict(status.kind_name, gang_key(key, gang), price, work.unpriced)
            found += [] if one is None else [one]
        return max(found, key=lambda one: one.seconds, default=None)

    def _graph_s(self, work: Work, status: DeviceStatus, gang_s: float | None) -> float | None:
        """Price a program that has not run there: by the estimator, else by the curves."""
        curves = status.curves
        if gang_s is not None or curves is None:
            return gang_s
        seconds = None
        if self._estimator is not None:
            device = MeasuredDevice(status.plan.kind, status.kind_name, curves)
            seconds = self._estimator.seconds(work, device)
        return work.seconds(curves) if seconds is None else seconds

    def curves(self, device: str | None = None) -> DeviceCurves | None:
        """Return the corrected curves of a device, or of the slowest; None while none is measured."""
        known = [one.curves for one in self._candidates(device) if one.curves is not None]
        return min(known, key=lambda curves: curves.flops_per_s, default=None)

    def _candidates(self, device: str | None) -> Sequence[DeviceStatus]:
        if device is not None:
            return [self._fleet.status(device)]
        return list({status.kind_name: status for status in self._fleet.statuses}.values())

    @property
    def estimator_name(self) -> str:
        """The installed estimator's name, empty for the built-in model alone."""
        return "" if self._estimator is None else self._estimator.name

    # -- learning ------------------------------------------------------------------------------------------

    def ended(
        self,
        device: str,
        job: str,
        key: bytes | None,
        predicted: RunTime | None,
        run_s: float,
        gang: int = 1,
    ) -> None:
        """Record a run of a job's segment that ended well."""
        self.history.ended(self._fleet.status(device).kind_name, gang_key(key, gang), predicted, run_s)
        self._records.compared(device, job, key, predicted, run_s, gang)

    def sample(self, device: str, program: bytes, done: SegmentDone) -> None:
        """Take a run to learn from, if none waits and there is time to. On other devices than CPUs the times
        of nodes are those of their launches, which say nothing."""
        ops = len(done.node_times) // 16
        due = self._sample is None and perf_counter() >= self._rests_until_s
        if due and 0 < ops <= SAMPLED_OPS_MAX and self._fleet.status(device).plan.kind == "cpu":
            self._sample = SampledRun(device, program, NodeTimes(node_times=done.node_times))

    async def learn(self) -> None:
        """Look at the sampled run beside the event loop, so seldom that it stays a small part of the time."""
        sample, self._sample = self._sample, None
        if sample is None:
            return
        started_s = perf_counter()
        status = self._fleet.status(sample.device)
        if status.measured is not None:
            sums = await asyncio.to_thread(_by_family, sample, status.measured.curves)
            self._observe(status, sums)
        ended_s = perf_counter()
        self._rests_until_s = ended_s + (ended_s - started_s) / LEARN_PART

    def _observe(self, status: DeviceStatus, sums: dict[str, FamilySums]) -> None:
        """Correct the families that are off, and have the device measured again where whole runs are."""
        kind, drift = status.kind_name, self._drifts[status.kind_name]
        factors, asked = dict(drift.factors), drift.wants_measurement
        if drift.observed(sums):
            self._fleet.correct(kind, drift.factors)
            self._records.corrected(kind, factors, drift.factors)
        if drift.wants_measurement:
            self._fleet.measure_again(status.plan.device)
            if not asked:
                self._records.asked(kind)

    def _measured(self, kind_name: str) -> None:
        drift = self._drifts[kind_name]
        drift.measured()
        self._records.measured(kind_name, again=drift.measurements > 1)

    def view(self, plan_cache: PlanCacheUsage, details: bool = False) -> CostView:
        """Show what is measured and learned, and how often graphs were known; ``details``: also each curve
        and the newest runs."""
        kinds = {one.kind_name: one.measured for one in self._fleet.statuses if details}
        return CostView(
            unpriced=self._records.unpriced,
            changes=self._records.changes,
            runs=self._records.runs if details else (),
            curves={kind: found.curves for kind, found in kinds.items() if found is not None},
            devices=tuple(self._device_costs(status) for status in self._fleet.statuses),
            runs_spread=self.history.spread("runs"),
            graph_spread=self.history.spread("graph"),
            estimator=None if self._estimator is None else self._estimator.view(),
            plan_cache=plan_cache,
        )

    def _device_costs(self, status: DeviceStatus) -> DeviceCosts:
        drift = self._drifts[status.kind_name]
        curves = status.curves
        return DeviceCosts(
            device=status.plan.device,
            measured=curves is not None,
            measuring=status.measuring,
            flops_per_s=None if curves is None else curves.flops_per_s,
            memory_bytes_per_s=None if curves is None else curves.memory_bytes_per_s,
            op_s=None if curves is None else curves.op_s,
            drift=drift.state,
            measurements=drift.measurements,
            families=drift.families(),
            kind=status.kind_name,
            measured_at=self._records.measured_at(status.kind_name),
            link_bytes_per_s=None if status.seen is None else status.seen.link_bytes_per_s,
        )


def gang_key(key: bytes | None, gang: int) -> bytes | None:
    """A program on several devices is another one."""
    return key if key is None or gang == 1 else key + gang.to_bytes(4, "big")


def _by_family(sample: SampledRun, curves: DeviceCurves) -> dict[str, FamilySums]:
    """Sum what nodes took and what the curves say, by family. A node lasts until the next one starts."""
    charges, _ = node_charges(decode_program(sample.program))
    starts, ends = sample.times.node_start_s, sample.times.node_end_s
    if len(charges) != len(starts):
        return {}
    predicted: defaultdict[str, float] = defaultdict(float)
    measured: defaultdict[str, float] = defaultdict(float)
    for index, (charge, seconds) in enumerate(zip(charges, curves.each(charges), strict=True)):
        until_s = starts[index + 1] if index + 1 < len(starts) else ends[index]
        predicted[charge.family] += seconds
        measured[charge.family] += max(0.0, until_s - starts[index])
    return {family: FamilySums(predicted[family], measured[family]) for family in predicted}
