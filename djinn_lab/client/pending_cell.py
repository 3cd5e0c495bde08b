"""A cell whose code has ended before the pool has computed it.

No thread waits for it. Its answer stays in the connection until something asks: its handle, or the session,
which settles it before it records, sends or fetches anything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import NoReturn, Protocol

from djinn_lab.capture.host.forked import check_process
from djinn_lab.capture.host.interrupts import TICK_S, acquire, locked, take, whole
from djinn_lab.capture.recorders import Recorder
from djinn_lab.client.cell_job import CellJob, described_end
from djinn_lab.client.executor import PoolExecutor
from djinn_lab.errors import CancelFailed
from djinn_lab.protocol.messages import JobUpdate

Outcome = str
"""``DONE``, ``FAILED`` or ``CANCELLED``."""


class Watcher(Protocol):
    """Is told of the waits for a pending cell."""

    def begin_wait(self, update: JobUpdate | None) -> None:
        """Called before each wait, with the pool's last word."""
        ...

    def on_update(self, update: JobUpdate) -> None: ...

    def tick(self) -> None:
        """Called now and then while waiting."""
        ...

    def settled(self, outcome: Outcome, error: BaseException | None) -> None:
        """Called once, when the outcome is known."""
        ...


class Unwatched:
    """A watcher that shows nothing."""

    def begin_wait(self, update: JobUpdate | None) -> None:
        pass

    def on_update(self, update: JobUpdate) -> None:
        pass

    def tick(self) -> None:
        pass

    def settled(self, outcome: Outcome, error: BaseException | None) -> None:
        pass


def _nothing(error: BaseException | None) -> None:
    pass


