"""Runs capture's programs on the pool, one segment at a time, and keeps the cell's report.

The job of a cell is created by its first segment. What is fetched outside any cell gets a job of its own,
named ``fetch``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import perf_counter, sleep
from typing import TypeVar

import torch
from msgspec.structs import replace

from djinn_lab.capture.host.interrupts import TICK_S, Stopped, check, later, take, whole
from djinn_lab.capture.sending.backend import Cut, RunResult
from djinn_lab.client.blobs import BlobTransfer
from djinn_lab.client.cell_job import CellJob, Flight, RecordedProgram
from djinn_lab.client.connection import PoolConnection, SubmissionEncoder
from djinn_lab.client.cuts import CutRecord
from djinn_lab.client.moving import Moving
from djinn_lab.client.segment_results import arrived, failure, missing, stopped_with
from djinn_lab.client.upload_progress import UploadProgress
from djinn_lab.client.wait_notice import WaitNotice
from djinn_lab.errors import (
    AuthenticationError,
    CancelFailed,
    DjinnError,
    NotProven,
    PoolError,
    PoolLost,
    PoolNotFound,
    PoolWaits,
    SessionLost,
    VersionMismatch,
)
from djinn_lab.jobs import NO_TERMS
from djinn_lab.protocol.messages import (
    AWAY_S,
    FETCH_CELL,
    RESUME_S,
    SKIPPED,
    CancelJob,
    CloseSession,
    FinishJob,
    JobUpdate,
    ReleaseValues,
    RequestRefused,
    SegmentResult,
    SubmitSegment,
)
from djinn_lab.srg.merging import STREAMED
from djinn_lab.srg.program import EncodedProgram
from djinn_lab.units import format_seconds

Moved = TypeVar("Moved")
CANCEL_TIMEOUT_S = 30.0
"""An answer leaves when it is in the database, and a disk that many programs write to may keep that waiting
for seconds."""
FOLLOW_MAX = 2
"""Segments on their way to the pool, or there, behind the one that runs: while one part of a cell is computed
the next waits beside it, and the one with the cell's last ops may arrive."""
RESUME_PAUSE_MIN_S, RESUME_PAUSE_MAX_S = 0.05, 2.0
"""Between two attempts to connect again; doubled after each."""
SENT_KEPT = 256
"""Messages without an answer that are sent again after a connection broke."""
UPLOADS_IN_VAIN = 3
"""So many attempts in a row that bring nothing to the pool end an upload."""
RESUMED_S = 0.0001
"""Between submit and result, less than this is the way from one to the other; the cell recorded nothing."""


