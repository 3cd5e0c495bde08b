"""Runs one program on one device, op by op, stopping between two ops when asked."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NoReturn

import torch

from djinn_lab.errors import DeviceMemoryError, DjinnError, Refused, ValueLost
from djinn_lab.srg.program import NodeRecord, Program, Source, Template, TensorMeta, decode_program
from djinn_lab.worker import parking
from djinn_lab.worker.handing import hand_over, take_over
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.messages import FetchedTensor, Handed, RemoteFailure, Resume, encode
from djinn_lab.worker.parked import Layout
from djinn_lab.worker.preparation import Expected, Preparation, Preparations, last_uses, products_of
from djinn_lab.worker.templates import Call
from djinn_lab.worker.tiers import Tiers
from djinn_lab.worker.transfer import load_shared, load_source, store_result
from djinn_lab.worker.values import SessionValues

CALLS_KEPT_MAX = 50_000

Stop = Literal["cancelled", "preempted"]


@dataclass
class Outcome:
    """``failure`` and ``stopped`` None: every node ran. ``executed``: of all nodes, also those of earlier
    runs of a resumed program; the times are of this run's."""

    executed: int = 0
    ops_total: int = 0
    failure: RemoteFailure | None = None
    stopped: Stop | None = None
    fetched: list[FetchedTensor] = field(default_factory=list)
    exported: tuple[Handed, ...] = ()
    dynamic_metas: list[TensorMeta | None] = field(default_factory=list)
    rng_state: bytes | None = None
    if_given_up: list[int] = field(default_factory=list)
    node_start_s: list[float] = field(default_factory=list)
    node_end_s: list[float] = field(default_factory=list)
    load_s: float = 0.0
    run_s: float = 0.0
    fetch_s: float = 0.0


class Interpreter:
    def __init__(
        self, device: torch.device, memory_bytes: int, directory: Path, tiers: Tiers | None = None
    ) -> None:
        self._device = device
        self._directory = directory
        self._calls: dict[bytes, Call] = {}
        self._prepared = Preparations()
        self.memory = MemoryAccount(memory_bytes)
        self.tiers = tiers or Tiers()
        self.sessions: dict[str, SessionValues] = {}

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
    ) -> Outcome:
        """``report(done, total)`` is called before the first op and after every op, ``should_stop`` before
        every load and op. Faults come back in the outcome. ``key`` and what
        follows it: as in
        :class:`~djinn_lab.worker.messages.RunSegment`."""
        program = decode_program(encoded)
        outcome = Outcome(resume.executed if resume is not None else 0, len(program.nodes))
        values = self.values_of(session)
        if not (program.nodes or program.sources or program.fetch or program.rng_state or imports):
            report(0, 0)
            values.release(program.release)  # wherever the session is
            return outcome
        self.memory.start_peak()
        run = _Run(self, program, values, outcome, key, should_stop)
        try:
            started = perf_counter()
            values.start_running(session)
            if resume is not None:
                run.take_up(resume)
            for handed in imports:
                take_over(handed, values, self.memory, self._device)
            run.load(blobs, resume)
            outcome.load_s = perf_counter() - started
            if outcome.stopped is None:
                run.execute(report)
            outcome.run_s = perf_counter() - started - outcome.load_s
            outcome.rng_state = run.rng_state()
            if outcome.stopped is None:
                before = perf_counter()
                outcome.fetched = [
                    store_result(value, run.tensor(value), self._directory) for value in program.fetch
                ]
                outcome.exported = hand_over(exports, values, self._directory)
                outcome.fetch_s = perf_counter() - before
        except Exception as error:  # noqa: BLE001 - the worker's edge: whatever an op raises is reported
            outcome.failure = _describe(error, program, outcome.executed, run.running)
        finally:
            run.finish()
        return outcome

    def values_of(self, session: str) -> SessionValues:
        with self.tiers.fences.lock:
            found = self.sessions.get(session)
            if found is None:
                found = self.sessions[session] = SessionValues(self.memory, self.tiers)
            return found

    def close(self, session: str) -> None:
        values = self.sessions.pop(session, None)
        if values is not None:
            values.close()

    def drop_parked(self, session: str) -> None:
        """Of a session that is not on the device, and goes on in another process."""
        with self.tiers.fences.lock:
            values = self.sessions.get(session)
            if values is not None and values.state == "parked":
                parking.lose(values, "it went to another device")
                del self.sessions[session]

    def prepare(self, program: Program, key: bytes | None) -> Preparation:
        """Calls, expectations and last uses; once for programs with equal keys."""
        found = self._prepared.find(key)
        if found is None:
            calls = [self._call(template) for template in program.templates]
            expected = [Expected(meta) for meta in program.metas]
            found = Preparation(calls, products_of(program, calls, expected), last_uses(program))
            self._prepared.keep(key, found)
        return found

    def _call(self, template: Template) -> Call:
        key = encode(template)
        found = self._calls.get(key)
        if found is None:
            if len(self._calls) >= CALLS_KEPT_MAX:
                self._calls.clear()
            found = self._calls[key] = Call(template, self._device)
        return found

    def load(self, values: SessionValues, source: Source, meta: TensorMeta, blobs: Mapping[str, str]) -> None:
        """Make a source's value. Blobs are loaded once for all sessions, until one writes its own."""
        what = f"a tensor of {'x'.join(map(str, meta.shape))} {meta.dtype}"
        if source.blob is None or not meta.numel or meta.span_bytes > meta.nbytes:
            self.memory.reserve(meta.span_bytes, what)
            try:
                added = values.place(source.value, load_source(source, meta, blobs, self._device))
            except BaseException:
                self.memory.release(meta.span_bytes)
                raise
            self.memory.settle(meta.span_bytes, added)
            return
        layout = Layout("tensor", meta.dtype, meta.shape, meta.stride)
        weights, lock = self.tiers.weights, self.tiers.fences.lock
        with lock:
            weight = weights.find(source.blob)
            if weight is not None and weight.nbytes == meta.blob_bytes:
                values.put_shared(source.value, layout, weight)
                return
        self.memory.reserve(meta.blob_bytes, what)
        try:
            handle = load_shared(source, meta, blobs, self._device)
        except BaseException:
            self.memory.release(meta.blob_bytes)
            raise
        with lock:
            weight = weights.find(source.blob)
            if weight is not None:  # a restore brought it meanwhile
                self.memory.release(meta.blob_bytes)
            else:
                weight = weights.add(source.blob, handle)
            values.put_shared(source.value, layout, weight)
        self.memory.mark_peak()