class PendingCell:
    """A :class:`~djinn_lab.capture.sending.segment.Launched`. ``error``: what the cell ended with, None for
    success. ``update``: the pool's last word. ``close``: completes the cell's report, given the error."""

    def __init__(
        self,
        recorder: Recorder,
        executor: PoolExecutor,
        job: CellJob,
        close: Callable[[BaseException | None], None],
    ) -> None:
        self.job = job
        self.watcher: Watcher = Unwatched()
        self.update: JobUpdate | None = None
        self.error: BaseException | None = None
        self._notes: list[str] = []
        self.is_settled = False
        self._raised = False
        self._waits = False
        self._asked = False
        self._process = os.getpid()
        self._recorder = recorder
        self._executor = executor
        self._close = close

    def leave(self) -> None:
        """The cell's parts are under way, and its code has ended."""
        for flight in self._executor.flights:
            self.job.add_program(flight.recorded.recorded, ends=True)
        self.job.left = True
        self.job.report.job = self.job.identifier
        self._executor.leave_cell()

    def note_end(self) -> None:
        """The cell has ended with its code: nothing of it is under way."""
        self.is_settled = True
        self._close = _nothing  # or the cell, with its result, would be in a cycle of references

    @property
    def outcome(self) -> Outcome | None:
        """Return how it ended, None before."""
        if not self.is_settled:
            return None
        if self.error is None:
            return "DONE"
        return "FAILED" if isinstance(self.error, Exception) else "CANCELLED"

    # ---------------------------------------------------------------- the session's side

    @whole
    def settle(self) -> None:
        """Wait for the cell. Raises its error unless that was raised before."""
        with locked(self._recorder.lock):
            self._settle()
        if self.error is not None and not self._raised:
            self._raise(
                f"This is an error of {self.job.cell}, which was not waited for: it is raised where "
                "the session is used next."
            )

    @whole
    def lose(self) -> None:
        """Note how it ended, now that its pool is gone; that is known already."""
        self._settle()
        self._raised = True

    # ---------------------------------------------------------------- the handle's side

    @whole
    def raise_error(self) -> None:
        """Raise what the cell ended with, if anything; the session does not raise it again."""
        if self.error is not None:
            self._raise()

    def _raise(self, *notes: str) -> NoReturn:
        with locked(self._recorder.lock):
            self.see_error()
        error = self.error
        assert error is not None
        error.__notes__ = [*self._notes, *notes]
        raise error.with_traceback(None)

    def see_error(self) -> None:
        """Note that the user knows how it ended: the session does not raise that any more."""
        self._raised = True
        if self._recorder.segment.launched is self:
            self._recorder.segment.launched = None

    @property
    @whole
    def is_answered(self) -> bool:
        """Return whether a wait would end at once; asks the connection, and waits for nothing."""
        self.look()
        if self._is_elsewhere or not self._recorder.lock.acquire(blocking=False):
            return self.is_settled
        try:
            return self.is_settled or self._executor.is_answered()
        finally:
            self._recorder.lock.release()

    @property
    def _is_elsewhere(self) -> bool:
        """Return whether the connection is not to be asked: all is known, or another process opened it."""
        return self.is_settled or os.getpid() != self._process

    @whole
    def look(self) -> None:
        """Take the pool's latest update, if no other thread waits, which takes it then."""
        if self._is_elsewhere or not self._recorder.lock.acquire(blocking=False):
            return
        try:
            if not self.is_settled and self._executor.cell is not self.job:
                before, self._executor.on_update = self._executor.on_update, self._on_update
                self._executor.take_updates()
                self._executor.on_update = before
        finally:
            self._recorder.lock.release()

    @whole
    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the outcome is known, and return whether it is. An exception that arrives meanwhile
        cancels the cell and is raised."""
        check_process(self._process)
        deadline_s = None if timeout_s is None else perf_counter() + timeout_s
        self._begin_wait()
        try:
            return self._wait_until(deadline_s)
        finally:
            self._waits = False

    def _begin_wait(self) -> None:
        if not self.is_settled and not self._waits:
            self._waits = True
            self.watcher.begin_wait(self.update)

    def _wait_until(self, deadline_s: float | None) -> bool:
        while not self.is_settled:
            left_s = None if deadline_s is None else max(0.0, deadline_s - perf_counter())
            if not self._acquire(left_s):
                return False
            try:
                if not self.is_settled and (deadline_s is None or self._await_answer(deadline_s)):
                    self._settle_unraised()
            finally:
                self._recorder.lock.release()
            if deadline_s is not None and perf_counter() > deadline_s:
                return self.is_settled
        return True

    def _acquire(self, left_s: float | None) -> bool:
        """Acquire the session's lock. What arrives while another thread has it cancels the cell."""
        try:
            return acquire(self._recorder.lock, left_s)
        except BaseException:
            self._executor.ask_to_cancel(self.job.identifier)
            raise

    @whole
    def cancel(self) -> bool:
        """Stop the cell, wait until that is confirmed, and return whether it was stopped. Raises CancelFailed
        when the pool does not confirm."""
        if self.is_answered:
            self.wait(None)
        if self.is_settled:
            return False
        self._asked = True
        self._executor.ask_to_cancel(self.job.identifier)
        self.wait(None)
        with locked(self._recorder.lock):
            self.see_error()
        if isinstance(self.error, CancelFailed):
            self.raise_error()
        return self.outcome == "CANCELLED"

    # ---------------------------------------------------------------- parts

    def _await_answer(self, deadline_s: float) -> bool:
        """Wait a moment with the lock held. What arrives meanwhile cancels the cell."""
        executor = self._executor
        before = executor.on_update, executor.on_tick
        executor.on_update, executor.on_tick = self._on_update, self.watcher.tick
        try:
            stop = take()
            if stop is not None:
                executor.ask_to_cancel(self.job.identifier, stop)
                return True
            left_s = max(0.0, deadline_s - perf_counter())
            return executor.await_answer(min(left_s, TICK_S))
        finally:
            executor.on_update, executor.on_tick = before

    def _settle_unraised(self) -> None:
        """Settle now; the session raises an error later. Raises what stopped the wait."""
        segment, flights = self._recorder.segment, self._executor.flights
        if segment.launched is self:
            segment.launched = None
        self._settle()
        if self.error is not None:
            segment.launched = self
        if self.error is not None and not self._asked and any(flight.stopped for flight in flights):
            self.raise_error()

    def _settle(self) -> None:
        if self.is_settled:
            return
        executor, segment, job = self._executor, self._recorder.segment, self.job
        outer = executor.cell, executor.on_update, executor.on_tick
        began = perf_counter()
        job.answered = executor.is_done()
        self._begin_wait()
        executor.cell, executor.on_update, executor.on_tick = job, self._on_update, self.watcher.tick
        try:
            segment.finish_launched()
        except BaseException as failure:  # noqa: BLE001 - kept for the next use
            self.error = failure.with_traceback(None)
            segment.stop()
        finally:
            self._finish(*outer, began)

    def _finish(
        self,
        cell: CellJob | None,
        on_update: Callable[[JobUpdate], None],
        on_tick: Callable[[], None],
        began: float,
    ) -> None:
        executor, error = self._executor, self.error
        self.is_settled, self._waits = True, False
        message = described_end(error)
        self.job.report.outcome, self.job.report.error = str(self.outcome).lower(), message
        executor.end_cell(self.job.report.outcome, message)
        executor.cell, executor.on_update, executor.on_tick = cell, on_update, on_tick
        self._close(error)
        self.note_end()
        if cell is not None and cell is not self.job:
            waited_s = perf_counter() - began
            cell.report.add("preceding", waited_s)
            cell.outside_since += waited_s
        watcher, self.watcher = self.watcher, Unwatched()
        watcher.settled(str(self.outcome), error)
        self._notes = list(getattr(error, "__notes__", ()))

    def _on_update(self, update: JobUpdate) -> None:
        if update.job == self.job.identifier:
            self.update = update
            self.job.report.note_wait(update)
            if self._waits:
                self.watcher.on_update(update)
