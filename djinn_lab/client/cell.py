"""One captured cell: what ``with session.capture() as cell`` gives, and what ``%%djinn`` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import perf_counter
from types import TracebackType
from typing import TypeGuard

import torch

from djinn_lab.capture.host.interrupts import entering, file_of_caller, locked, whole
from djinn_lab.capture.host.turns import only_cell
from djinn_lab.capture.recorders import Recorder, capturing
from djinn_lab.client.cell_job import CellJob, described_end
from djinn_lab.client.executor import PoolExecutor
from djinn_lab.client.handle import CellHandle
from djinn_lab.client.pending_cell import PendingCell
from djinn_lab.client.profile_terms import scheduler_profile
from djinn_lab.client.report import CellReport
from djinn_lab.errors import CellCancelled, DeviceMemoryError, PoolError, RemoteError, UserError
from djinn_lab.jobs import Terms
from djinn_lab.scheduler import SESSION_BOUND, DeviceProfile, ExecutionSchedule, Scheduler
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.merging import merge_programs
from djinn_lab.srg.program import EncodedProgram, Program

RECORDED_TIMEOUT_S = 10.0
"""So long the pool may continue to run what a cell had recorded when it was interrupted."""


class Cell:
    """Use it in a ``with`` statement. Torch ops inside are recorded; at the end what is still reachable
    runs on the pool. ``result``: what its handle is to return, in a cell that does not wait."""

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
        self._pending: PendingCell | None = None
        self._stream_before: torch.Tensor | None = None
        self._stream_after: torch.Tensor | None = None
        self.planned: ExecutionSchedule | None = None
        """Of a cell that is only rehearsed."""
        self.result: object = None

    def __repr__(self) -> str:
        return f"<captured {self.report.cell}>\n{self.report}"

    @property
    def report(self) -> CellReport:
        return self._job.report

    @property
    def handle(self) -> CellHandle:
        """Return the handle of a cell that does not wait, once its code has ended. Raises UserError for
        another one, and before."""
        if self._pending is None:
            raise UserError(
                f"{self._job.cell} has no handle: it waits for the pool, or its code has not ended well.",
                "Capture it with wait=False, outside of other cells, and ask after the with statement.",
            )
        return CellHandle(self, self._pending)

    def wait(self) -> None:
        """Wait for a cell that returned before the pool had computed it. Raises nothing of what it ended
        with."""
        if self._pending is not None:
            self._pending.wait(None)

    @property
    def waits(self) -> bool:
        """Return whether the cell waits for the pool at its end."""
        return self._job.waits

    @property
    def has_handle(self) -> bool:
        """Return whether the cell was sent without waiting for it."""
        return self._pending is not None

    @property
    def code(self) -> str:
        """Return the cell's source, where it was given."""
        return self._job.code

    @property
    def terms(self) -> Terms:
        """Return the terms that the cell asks of the pool's queue."""
        return self._job.terms

    @property
    def worked(self) -> bool:
        """Return whether any torch work of the cell ran."""
        return bool(self._job.largest)

    @property
    def recorded(self) -> bool:
        """Return whether any torch work was recorded in the cell, which has ended."""
        return self.worked or self.report.ops_recorded > 0

    def has_not_run(self, error: BaseException | None) -> TypeGuard[BaseException]:
        """Return whether the pool ran nothing of the cell, which ended with ``error``: it was refused, or
        stopped while it waited."""
        sent = self._job.segments > 0 or isinstance(error, PoolError)
        return error is not None and sent and self.report.ops_recorded > 0 and not self.report.ops_run

    @property
    def graph(self) -> SRG:
        """Return the SRG of the most that was recorded between two cuts. Raises UserError when nothing was
        captured."""
        return SRG.from_program(self._program)

    @property
    def _program(self) -> Program:
        if not self.recorded:
            raise UserError("this cell captured no torch work, so it has no graph.")
        if not self.worked:
            raise UserError("no part of this cell ran, so it has no graph.")
        return merge_programs([part.program for part in self._job.largest])

    @property
    def schedule(self) -> ExecutionSchedule:
        """Return the schedule of :attr:`graph` on the device it ran on: order, predicted times, memory
        plan; of a cell that was only rehearsed what was planned then. Raises DeviceMemoryError where it does
        not fit there."""
        if self.planned is not None:
            return self.planned
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
        for number, program in enumerate(programs, start=1):
            self._job.add_program(EncodedProgram.of(program), ends=number == len(programs))

    @entering
    def __enter__(self) -> Cell:
        file = self._file or file_of_caller()
        with ExitStack() as stack:
            stack.enter_context(only_cell(self._job.cell))
            self._nested = self._recorder.capturing
            if not self._nested:
                with locked(self._recorder.lock):
                    self._begin(file, stack)
            self._stack = stack.pop_all()
        return self

    def _begin(self, file: str, stack: ExitStack) -> None:
        executor, recorder, job = self._executor, self._recorder, self._job
        self._forget_lost_pool()
        job.started = job.outside_since = perf_counter()
        executor.cell, job.file = job, file
        recorder.segment.gather(job.sent_whole)
        if recorder.segment.launched is None:  # else the pool has the stream
            self._stream_before = torch.default_generator.get_state()
        self._ops = recorder.ops_recorded
        self._plans = recorder.plans_made
        self._moved = executor.bytes_moved()
        stack.enter_context(capturing(recorder, job.cell, file))
        if recorder.segment.launched is None:
            self._forget_former()

    @whole
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with locked(self._recorder.lock):  # or what another thread fetches would be of a cell that has ended
            self._stack.close()
            if not self._nested:
                self._end(error)

    def _end(self, error: BaseException | None) -> None:
        executor, job = self._executor, self._job
        outcome, message = "done", ""
        self._stream_after = torch.default_generator.get_state()
        if self._recorder.segment.launched is None:
            self._recorder.placement.writes.leave()
            self._recorder.former.leave()
        pending = PendingCell(self._recorder, executor, job, self._close_left)
        try:
            if error is None and not job.waits and self._launch(pending):
                return
            if error is None or isinstance(error, Exception):
                job.final = error is None  # else the job is told that the cell failed
                self._flush(error)
            else:
                self._run_recorded(error)
        except BaseException as failure:
            error = failure
            if self._recorder.segment.launched is pending:
                self._recorder.segment.launched = None
            self._recorder.segment.stop()  # an interrupt may have left parts under way
            raise
        finally:
            message = described_end(error)
            if error is not None:
                outcome = "failed" if isinstance(error, Exception) else "cancelled"
            job.report.outcome, job.report.error = outcome, message
            self._forget_lost_pool()
            self._recorder.segment.gather(False)
            if self._recorder.segment.launched is pending:
                job.report.outcome = "pending"
                pending.leave()
            else:
                pending.note_end()
                executor.end_cell(outcome, message)
            self._count_ops()
            self._take_back(error)
            self._close_report()
            if not job.waits and error is None:
                self._pending = pending

    def _launch(self, pending: PendingCell) -> bool:
        """Send what is pending, and return whether that is under way; without waiting, unless plain tensors
        were written, or the cell is longer than can be sent at once."""
        segment = self._recorder.segment
        if segment.launched is not None:
            return False  # nothing was recorded: the first op would have settled it
        self._job.final = True
        if not self._recorder.launch("cell end", pending):
            return False
        if any(flight.refused for flight in self._executor.flights):
            segment.launched = None
            pending.lose()
            pending.raise_error()
        return True

    def _flush(self, error: BaseException | None) -> None:
        """Run what is pending. After an error in the cell this is what eager torch would have computed
        before it."""
        recorder = self._recorder
        if recorder.segment.launched is not None:
            return  # an earlier cell is pending, so in this one nothing was recorded
        try:
            recorder.finish("cell end")
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"While finishing the cell's earlier work on the pool: {failure}")
            error.args = tuple(self._as_shown(argument) for argument in error.args)

    def _as_shown(self, argument: object) -> object:
        """Return an argument of an exception; of a tensor without a value, whose text would raise another
        error in place of this one, what it is."""
        reason = self._recorder.why_lost(argument) if isinstance(argument, torch.Tensor) else None
        if reason is None:
            return argument
        assert isinstance(argument, torch.Tensor)
        return f"a tensor of shape {tuple(argument.shape)}, {argument.dtype}; {reason}"

    def _run_recorded(self, error: BaseException) -> None:
        """After an interrupt of the cell's own Python, or what else is no Exception, compute what was
        recorded, as eager torch had computed it, unless that takes long or the user stops once more. Raises
        CellCancelled then, in place of an interrupt: anything else leaves the cell as itself."""
        executor = self._executor
        if self._recorder.segment.launched is not None:
            return  # an earlier cell is pending, so in this one nothing was recorded
        executor.stop_at = perf_counter() + RECORDED_TIMEOUT_S
        try:
            self._recorder.finish("cell end")
        except CellCancelled:
            if type(error) is KeyboardInterrupt:
                raise
            self._recorder.segment.stop()
        finally:
            executor.stop_at = None

    def _forget_lost_pool(self) -> None:
        """After an upload that found the pool gone: what is used next connects anew, without the values that
        were there."""
        if self._executor.lost:
            self._recorder.segment.stop()
            self._executor.give_up()
            self._recorder.segment.lose_pool()

    def _count_ops(self) -> None:
        report, recorder = self._job.report, self._recorder
        report.ops_recorded = recorder.ops_recorded - self._ops
        report.plan_misses = recorder.plans_made - self._plans
        report.plan_hits = max(0, report.ops_recorded - report.plan_misses)

    def _take_back(self, error: BaseException | None) -> None:
        """After a cell of which nothing ran: let random numbers continue where they were before it, as its
        seeds and draws are part of that, and put back what its ops wrote on the host; unless they were used,
        or written, since. An op that failed leaves both as it does in plain torch."""
        failed = isinstance(error, RemoteError) and not isinstance(error, DeviceMemoryError)
        if self.has_not_run(error) and not failed:
            self._recorder.former.put_back()
            self._recorder.placement.writes.take_back()
            self._take_back_draws()
        if self._recorder.segment.launched is None:
            self._forget_former()

    def _take_back_draws(self) -> None:
        before, after = self._stream_before, self._stream_after
        if before is None or after is None:
            return
        if torch.equal(after, torch.default_generator.get_state()):
            torch.default_generator.set_state(before)

    def _forget_former(self) -> None:
        """Keep from now on what the next cell changes, which may be recorded already."""
        self._recorder.placement.writes.begin()
        self._recorder.former.forget()

    def _close_left(self, error: BaseException | None) -> None:
        """Complete a cell that was left, now that its outcome is known."""
        self._take_back(error)
        self._close_report()

    def _close_report(self) -> None:
        """Complete the report; once more after a wait for a cell that was left."""
        job = self._job
        now = perf_counter()
        report = job.report
        up, down = self._executor.bytes_moved()
        report.bytes_up += max(0, up - self._moved[0])
        report.bytes_down += max(0, down - self._moved[1])
        self._moved = up, down
        if report.outcome != "pending":  # else its last part counts from when it was sent
            report.add("capture", now - job.outside_since)
            job.outside_since = now
        report.total_s = now - job.started - job.unasked_s
        if not job.left or report.outcome == "pending":
            self._closed(self)
