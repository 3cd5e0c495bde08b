"""Runs one program on one device, op by op, stopping between two ops when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter

import torch

from djinn_lab.numerics import applied
from djinn_lab.protocol.worker import Handed, Resume, RunSegment, encode
from djinn_lab.srg.program import Program, Source, Template, TensorMeta, decode_program
from djinn_lab.worker import parking
from djinn_lab.worker.accelerator.device import fault_of, is_accelerator
from djinn_lab.worker.batched.join_points import Steps, run_alone
from djinn_lab.worker.copying import Copies
from djinn_lab.worker.executor import find_executor
from djinn_lab.worker.handing import hand_over, take_over
from djinn_lab.worker.link import CpuLink, Link
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.outcome import Outcome, RegionLeft, Stop, describe
from djinn_lab.worker.parked import ParkedLayout
from djinn_lab.worker.preparation import Preparation, Preparations
from djinn_lab.worker.program_run import ProgramRun
from djinn_lab.worker.reading import read_program
from djinn_lab.worker.restoring import await_end
from djinn_lab.worker.templates import Call, OpCall
from djinn_lab.worker.tiers import Tiers
from djinn_lab.worker.transfer import load_shared, load_source, store_result
from djinn_lab.worker.values import RestoreFailed, SessionValues

__all__ = ["Interpreter", "Outcome", "Stop"]

CALLS_KEPT_MAX = 50_000


class Interpreter:
    """``results``: where fetched and handed values go, as files. ``native``: run programs by the C++
    extension where it is there, else in Python. ``link``: the way to the host."""

    def __init__(
        self,
        device: torch.device,
        memory_bytes: int,
        results: Path,
        tiers: Tiers | None = None,
        native: bool = True,
        link: Link | None = None,
    ) -> None:
        self.device = device
        self._results = results
        self._calls: dict[bytes, Call] = {}
        self._prepared = Preparations()
        self._executor = find_executor() if native else None
        self.memory = MemoryAccount(memory_bytes, self._executor)
        self.tiers = tiers or Tiers()
        self.sessions: dict[str, SessionValues] = {}
        self.copies = Copies(self.tiers, link or CpuLink(), self.memory, device, self.sessions)
        self.reports = count(1)
        self._between_ops = False

    @contextmanager
    def between_ops(self) -> Iterator[None]:
        """Run whole programs inside, between two ops of another one, which finds the random state as it left
        it. The peak of memory is that of all of them."""
        random_state = torch.default_generator.get_state()
        self._between_ops = True
        try:
            yield
        finally:
            self._between_ops = False
            torch.default_generator.set_state(random_state)

    def run(
        self,
        session: str,
        encoded: bytes,
        blobs: Mapping[str, str],
        should_stop: Callable[[], Stop | None],
        report: Callable[[int, int], None],
        key: bytes | None = None,
        resume: Resume | None = None,
        imports: Sequence[Handed] = (),
        exports: Sequence[int] = (),
        serial: int = 0,
    ) -> Outcome:
        """``report(done, total)`` is called before the first op and after every op, ``should_stop`` before
        every load and op. (Where ``should_stop`` is a :class:`StopSignal`, it is looked at as often, but not
        called, and ``report`` is called some times a second.) Faults come back in the outcome. ``key`` and
        what follows it: as in :class:`~djinn_lab.protocol.worker.RunSegment`."""
        program = self._read(encoded, key, resume)
        return self.run_program(
            program, session, blobs, should_stop, report, key, resume, imports, exports, serial
        )

    def run_segment(
        self,
        message: RunSegment,
        blobs: Mapping[str, str],
        should_stop: Callable[[], Stop | None],
        report: Callable[[int, int], None],
        resume: Resume | None = None,
    ) -> Outcome:
        """Run a segment op by op, as :meth:`run` does; from ``resume``, where that is given."""
        return self.run(
            message.session,
            message.program,
            blobs,
            should_stop,
            report,
            message.key,
            resume or message.resume,
            message.imports,
            message.exports,
            message.serial,
        )

    def run_program(
        self,
        program: Program,
        session: str,
        blobs: Mapping[str, str],
        should_stop: Callable[[], Stop | None],
        report: Callable[[int, int], None],
        key: bytes | None = None,
        resume: Resume | None = None,
        imports: Sequence[Handed] = (),
        exports: Sequence[int] = (),
        serial: int = 0,
    ) -> Outcome:
        """Run a decoded program, as :meth:`run` does."""
        return run_alone(
            self.steps(program, session, blobs, should_stop, report, key, resume, imports, exports, serial)
        )

    def steps(
        self,
        program: Program,
        session: str,
        blobs: Mapping[str, str],
        should_stop: Callable[[], Stop | None],
        report: Callable[[int, int], None],
        key: bytes | None = None,
        resume: Resume | None = None,
        imports: Sequence[Handed] = (),
        exports: Sequence[int] = (),
        serial: int = 0,
    ) -> Steps[Outcome]:
        """Run a decoded program, as :meth:`run` does, and pause before each of its joinable calls."""
        outcome = Outcome(resume.executed if resume is not None else 0, len(program.nodes))
        values = self.values_of(session)
        if not (program.nodes or program.sources or program.fetch or program.rng_state or imports):
            report(0, 0)
            self.release(session, program.release, serial)
            return outcome
        torch.get_num_threads()  # sets BLAS's number in a new thread, which would else compute other bits
        if not self._between_ops:
            self.memory.start_peak()
        run = ProgramRun(self, session, program, values, outcome, key, should_stop, resume, serial)
        try:
            with run.may_offload():
                yield from self._run(run, session, program, blobs, report, resume, imports, exports)
        except RestoreFailed:
            run.undo()
            if not values.running:
                await_end(values)
        except RegionLeft as left:
            outcome.left, outcome.stopped, outcome.rng_state = str(left), "preempted", run.rng_state()
        except Exception as raised:  # noqa: BLE001 - the worker's edge: whatever an op raises is reported
            error = self._device_fault(raised) or raised
            outcome.failure = describe(error, program, outcome.executed, run.running, outcome.missing)
            if outcome.executed or run.running:
                outcome.rng_state = run.rng_state()
        finally:
            run.finish()
        return outcome

    def _device_fault(self, error: Exception) -> torch.AcceleratorError | None:
        """Return what is wrong with the device itself: libraries of an accelerator put it in errors of their
        own."""
        if isinstance(error, torch.AcceleratorError) or not isinstance(error, RuntimeError):
            return None
        return fault_of(self.device) if is_accelerator(self.device) else None

    def _run(
        self,
        run: ProgramRun,
        session: str,
        program: Program,
        blobs: Mapping[str, str],
        report: Callable[[int, int], None],
        resume: Resume | None,
        imports: Sequence[Handed],
        exports: Sequence[int],
    ) -> Steps[None]:
        values, outcome = self.values_of(session), run.outcome
        started = perf_counter()
        values.start_running(session, run.ask_to_stop)
        if resume is not None:
            run.resume()
        if imports:
            run.await_session()
        for handed in imports:
            run.bring_in([one for one in handed.values if one in values.offloaded.values])
            take_over(handed, values, self.memory, self.device, self._results)
        run.load(blobs)
        outcome.load_s = perf_counter() - started
        if outcome.stopped is None:
            run.release_unread(exports)
            with applied(program.settings, self.device):
                yield from run.execute(report)
        outcome.run_s = perf_counter() - started - outcome.load_s - run.interleaved_s
        outcome.rng_state = run.rng_state()
        if outcome.stopped is None:
            run.await_session()
            before = perf_counter()
            outcome.fetched = [
                store_result(value, run.tensor(value), self._results) for value in program.fetch
            ]
            run.bring_in(exports)
            outcome.exported = hand_over(exports, values, self._results)
            outcome.fetch_s = perf_counter() - before

    def _read(self, encoded: bytes, key: bytes | None, resume: Resume | None) -> Program:
        """Read a program. Its nodes stay encoded where the extension has a plan for them."""
        found = self._prepared.find(key)
        if self._executor is None or resume is not None or found is None or not found.node_count:
            return decode_program(encoded)
        return read_program(encoded, found, self._executor)

    def values_of(self, session: str) -> SessionValues:
        with self.tiers.fences.lock:
            found = self.sessions.get(session)
            if found is None:
                found = self.sessions[session] = SessionValues(self.memory, self.tiers)
            return found

    def release(self, session: str, released: Sequence[int], serial: int = 0) -> None:
        """Drop values, wherever the session is."""
        values = self.values_of(session)
        values.release(released)
        values.serial = max(values.serial, serial)

    def close(self, session: str) -> None:
        values = self.sessions.pop(session, None)
        if values is not None:
            values.close()
            self.tiers.release_idle_host()

    def drop_parked(self, session: str) -> None:
        """Drop the parked state of a session that resumes in another process."""
        with self.tiers.fences.lock:
            values = self.sessions.get(session)
            if values is not None and values.state == "parked":
                parking.lose(values, "it went to another device")
                values.drop_copies()
                del self.sessions[session]

    def prepare(self, program: Program, key: bytes | None) -> Preparation:
        """Calls, expectations and last uses; once for programs with equal keys."""
        found = self._prepared.find(key)
        if found is None:
            calls = [self.call(template, program) for template in program.templates]
            found = Preparation.of(program, calls, self._executor)
            self._prepared.keep(key, found)
        return found

    def prepare_calls(self, program: Program, last: Sequence[OpCall], key: bytes) -> None:
        """Prepare a program whose last templates stand for these calls."""
        if self._prepared.find(key) is None:
            named = program.templates[: len(program.templates) - len(last)]
            calls = [*(self.call(template, program) for template in named), *last]
            self._prepared.keep(key, Preparation.of(program, calls, self._executor))

    def call(self, template: Template, program: Program) -> Call:
        fills = program.settings is not None and program.settings.fills
        key = encode(template) + bytes([fills])
        found = self._calls.get(key)
        if found is None:
            if len(self._calls) >= CALLS_KEPT_MAX:
                self._calls.clear()
            found = self._calls[key] = Call(template, self.device, self._executor, fills)
        return found

    def load(self, values: SessionValues, source: Source, meta: TensorMeta, blobs: Mapping[str, str]) -> None:
        """Make a source's value, in place of one of the same id. Blobs are loaded once for all sessions,
        until one writes its own."""
        if values.holds(source.value):
            values.drop(source.value)
        what = f"a tensor of {'x'.join(map(str, meta.shape))} {meta.dtype}"
        if source.blob is None or not meta.numel or meta.span_bytes > meta.nbytes:
            needed = meta.span_bytes
            self.memory.reserve(needed, what)
            try:
                added = values.place(source.value, load_source(source, meta, blobs, self.device))
            except BaseException:
                self.memory.release(needed)
                raise
            self.memory.settle(needed, added)
            return
        layout = ParkedLayout("tensor", meta.dtype, meta.shape, meta.stride)
        blob = Path(blobs[source.blob]).name  # sessions may call equal bytes differently
        weights, lock = self.tiers.weights, self.tiers.fences.lock
        with lock:
            weight = weights.find(blob)
            if weight is not None and weight.nbytes == meta.blob_bytes:
                values.put_shared(source.value, layout, weight)
                return
        self.memory.reserve(meta.blob_bytes, what)
        try:
            handle = load_shared(source, meta, blobs, self.device)
        except BaseException:
            self.memory.release(meta.blob_bytes)
            raise
        with lock:
            weight = weights.find(blob)
            if weight is not None:  # a restore brought it meanwhile
                self.memory.release(meta.blob_bytes)
            else:
                weight = weights.add(blob, handle)
            values.put_shared(source.value, layout, weight)
        self.memory.mark_peak()