class _Run:
    """The state of one program on its way through."""

    def __init__(
        self,
        interpreter: Interpreter,
        program: Program,
        values: SessionValues,
        outcome: Outcome,
        key: bytes | None,
        should_stop: Callable[[], Stop | None],
    ) -> None:
        self._key = key
        self._should_stop = should_stop
        self._interpreter = interpreter
        self._program = program
        self._values = values
        self._outcome = outcome
        self._temporary: set[int] = set()
        self._reserved = 0
        self.running = False

    def tensor(self, value: int) -> torch.Tensor:
        found = self._values.tensors.get(value)
        return found if found is not None else self._raise_lost(value)

    def _raise_lost(self, value: int) -> NoReturn:
        how = self._values.lost or "its process was restarted"
        raise ValueLost(
            f"value {value} is not on this device any more ({how}).",
            "Run the cell that made it again.",
        )

    def load(self, blobs: Mapping[str, str], resume: Resume | None) -> None:
        """What the client sent along, but for what an earlier run has loaded (and used up, perhaps)."""
        program = self._program
        rng_state = program.rng_state if resume is None else resume.rng_state
        if rng_state is not None:
            torch.default_generator.set_state(torch.frombuffer(bytearray(rng_state), dtype=torch.uint8))
        for source in program.sources:
            if source.held:
                self.tensor(source.value)
                continue
            self._temporary.add(source.value)
            if resume is not None and (resume.executed or source.value in self._values.tensors):
                continue
            self._outcome.stopped = self._should_stop()
            if self._outcome.stopped is not None:
                return
            self._interpreter.load(self._values, source, program.metas[source.meta], blobs)

    def take_up(self, resume: Resume) -> None:
        """Earlier runs' values are this run's to free; what is still to be read must be here."""
        nodes, done = self._program.nodes, resume.executed
        if not 0 <= done < max(1, len(nodes)):
            raise AssertionError(f"a program of {len(nodes)} ops cannot go on at op {done}.")
        for node in nodes[:done]:
            made = (value for value in node.outputs if value is not None and value not in node.inputs)
            self._temporary.update(made)
        if not done:
            return
        to_come: set[int | None] = set()
        for node in nodes[done:]:
            for value in node.inputs:
                if value is None or value in to_come or value in self._values.tensors:
                    continue
                self._raise_lost(value)
            to_come.update(node.outputs)

    def execute(self, report: Callable[[int, int], None]) -> None:
        program, outcome = self._program, self._outcome
        total = len(program.nodes)
        calls, products, frees = self._interpreter.prepare(program, self._key)
        report(0, total)
        origin = perf_counter()
        starts, ends = outcome.node_start_s, outcome.node_end_s
        values, memory = self._values, self._interpreter.memory
        tensors, should_stop = values.tensors, self._should_stop
        for index, node in islice(enumerate(program.nodes), outcome.executed, None):
            stop = should_stop()
            if stop is not None:
                outcome.stopped = stop
                return
            starts.append(perf_counter() - origin)
            self.running = True
            call = calls[node.template]
            needed, made = products[index]
            if needed:
                memory.reserve(needed, call.op)
                self._reserved = needed
            if call.writes:
                written = values.begin_write(node.inputs, call.writes)
                try:
                    inputs = [tensors[value] for value in node.inputs if value is not None]
                    returned = call(inputs, node.scalars)
                finally:
                    values.end_write(written, call.resizes)
            else:
                inputs = [tensors[value] for value in node.inputs if value is not None]
                returned = call(inputs, node.scalars)
            added = self._store(node, call, returned, made) if made or node.dynamic else 0
            if needed or added:
                memory.settle(needed, added)
                self._reserved = 0
            if call.appends:
                values.grow(node.inputs[0], node.outputs[0])
            del inputs, returned
            if frees[index]:
                touched = (*node.inputs, *node.outputs)
                for place in frees[index]:
                    dead = touched[place]
                    assert dead is not None
                    values.drop(dead)
            self.running = False
            ends.append(perf_counter() - origin)
            outcome.executed = index + 1
            report(index + 1, total)

    def rng_state(self) -> bytes | None:
        """As the last op left it, of a program that draws random numbers."""
        if self._program.rng_state is None:
            return None
        return torch.default_generator.get_state().numpy().tobytes()

    def _store(
        self, node: NodeRecord, call: Call, returned: Any, made: Sequence[tuple[int, Expected, bool]]
    ) -> int:
        """Keep what the op returned; the bytes that it takes."""
        items = returned if isinstance(returned, (list, tuple)) else (returned,)
        added = 0
        if node.dynamic:
            for value, item in zip(node.outputs, items, strict=True):
                assert value is not None
                kept = item if item.storage_offset() == 0 else item.clone()
                self._outcome.dynamic_metas.append(
                    TensorMeta(str(item.dtype).removeprefix("torch."), tuple(kept.shape), kept.stride())
                )
                added += self._keep(value, kept)
            return added
        for place, expected, fresh in made:
            if place >= len(items):
                break
            item, value = items[place], node.outputs[place]
            assert value is not None
            # some CPU kernels return no workspace where their shape rule says one
            added += self._keep(value, None if item is None else expected.check(item, fresh, call.op))
        return added

    def _keep(self, value: int, tensor: torch.Tensor | None) -> int:
        self._temporary.add(value)
        return self._values.place(value, tensor)

    def finish(self) -> None:
        """Free what the client does not hold, unless the program goes on later."""
        self._interpreter.memory.release(self._reserved)
        if not self._values.running:
            return
        keep = set(self._program.keep)
        if self._outcome.stopped == "preempted":
            here = (value for value in self._temporary if value in self._values.tensors)
            self._outcome.if_given_up = [value for value in here if value not in keep]
            self._outcome.if_given_up += self._program.release
            self._values.stop_running()
            return
        for value in self._temporary:
            if value not in keep:
                self._values.drop(value)
        self._values.release(self._program.release)
        self._values.end_segment(self._program.keep)


def _describe(error: Exception, program: Program, executed: int, running: bool) -> RemoteFailure:
    node = executed if running else None
    op = program.templates[program.nodes[executed].template].op if running else None
    text = str(error.message) if isinstance(error, DjinnError) else str(error)
    out_of_memory = isinstance(error, (DeviceMemoryError, MemoryError, torch.OutOfMemoryError)) or (
        "can't allocate memory" in text
    )
    if out_of_memory:
        family = "memory"
    elif isinstance(error, Refused):
        family = "refused"
    elif isinstance(error, (ValueLost, AssertionError)):
        family = "pool"
    else:
        family = "user" if running else "pool"
    frames = [line.rstrip() for line in traceback.format_tb(error.__traceback__)]
    return RemoteFailure(family, type(error).__name__, text, node, op, frames)
