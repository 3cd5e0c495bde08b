"""One captured cell: what ``with session.capture() as cell`` gives, and what ``%%djinn`` does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import perf_counter
from types import TracebackType

from djinn_lab.capture.host.turns import only_cell
from djinn_lab.capture.recorders import Recorder, capturing
from djinn_lab.client.cell_job import CellJob
from djinn_lab.client.executor import PoolExecutor
from djinn_lab.client.profile_terms import scheduler_profile
from djinn_lab.client.report import CellReport
from djinn_lab.errors import UserError
from djinn_lab.jobs import Terms
from djinn_lab.scheduler import SESSION_BOUND, DeviceProfile, ExecutionSchedule, Scheduler
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.merging import merge_programs
from djinn_lab.srg.program import EncodedProgram, Program

RECORDED_TIMEOUT_S = 10.0
"""So long the pool may continue to run what a cell had recorded when it was interrupted."""


class Cell:
    """Use it in a ``with`` statement. Torch ops inside are recorded; at the end what is still reachable
    runs on the pool."""

    def __init__(
        self,
        recorder: Recorder,
        executor: PoolExecutor,
        devices: Callable[[str | None], list[DeviceProfile]],
        closed: Callable[[Cell], None],
        job: CellJob,
        file: str | None,
    ) -> None:
        self._recorder = recorder
        self._executor = executor
        self._devices = devices
        self._closed = closed
        self._file = file
        self._job = job
        self._stack = ExitStack()
        self._nested = False

    def __repr__(self) -> str:
        return f"<captured {self.report.cell}>\n{self.report}"

    @property
    def report(self) -> CellReport:
        return self._job.report

    @property
    def terms(self) -> Terms:
        """Return the terms that the cell asks of the pool's queue."""
        return self._job.terms

    @property
    def worked(self) -> bool:
        """Return whether any torch work was recorded in the cell."""
        return bool(self._job.largest)

    @property
    def graph(self) -> SRG:
        """Return the SRG of the most that was recorded between two cuts. Raises UserError when nothing was
        captured."""
        return SRG.from_program(self._program)

    @property
    def _program(self) -> Program:
        if not self.worked:
            raise UserError("this cell captured no torch work, so it has no graph.")
        return merge_programs([part.program for part in self._job.largest])

    @property
    def schedule(self) -> ExecutionSchedule:
        """Return the schedule of :attr:`graph` on the device it ran on: order, predicted times, memory
        plan. Raises DeviceMemoryError where it does not fit there."""
        profiles = self._devices(self.report.device)
        target = self.terms.target
        bound_by = SESSION_BOUND if target is None else f"the cell asked for {target}"
        if self._job.scheduler is not None:
            return self._job.scheduler.on(profiles, bound_by).schedule_program(self._program)
        asked = scheduler_profile(self.terms)
        scheduler = Scheduler(devices=profiles, profile=asked, bound_by=bound_by)
        return scheduler.schedule_program(self._program)

    def rehearsed(self, programs: Sequence[Program]) -> None:
        """Note the programs that the cell would have sent, for :attr:`graph` and :attr:`schedule`."""
        self._job.largest = tuple(map(EncodedProgram.of, programs))

    def __enter__(self) -> Cell:
        file = self._file or sys._getframe(1).f_code.co_filename
        with ExitStack() as stack:
            stack.enter_context(only_cell(self._job.cell))
            self._nested = self._recorder.capturing
            if not self._nested:
                with self._recorder.lock:
                    self._begin(file, stack)
            self._stack = stack.pop_all()
        return self

    def _begin(self, file: str, stack: ExitStack) -> None:
        executor, recorder, job = self._executor, self._recorder, self._job
        self._forget_lost_pool()
        job.started = job.outside_since = perf_counter()
        executor.cell = job
        recorder.segment.gather(job.sent_whole)
        self._ops = recorder.ops_recorded
        self._plans = recorder.plans_made
        self._moved = executor.bytes_moved()
        stack.enter_context(capturing(recorder, job.cell, file))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._recorder.lock:  # or what another thread fetches would be of a cell that has ended
            self._stack.close()
            if not self._nested:
                self._end(error)

    def _end(self, error: BaseException | None) -> None:
        executor, job = self._executor, self._job
        outcome, message = "done", ""
        try:
            if error is None or isinstance(error, Exception):
                job.final = error is None  # else the job is told that the cell failed
                self._flush(error)
            elif type(error) is KeyboardInterrupt:
                self._run_recorded()
            else:
                self._recorder.segment.stop()
        except BaseException as failure:
            error = failure
            self._recorder.segment.stop()  # an interrupt may have left parts under way
            raise
        finally:
            if error is not None:
                outcome = "failed" if isinstance(error, Exception) else "cancelled"
                message = f"{type(error).__name__}: {error}"
            self._forget_lost_pool()
            self._recorder.segment.gather(False)
            executor.end_cell(outcome, message)
            self._close_report()

    def _flush(self, error: BaseException | None) -> None:
        """Run what is pending. After an error in the cell this is what eager torch would have computed
        before it."""
        recorder = self._recorder
        try:
            recorder.finish("cell end")
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"While finishing the cell's earlier work on the pool: {failure}")

    def _run_recorded(self) -> None:
        """After an interrupt of the cell's own Python, compute what was recorded, as eager torch had computed
        it, unless that takes long or the user stops once more. Raises CellCancelled then."""
        executor = self._executor
        executor.stop_at = perf_counter() + RECORDED_TIMEOUT_S
        try:
            self._recorder.finish("cell end")
        finally:
            executor.stop_at = None

    def _forget_lost_pool(self) -> None:
        """After an upload that found the pool gone: what is used next connects anew, without the values that
        were there."""
        if self._executor.lost:
            self._recorder.segment.stop()
            self._executor.drop_connection()
            self._recorder.segment.lose_pool()

    def _close_report(self) -> None:
        job, recorder = self._job, self._recorder
        now = perf_counter()
        report = job.report
        report.add("capture", now - job.outside_since)
        report.total_s = now - job.started
        report.ops_recorded = recorder.ops_recorded - self._ops
        report.plan_misses = recorder.plans_made - self._plans
        up, down = self._executor.bytes_moved()
        report.bytes_up, report.bytes_down = max(0, up - self._moved[0]), max(0, down - self._moved[1])
        report.plan_hits = max(0, report.ops_recorded - report.plan_misses)
        self._closed(self)