class PoolExecutor:
    """A :class:`~djinn_lab.capture.sending.backend.Backend`. ``open_connection`` is called when there is no
    connection (yet, or any more), and with the id of a session whose
    connection broke. ``priority`` and ``terms``: of what is fetched outside any cell. ``notice``: says why
    a cell waits that nothing else watches."""

    def __init__(
        self,
        open_connection: Callable[[str | None], tuple[PoolConnection, str]],
        priority: str,
        notice: WaitNotice,
    ) -> None:
        self._notice = notice
        self._open = open_connection
        self._moving = Moving(lambda: self.on_tick())
        self._connection: PoolConnection | None = None
        self._blobs: BlobTransfer | None = None
        self._sent = SubmissionEncoder(deltas=False)
        self.priority = priority
        self.terms = NO_TERMS
        self.cell: CellJob | None = None
        self.on_update: Callable[[JobUpdate], None] = notice.on_update
        self.on_tick: Callable[[], None] = notice.tick
        self.stop_at: float | None = None
        """By ``perf_counter``: then, a wait for the pool ends as if the user had stopped it."""
        self.peak_bytes = 0
        """The most that a device had in use during a run, since that was reset."""
        self._flights: deque[Flight] = deque()
        self._lost: PoolLost | None = None
        """An upload ran into it. The dead connection stays until the recorder knows: a new pool must not get
        a program that reads values of the old one."""
        self._waits_for = ""
        """Why the pool, which is down, cannot start again now: for that there is no limit."""
        self._unproven = ""
        """Why what answered last at the pool's address may not be the pool."""
        self._broken_s: float | None = None
        """By ``perf_counter``: since then, attempts to connect again failed."""
        self._sent_lately: deque[ReleaseValues | FinishJob] = deque(maxlen=SENT_KEPT)
        """What no answer confirms. To send it twice does nothing."""

    # ---------------------------------------------------------------- connection

    @property
    def connected(self) -> bool:
        """Return whether there is a connection; none is opened."""
        return self._connection is not None

    @property
    def lost(self) -> bool:
        """Did an upload find the pool gone, of which the recorder does not know yet?"""
        return self._lost is not None

    @property
    def follow_max(self) -> int:
        return FOLLOW_MAX if self._connection is not None and self._connection.holds_followers else 0

    @property
    def connection(self) -> PoolConnection:
        if self._connection is None:
            self._sent_lately.clear()
            self._moving.held.clear()
            self._use(*self._open(None))
            assert self._connection is not None
        return self._connection

    @whole
    def _use(self, connection: PoolConnection, token: str) -> None:
        self._connection = connection
        self._blobs = BlobTransfer(connection, token, self._moving)
        self._sent = SubmissionEncoder(connection.knows_deltas)

    def resume(self, lost: PoolLost, *first: Flight) -> None:
        """After the connection broke, or the pool was started again, open another connection to the same
        session, and send again what the pool may not have got: ``first``, then all later segments. Raises
        PoolLost where that cannot be done, AuthenticationError for a token that is refused, and Stopped where
        the user stops it: the session may be resumed later."""
        broken = self._connection
        if broken is None or isinstance(lost, SessionLost):
            raise lost
        flights = (*first, *self._flights)
        ends, pause_s = perf_counter() + _patience_s(broken), RESUME_PAUSE_MIN_S
        while broken.can_resume and (self._waits_for or perf_counter() < ends):
            try:
                if self._resumed(broken.welcome.session, lost):
                    self._send_again(flights)
                    return
                self._say_broken(flights, ends - perf_counter())
                self._pause(pause_s)
            except PoolLost as again:
                if again is lost:
                    break
            pause_s = min(RESUME_PAUSE_MAX_S, 2 * pause_s)
        if self._unproven:
            raise PoolLost(f"{lost.message} {self._unproven}")
        raise lost

    def _pause(self, seconds: float) -> None:
        """Wait. Raises Stopped with what arrives, or as if the user had stopped it when it is time."""
        ends = perf_counter() + seconds
        while (now := perf_counter()) < ends:
            if self.stop_at is not None and now > self.stop_at:
                raise Stopped(KeyboardInterrupt())
            check()
            sleep(min(TICK_S, ends - now))

    def _resumed(self, session: str, lost: PoolLost) -> bool:
        """Return whether there is a connection to the session again. Raises ``lost`` where the pool does not
        have it any more."""
        self._waits_for = self._unproven = ""
        try:
            connection, token = self._open(session)
        except PoolWaits as waits:
            self._waits_for = waits.message
            return False
        except NotProven as stranger:  # a hotel's login page, or a certificate that was renewed
            self._unproven = f"{stranger.message} {stranger.advice}"
            return False
        except (PoolNotFound, PoolLost, TimeoutError):
            return False
        if not connection.welcome.resumed:
            connection.send(CloseSession())
            connection.close()
            raise lost
        self.drop_connection()
        self._use(connection, token)
        return True

    def _send_again(self, flights: Sequence[Flight]) -> None:
        """The segments go whole; the pool recognises those that it has."""
        for message in self._sent_lately:
            self.connection.send(message)
        for flight in flights:
            if flight.refused is None:
                code = flight.job.code if flight.message.segment == 0 else ""
                whole = replace(flight.message, program=flight.program.data, code=code, again=True)
                self.connection.send(whole)
                flight.lost = None

    def _say_broken(self, flights: Sequence[Flight], left_s: float) -> None:
        self.on_tick()
        job = flights[0].message.job if flights else self.cell.identifier if self.cell is not None else None
        if job is not None:
            left = format_seconds(max(1.0, round(left_s)))
            if self._waits_for:
                reason = f"{self._waits_for} The cell waits for that."
            elif self._unproven:
                reason = f"{self._unproven} The cell waits for the pool, {left} at most."
            else:
                reason = f"the pool does not answer; the cell waits for it to come back, {left} at most"
            self.on_update(JobUpdate(job, "QUEUED", reason))

    @property
    def blobs(self) -> BlobTransfer:
        assert self.connection is not None
        assert self._blobs is not None
        return self._blobs

    def bytes_moved(self) -> tuple[int, int]:
        """(sent, received) on this connection so far, messages and tensors."""
        if self._connection is None or self._blobs is None:
            return 0, 0
        return (
            self._connection.bytes_sent + self._blobs.uploaded_bytes,
            self._connection.bytes_received + self._blobs.downloaded_bytes,
        )

    def drop_connection(self) -> None:
        self._lost = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        blobs, self._blobs = self._blobs, None
        if blobs is not None:
            blobs.close()

    def give_up(self, lost: PoolLost | None = None) -> None:
        """Disconnect; what is under way is lost."""
        lost = lost or self._lost or PoolLost("the session was closed before this was computed.")
        for flight in self._flights:
            flight.lost = flight.lost or lost
        self.drop_connection()

    def close(self) -> None:
        """Free everything on the pool and disconnect; quiet when the pool is gone already."""
        if self._connection is not None:
            with suppress(PoolLost):
                self._connection.send(CloseSession())
        self.give_up()

    # ---------------------------------------------------------------- backend

    def stage(self, data: memoryview) -> str:
        with self._uploading():
            try:
                return self._moved(lambda blobs: blobs.stage(data))
            except PoolLost as lost:
                self._lost = lost
                raise

    @contextmanager
    def _uploading(self) -> Iterator[None]:
        """Count the time inside as the cell's upload, and not as capture's."""
        started = perf_counter()
        yield
        if self.cell is not None:
            elapsed = perf_counter() - started
            self.cell.report.add("upload", elapsed)
            self.cell.outside_since += elapsed

    def _moved(self, move: Callable[[BlobTransfer], Moved]) -> Moved:
        """Upload, over as many connections as it takes. Raises PoolLost where the pool is gone, or one
        attempt after the other brings nothing there."""
        in_vain, arrived = 0, -1
        while True:
            try:
                return move(self.blobs)
            except PoolLost as lost:
                in_vain = 0 if self.uploads.arrived > arrived else in_vain + 1
                arrived = self.uploads.arrived
                if in_vain > UPLOADS_IN_VAIN:
                    raise
                self.resume(lost)

    def _upload_held(self, flight: Flight) -> None:
        """Bring to the pool what a segment reads, before it is sent. What went wrong is noted in it, and
        nothing is held any more."""
        if not self._moving.held or self._lost is not None:
            return
        try:
            with self._uploading():
                self._moved(BlobTransfer.upload_held)
        except PoolLost as lost:
            flight.lost = lost
            self.give_up(lost)
        except Stopped as stopped:
            flight.refused = stopped_with(stopped.error, "stopped while its tensors were uploaded")
        except DjinnError as refused:
            flight.refused = refused
        finally:
            self._moving.held.clear()

    @property
    def uploads(self) -> UploadProgress:
        """How far the upload under way is."""
        return self._moving.uploads

    def release(self, values: Sequence[int]) -> None:
        if self._connection is not None:
            with suppress(PoolLost):  # they are gone with it; the next program finds out
                self._send_unanswered(ReleaseValues(list(values)))

    def _send_unanswered(self, message: ReleaseValues | FinishJob) -> None:
        """Send a message without an answer. Where the connection broke, it is sent with the next segment, if
        the session can be resumed. Raises PoolLost where it cannot."""
        assert self._connection is not None
        self._sent_lately.append(message)
        try:
            self._connection.send(message)
        except PoolLost:
            if not self._connection.can_resume:
                raise

    def submit(self, program: EncodedProgram, cut: Cut) -> None:
        job = self.cell or CellJob(FETCH_CELL, "", self.priority, self.terms)
        if self.cell is None:
            job.final = True
        entered = perf_counter()
        job.report.add("capture", entered - job.outside_since)
        message = SubmitSegment(
            job=job.identifier,
            segment=job.segments,
            cell=job.cell,
            priority=job.priority,
            final=job.final and cut.cause != STREAMED,
            cut=cut.cause,
            cut_line=cut.line,
            program=b"",
            terms=job.terms if job.segments == 0 and job.terms != NO_TERMS else None,
            resends=self.cell is not None,
            follows=bool(self._flights),
            tolerance=job.tolerance,
        )
        flight = Flight(job, RecordedProgram(program, program), cut, message, entered)
        self._upload_held(flight)
        self._flights.append(flight)
        if flight.lost is not None or flight.refused is not None:
            return
        entered = perf_counter()
        first = job.segments == 0
        job.segments += 1
        try:
            if self._lost is not None:
                raise self._lost
            flight.recorded = RecordedProgram.arranged(program, job.scheduler)
            connection = self.connection  # a new one has been sent nothing
            connection.refuse_unknown(message.terms or NO_TERMS)
            data, delta, whole_bytes = self._sent.program(flight.program.data)
            job.report.graph_bytes += whole_bytes
            job.report.graph_bytes_sent += len(data)
            code, number = self._sent.code(job.code if first else "")
            whole = replace(message, program=data, delta=delta, code=code, code_number=number)
            flight.sent = sent = perf_counter()
            job.report.add("prepare", sent - entered)
            connection.send(whole)
            self._sent.arrived()
            self.blobs.unpinned()
        except PoolLost as lost:
            flight.lost = lost
        except DjinnError as refused:  # no pool, a wrong token, another version, a faulty strategy
            flight.refused = refused
            job.segments -= 1
        job.outside_since = flight.sent

    def is_done(self) -> bool:
        flight = self._flights[0]
        if flight.lost is not None or flight.refused is not None or self._connection is None:
            return True
        try:
            waiting = self._connection.peek()
        except PoolLost as lost:
            flight.lost = lost
            return True
        return any(isinstance(message, SegmentResult | RequestRefused) for message in waiting)

    def result(self, cancel: bool = False) -> RunResult:
        flight = self._flights.popleft()
        job = flight.job
        began = perf_counter()
        if began - job.outside_since > RESUMED_S and not job.left:
            job.report.add("capture", began - job.outside_since)
        else:
            began = job.outside_since
        try:
            while True:
                try:
                    return self._answer(flight, began, cancel or flight.stopped)
                except PoolLost as lost:
                    broke = perf_counter()
                    self.resume(lost, flight)
                    away_s = perf_counter() - broke
                    job.report.add("reconnecting", away_s)
                    began += away_s
        except Stopped as stopped:
            return self._not_resumed(
                stopped_with(stopped.error, "stopped while the cell waited for the pool to come back")
            )
        except (AuthenticationError, VersionMismatch) as refused:
            return self._not_resumed(refused)
        except PoolLost as lost:
            self.drop_connection()
            job.finished = True
            for follower in self._flights:
                follower.lost = lost
            return RunResult(0, error=lost, pool_lost=True)
        except CancelFailed as failed:
            for follower in self._flights:
                follower.refused = failed
            return RunResult(0, error=failed, arrived=False)
        finally:
            job.outside_since = perf_counter()
            if flight.received is not None:
                job.report.add("receive", job.outside_since - flight.received)

    def _not_resumed(self, error: BaseException) -> RunResult:
        """The user stopped a cell while the pool was away, or it came back as another version or with another
        token: nothing of the cell is sent again, and what the pool has of it ends once the session is
        resumed."""
        for follower in self._flights:
            follower.refused = error
        return RunResult(0, error=error, arrived=False)

    def _answer(self, flight: Flight, began: float, cancel: bool) -> RunResult:
        if flight.lost is not None:
            raise flight.lost
        if flight.refused is not None:
            return RunResult(0, error=flight.refused, arrived=False)
        if cancel:
            self.connection.send(CancelJob(flight.message.job))
        return self._finish(flight, began, cancel)

    def _finish(self, flight: Flight, began: float, cancelling: bool) -> RunResult:
        job, program, blobs, report = flight.job, flight.program, self.blobs, flight.job.report
        result = self._wait(self.connection, flight, cancelling)
        if result.outcome == SKIPPED:
            job.segments -= 1  # the next one has its number
            skipped = PoolError("the part of the cell before this one failed.")
            stop = None if flight.stop is None else stopped_with(flight.stop, "stopped on the pool")
            return RunResult(0, error=skipped, arrived=False, stop=stop)
        if flight.stop is None and (cancelling or flight.stopped):
            too_late = job.left and result.outcome == "done"
            flight.stop = None if too_late else KeyboardInterrupt()
        flight.received = received = perf_counter()
        job.add_wait(result, flight.sent, began, received)
        tensors: list[torch.Tensor] = []
        try:
            tensors = blobs.read(result.fetched)
        except Stopped as stopped:
            flight.note_stop(stopped.error)
        job.add_program(flight.recorded.recorded, ends=flight.cut.cause != STREAMED)
        report.job = job.identifier
        report.add_result(result)
        self.peak_bytes = max(self.peak_bytes, result.peak_bytes)
        if not missing(result):  # else it is sent again
            report.ops_sent += program.nodes
        if result.rng_state is not None:
            self._sent.saw_state(result.rng_state)
        elapsed = perf_counter() - flight.sent - job.unasked_s
        cut = flight.cut
        report.cuts.append(
            CutRecord(cut.cause, cut.line, program.nodes, elapsed, result.stages.get("run", 0.0))
        )
        ended = flight.message.final and not (flight.message.resends and missing(result))
        job.finished = job.finished or ended or result.outcome == "cancelled"
        return self._conclude(result, flight, tensors)

    def _conclude(
        self,
        result: SegmentResult,
        flight: Flight,
        tensors: list[torch.Tensor],
    ) -> RunResult:
        recorded = flight.recorded
        ahead = recorded.ahead(result.executed)
        if ahead:
            self.release(ahead)
        report = flight.job.report
        to_come = sum(one.program.nodes for one in self._flights if one.job is flight.job)
        ran = report.ops_run, report.ops_sent + to_come
        error = failure(result, recorded.sent, flight.job.file, flight.stop, ran)
        return RunResult(
            recorded.executed(result.executed),
            tensors,
            result.dynamic_metas,
            result.rng_state,
            error,
            arrived=arrived(result),
            run_s=result.stages.get("run", 0.0),
            missing=() if flight.stop is not None else missing(result),
            stop=None if flight.stop is None else error,
        )

    def _wait(self, connection: PoolConnection, flight: Flight, cancelling: bool) -> SegmentResult:
        """Return the result of a segment. What arrives while waiting is noted in the flight, and the segment
        is then cancelled; while one is cancelled, what arrives is raised later."""
        result = None
        if not cancelling:
            result = self._receive_result(connection, flight)
        if result is None and flight.stop is not None:
            connection.send(CancelJob(flight.message.job))
        if result is None:
            result = self._receive_cancelled(connection, flight)
            if flight.stop is not None and not cancelling:
                flight.stop = later(flight.stop, take())
        return result

    def _receive_result(self, connection: PoolConnection, flight: Flight) -> SegmentResult | None:
        """Return the result of a segment, None where the user stops it before."""
        while True:
            stop = take()
            if stop is None and self.stop_at is not None and perf_counter() > self.stop_at:
                stop = KeyboardInterrupt()
            if stop is not None:
                flight.note_stop(stop)
                return None
            result = self._receive(connection, flight)
            if result is not None:
                return result

    def _receive_cancelled(self, connection: PoolConnection, flight: Flight) -> SegmentResult:
        deadline = perf_counter() + CANCEL_TIMEOUT_S
        while perf_counter() < deadline:
            result = self._receive(connection, flight)
            if result is not None:
                return result
        job = flight.message.job[:8]
        raise CancelFailed(
            f"the pool did not confirm within {CANCEL_TIMEOUT_S:.0f} s that job {job} was stopped.",
            f"See `djinn-lab jobs`, and cancel it with `djinn-lab cancel {job}`.",
        )

    def _receive(self, connection: PoolConnection, flight: Flight) -> SegmentResult | None:
        """Take a message, or wait a moment for one; return it where it is the segment's result."""
        submit = flight.message
        try:
            message = connection.receive(TICK_S)
        except TimeoutError:
            self.on_tick()
            return None
        if isinstance(message, SegmentResult):
            if (message.job, message.segment) == (submit.job, submit.segment):
                return message
        elif isinstance(message, JobUpdate):
            # that the pool cannot answer is said with the first answer in line, of whichever job
            if message.job == submit.job or message.state == "QUEUED":
                flight.job.report.note_wait(message)
                self.on_update(message)
        elif isinstance(message, RequestRefused):
            raise PoolLost(f"the pool closed the session: {message.message}", "Run the cell again.")
        return None

    # ---------------------------------------------------------------- cells

    @property
    def flights(self) -> Sequence[Flight]:
        """Return the segments without an answer, oldest first."""
        return tuple(self._flights)

    def take_updates(self) -> None:
        """Pass on the updates that have arrived; waits for nothing."""
        if self._connection is not None:
            for update in self._connection.take_updates():
                self.on_update(update)

    def await_answer(self, timeout_s: float) -> bool:
        """Wait for the oldest segment's answer, and return whether it is here, or known to be lost."""
        if not self.is_done():
            assert self._connection is not None
            try:
                self._connection.await_message(timeout_s)
            except PoolLost as lost:
                self._flights[0].lost = lost
            self.take_updates()
            self.on_tick()
        return self.is_answered()

    def is_answered(self) -> bool:
        """Return whether the oldest segment's answer is here, or it is known to be lost. Where the connection
        broke, one attempt is made to open another one."""
        if not self.is_done():
            return False
        lost, broken = self._flights[0].lost, self._connection
        if lost is None or broken is None or not broken.can_resume or isinstance(lost, SessionLost):
            return True
        now_s = perf_counter()
        self._broken_s = self._broken_s or now_s
        try:
            if self._resumed(broken.welcome.session, lost):
                self._send_again(self.flights)
                self._broken_s = None
                return False
        except PoolLost:
            return True
        return now_s > self._broken_s + _patience_s(broken)

    def ask_to_cancel(self, job: str, stop: BaseException | None = None) -> None:
        """Ask the pool to stop a job; any thread may. Where the pool cannot be reached, the next wait for the
        job asks again. ``stop``: what arrived, and is what the job's cell ends with."""
        for flight in self.flights:
            if flight.message.job == job:
                flight.stopped, flight.stop = True, flight.stop or stop
        if self._connection is not None:
            with suppress(PoolLost):
                self._connection.send(CancelJob(job))

    def leave_cell(self) -> None:
        """The cell's code has ended, and its segments are under way."""
        self.cell = None
        self.on_update, self.on_tick = self._notice.on_update, self._notice.tick

    def end_cell(self, outcome: str, message: str = "") -> None:
        """Notify the pool that no more segments come, unless the last segment said so."""
        job = self.cell
        self.leave_cell()
        if job is None or job.segments == 0 or job.finished or self._connection is None:
            return
        try:
            self._send_unanswered(FinishJob(job.identifier, outcome, message[:500]))
        except PoolLost:
            self.drop_connection()


def _patience_s(broken: PoolConnection) -> float:
    """Return for how many seconds to try to connect again."""
    return RESUME_S if broken.same_host else AWAY_S
