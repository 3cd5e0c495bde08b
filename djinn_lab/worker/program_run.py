"""One program on its way through: load its sources, run its nodes, free or keep what is left."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from time import perf_counter
from typing import Protocol

import torch

from djinn_lab.errors import DeviceMemoryError, Refused
from djinn_lab.protocol.worker import Resume
from djinn_lab.srg.list_ops import Part, parts_of
from djinn_lab.srg.lost_values import value_lost
from djinn_lab.srg.ops import may_draw
from djinn_lab.srg.program import NodeRecord, Program, Source, Template, TensorMeta
from djinn_lab.worker.accelerator.device import is_accelerator
from djinn_lab.worker.batched.join_points import JoinableCall, JoinPoint, Steps
from djinn_lab.worker.bridge import Bridge
from djinn_lab.worker.copying import Copies
from djinn_lab.worker.executor import ExecutionPlan, NativeRun
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.offloading import Offloading
from djinn_lab.worker.outcome import Outcome, Stop, StopSignal
from djinn_lab.worker.preparation import Made, Preparation, last_uses, products_of_node
from djinn_lab.worker.reading import held_values, missing_values, whole_program
from djinn_lab.worker.restoring import await_end, await_values, await_whole
from djinn_lab.worker.templates import Call, OpCall
from djinn_lab.worker.values import RestoreFailed, SessionValues

NO_MEMORY = (torch.OutOfMemoryError, MemoryError)
"""What an op raises that the system gave no memory."""


class RunOwner(Protocol):
    """The interpreter, as its runs use it."""

    @property
    def device(self) -> torch.device: ...
    @property
    def memory(self) -> MemoryAccount: ...
    @property
    def copies(self) -> Copies: ...
    def prepare(self, program: Program, key: bytes | None) -> Preparation: ...
    def call(self, template: Template, program: Program) -> Call: ...
    def load(
        self, values: SessionValues, source: Source, meta: TensorMeta, blobs: Mapping[str, str]
    ) -> None: ...


class ProgramRun:
    """The state of one program on its way through."""

    def __init__(
        self,
        owner: RunOwner,
        session: str,
        program: Program,
        values: SessionValues,
        outcome: Outcome,
        key: bytes | None,
        should_stop: Callable[[], Stop | None],
        resume: Resume | None,
        serial: int = 0,
    ) -> None:
        self._key = key
        self._serial = serial
        self._resume = resume
        self._should_stop = should_stop
        self._owner = owner
        self._program = program
        self._values = values
        self.outcome = outcome
        self._temporary: set[int] = set()
        self._reserved = 0
        self._paused_s = 0.0
        self.interleaved_s = 0.0
        self.offloading = Offloading(session, values, owner.copies, owner.memory, program)
        self.running = False

    @contextmanager
    def may_offload(self, allowed: bool = True) -> Iterator[None]:
        """Let values give way to others meanwhile, or not."""
        memory = self._owner.memory
        before, memory.offload = memory.offload, self.offloading.free if allowed else None
        try:
            yield
        finally:
            memory.offload = before

    def ask_to_stop(self) -> None:
        """A run that takes no request from outside has ops that notice by themselves."""
        if isinstance(self._should_stop, StopSignal):
            self._should_stop.ask("preempted")

    def bring_in(self, values: Sequence[int]) -> None:
        """Have these on the device, where they are anywhere. Raises DeviceMemoryError."""
        self.offloading.bring_in(len(self._program.nodes), values)

    def tensor(self, value: int) -> torch.Tensor:
        self.bring_in((value,))
        found = self._values.tensors.get(value)
        if found is None:
            raise value_lost(whole_program(self._program), [value], self._values.lost)
        return found

    def _expect_held(self) -> None:
        """Raise for all sources that should be here and are not, before anything is loaded."""
        missing = missing_values(self._program, self._values.tensors)
        missing = [value for value in missing if value not in self._values.offloaded.values]
        if missing:
            if self._begins_at == 0:
                self.outcome.missing = missing
            raise value_lost(whole_program(self._program), missing, self._values.lost)

    @property
    def _begins_at(self) -> int:
        return 0 if self._resume is None else self._resume.executed

    @property
    def _first_rng_state(self) -> bytes | None:
        return self._program.rng_state if self._resume is None else self._resume.rng_state

    def load(self, blobs: Mapping[str, str]) -> None:
        """Load what the client sent along, except what an earlier run has loaded (and perhaps used up)."""
        self._expect_held()
        program, resume = self._program, self._resume
        rng_state = self._first_rng_state
        if rng_state is not None:
            _set_rng_state(rng_state)
        for source in program.sources:
            if source.held:
                continue
            self._temporary.add(source.value)
            if resume is not None and (resume.executed or self._values.holds(source.value)):
                continue
            self.outcome.stopped = self._should_stop()
            if self.outcome.stopped is not None:
                return
            self._owner.load(self._values, source, program.metas[source.meta], blobs)

    def resume(self) -> None:
        """Resume a preempted program: this run frees earlier runs' values, and the values still to be read
        must be here."""
        nodes, done = self._program.nodes, self._begins_at
        if not 0 <= done < max(1, len(nodes)):
            raise AssertionError(f"a program of {len(nodes)} ops cannot resume at op {done}.")
        self._temporary.update(self._made_before())
        if not done:
            return
        to_come: set[int | None] = set()
        for node in nodes[done:]:
            for value in node.inputs:
                if value is None or value in to_come or self._values.holds(value):
                    continue
                raise value_lost(whole_program(self._program), [value], self._values.lost)
            to_come.update(node.outputs)

    def _made_before(self) -> set[int]:
        """By earlier runs."""
        return {
            value
            for node in self._program.nodes[: self._begins_at]
            for value in node.outputs
            if value is not None and value not in node.inputs
        }

    def execute(self, report: Callable[[int, int], None]) -> Steps[None]:
        """By the extension, as long as everything is on the device."""
        preparation = self._owner.prepare(self._program, self._key)
        origin = perf_counter()
        if preparation.plan is not None and self._all_on_device():
            with self.may_offload(False):
                ended = yield from self._execute_natively(preparation, preparation.plan, origin, report)
            if ended:
                return
            self.running = False
        times = array("d")
        times.frombytes(self.outcome.node_times)
        try:
            yield from self._execute_in_python(preparation, origin, report, times)
        finally:
            self.offloading.end()
            self.outcome.node_times = times.tobytes()

    def _all_on_device(self) -> bool:
        """Bring back what the program reads of offloaded values; return whether all of it fits."""
        offloaded = self._values.offloaded.values
        if not offloaded:
            return True
        self.await_session()
        if self.outcome.executed:
            return self.offloading.bring_in_what_fits(list(offloaded))
        sent = [source.value for source in self._program.sources]
        return self.offloading.bring_in_what_fits([*sent, *held_values(self._program)])

    def _execute_in_python(
        self,
        preparation: Preparation,
        origin: float,
        report: Callable[[int, int], None],
        times: array[float],
    ) -> Steps[None]:
        program, outcome = whole_program(self._program), self.outcome
        total = len(program.nodes)
        report(0, total)
        calls, products, frees = preparation.calls, preparation.products, preparation.frees
        if preparation.plan is not None:
            products = [
                products_of_node(node, calls[node.template], preparation.expected) for node in program.nodes
            ]
            frees = last_uses(program)
        self.offloading.expect(program, products, frees)
        values, should_stop, offloading = self._values, self._should_stop, self.offloading
        for index, node in islice(enumerate(program.nodes), outcome.executed, None):
            if values.arriving:
                await_values(values, node.inputs, should_stop)
            self._pause()
            stop = should_stop()
            if stop is not None:
                outcome.stopped = stop
                return
            started = perf_counter() - origin
            self.running = True
            try:
                yield from self._bring_in_and_step(index, node, calls[node.template], *products[index])
            except DeviceMemoryError:
                parts = parts_of(program.templates[node.template], node) if offloading.possible else []
                if not parts:
                    raise
                yield from self._step_in_parts(index, parts, preparation)
            if frees[index]:
                touched = (*node.inputs, *node.outputs)
                for place in frees[index]:
                    dead = touched[place]
                    assert dead is not None
                    values.drop(dead)
            self.running = False
            times.extend((started + self._take_paused_s(), perf_counter() - origin))
            outcome.executed = index + 1
            report(index + 1, total)

    def _bring_in_and_step(
        self, position: int, node: NodeRecord, call: OpCall, needed: int, made: Sequence[Made]
    ) -> Steps[None]:
        self.offloading.bring_in(position, node.inputs)
        self.offloading.bring_in_ahead(position)
        yield from self._step(node, call, needed, made)

    def _step_in_parts(self, position: int, parts: Sequence[Part], preparation: Preparation) -> Steps[None]:
        """One node for one tensor of its lists at a time."""
        self._owner.memory.release(self._reserved)
        self._reserved = 0
        for part in parts:
            call = self._owner.call(part.template, self._program)
            products = products_of_node(part.node, call, preparation.expected)
            yield from self._bring_in_and_step(position, part.node, call, *products)

    def _step(self, node: NodeRecord, call: OpCall, needed: int, made: Sequence[Made]) -> Steps[None]:
        """One node, but for freeing what it was the last to need. A joinable call is its driver's."""
        values, memory = self._values, self._owner.memory
        tensors = values.tensors
        if needed:
            memory.reserve(needed, call.op)
            self._reserved = needed
        if call.writes:
            written = values.begin_write(node.inputs, call.writes)
            try:
                inputs = [tensors[value] for value in node.inputs if value is not None]
                returned = self._called(call, inputs, node, needed)
            finally:
                values.end_write(written, call.resizes)
        else:
            inputs = [tensors[value] for value in node.inputs if value is not None]
            if isinstance(call, JoinableCall):
                paused = perf_counter()
                point = JoinPoint(self.outcome.executed, call, inputs, node.scalars)
                returned, seconds = yield point
                self._paused_s += max(0.0, perf_counter() - paused - seconds)
            else:
                returned = self._called(call, inputs, node, needed)
        if node.dynamic:
            needed = _memory_bytes(returned)
            memory.reserve(needed, call.op)  # known only now
            self._reserved = needed
        added = self._store(node, call, returned, made) if made or node.dynamic else 0
        if needed or added:
            memory.settle(needed, added)
            self._reserved = 0
        if call.appends:
            values.grow(node.inputs[0], node.outputs[0])
        if values.transient is None and is_accelerator(self._owner.device):
            torch.accelerator.synchronize(self._owner.device)  # until then its faults and time are not known

    def _called(
        self, call: OpCall, inputs: Sequence[torch.Tensor | None], node: NodeRecord, needed: int
    ) -> object:
        """Call an op. Where the system refuses it memory, values give way, and it is called once more, unless
        the first call has changed something. Raises DeviceMemoryError where that was no help."""
        try:
            return call(inputs, node.scalars)
        except NO_MEMORY as error:
            if not _is_repeatable(call):
                raise self._owner.memory.refused(call.op) from error
        self._owner.memory.give_way(needed)
        try:
            return call(inputs, node.scalars)
        except NO_MEMORY as error:
            raise self._owner.memory.refused(call.op) from error

    def _take_paused_s(self) -> float:
        """Return the seconds for which the last node waited for other sessions."""
        paused_s, self._paused_s = self._paused_s, 0.0
        return paused_s

    def _execute_natively(
        self,
        preparation: Preparation,
        plan: ExecutionPlan,
        origin: float,
        report: Callable[[int, int], None],
    ) -> Steps[bool]:
        """By the extension, but for the nodes that only Python can run. Return False where the rest needs
        more memory than there is: the extension's tensors must not be offloaded under it."""
        outcome, values = self.outcome, self._values
        bridge = Bridge(values, self._temporary.add, self._asked_to_stop, report)
        counts, stop = self._owner.memory.counts, self._should_stop
        native = bridge.begin(plan, counts, self._program, outcome.executed, origin, stop, self._owner.device)
        values.transient = native
        try:
            report(0, len(self._program.nodes))  # last: a later stop finds the run under way
            while True:
                try:
                    status = native.advance().name
                except DeviceMemoryError:  # before the op, which has still to run
                    return False
                except NO_MEMORY as error:
                    call = preparation.calls[self._program.nodes[native.executed].template]
                    if not _is_repeatable(call):
                        raise self._owner.memory.refused(call.op) from error
                    return False
                outcome.executed = native.executed
                if status == "DONE":
                    return True
                if status == "STOPPED":
                    self._pause()
                    if self._asked_to_stop():
                        return True
                    continue
                if status == "MEMORY":
                    return outcome.stopped is not None
                if not (yield from self._after(status, native, preparation, origin, report)):
                    return outcome.stopped is not None
        finally:
            try:
                native.settle()
            finally:
                outcome.executed = native.executed
                self.running = self.running or native.in_op
                native.flush()
                values.transient = None
                outcome.node_times = native.times

    def _after(
        self,
        status: str,
        native: NativeRun,
        preparation: Preparation,
        origin: float,
        report: Callable[[int, int], None],
    ) -> Steps[bool]:
        """Do what the extension came back for; False when it cannot go on."""
        node = self._program.nodes[native.launched]
        call = preparation.calls[node.template]
        if status == "MISMATCH":
            expected, returned = native.mismatch
            preparation.expected[expected].check(returned, False, call.op)
            raise AssertionError(f"{call.op} returned something else than capture predicted.")
        waits = status == "PYTHON" and self._values.arriving
        if waits:
            report(native.executed, len(self._program.nodes))
            await_values(self._values, node.inputs, self._should_stop)
            if self._asked_to_stop():
                return False
        needed, made = products_of_node(node, call, preparation.expected)
        if needed > self._owner.memory.free_bytes:
            return False
        started = perf_counter() - origin
        self.running = True
        try:
            if node.dynamic:  # the last one: the extension runs nothing after it
                with self.may_offload():
                    yield from self._bring_in_and_step(native.launched, node, call, needed, made)
            else:
                yield from self._step(node, call, needed, made)
        except DeviceMemoryError:
            if node.dynamic:  # it ran: only its result tells what it needs
                raise
            self._owner.memory.release(self._reserved)
            self._reserved = 0
            return False
        self.running = False
        native.ran(started + self._take_paused_s(), perf_counter() - origin)
        if waits:
            report(native.executed, len(self._program.nodes))
        return True

    def _pause(self) -> None:
        """Let others run between two ops, where they wait."""
        signal = self._should_stop
        if isinstance(signal, StopSignal) and signal.raised[0]:
            began_s = perf_counter()
            signal.pause()
            self.interleaved_s += perf_counter() - began_s

    def _asked_to_stop(self) -> bool:
        self.outcome.stopped = self._should_stop()
        return self.outcome.stopped is not None

    def rng_state(self) -> bytes | None:
        """Return the random state after the last op, of a program that draws random numbers."""
        if self._program.rng_state is None:
            return None
        return torch.default_generator.get_state().numpy().tobytes()

    def _store(self, node: NodeRecord, call: OpCall, returned: object, made: Sequence[Made]) -> int:
        """Keep what the op returned, and return the bytes that it takes."""
        items = returned if isinstance(returned, (list, tuple)) else (returned,)
        added = 0
        if node.dynamic:
            for value, item in zip(node.outputs, items, strict=True):
                assert value is not None
                kept = item if item.storage_offset() == 0 else item.clone()
                self.outcome.dynamic_metas.append(
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
            as_it_is = item is None or place in call.own
            added += self._keep(value, item if as_it_is else expected.check(item, fresh, call.op))
        return added

    def _keep(self, value: int, tensor: torch.Tensor | None) -> int:
        self._temporary.add(value)
        return self._values.place(value, tensor)

    def release_unread(self, exports: Sequence[int]) -> None:
        """Free what the client holds no more and no op reads, so that the ops have the memory. All else that
        the program releases is freed at its end."""
        released = self._program.release
        if released:
            sent = (source.value for source in self._program.sources)
            read = {*sent, *held_values(self._program), *exports}
            self._values.release([value for value in released if value not in read])

    def await_session(self) -> None:
        """Return when all of it is here. Raises RestoreFailed."""
        if not await_whole(self._values):
            raise RestoreFailed

    def undo(self) -> None:
        """The session cannot be restored as its segment needs it: this run has done nothing, and the
        segment is to be sent again."""
        outcome, program = self.outcome, self._program
        outcome.undone, outcome.failure, outcome.missing = True, None, []
        outcome.stopped = "cancelled" if outcome.stopped == "cancelled" else "preempted"
        outcome.executed, outcome.rng_state = self._begins_at, self._first_rng_state
        outcome.node_times, outcome.dynamic_metas = b"", []
        made = self._made_before().difference(program.keep)
        outcome.if_given_up = [*made, *program.release]

    def finish(self) -> None:
        """Free what the client does not hold, unless the program resumes later."""
        self._owner.memory.release(self._reserved)
        self.outcome.out_bytes, self.outcome.in_bytes = self.offloading.out_bytes, self.offloading.in_bytes
        self.outcome.ahead_bytes = self.offloading.ahead_bytes
        if not self._values.running:
            return
        if not await_whole(self._values):
            self.undo()
            self._values.stop_running()
            await_end(self._values)
            return
        if self.outcome.stopped != "preempted" or self.outcome.executed > self._begins_at:
            self._values.serial = max(self._values.serial, self._serial)
        kept = self._program.keep
        if self.outcome.stopped == "cancelled" and not self.outcome.executed:
            kept = ()  # perhaps some sources are not here: the client sends all of them again
        keep = set(kept)
        if self.outcome.stopped == "preempted":
            here = (value for value in self._temporary if self._values.holds(value))
            self.outcome.if_given_up = [value for value in here if value not in keep]
            self.outcome.if_given_up += self._program.release
            self._values.stop_running()
            return
        for value in self._temporary:
            if value not in keep:
                self._values.drop(value)
        if not self.outcome.missing:  # else the client sends it again, or releases them by themselves
            self._values.release(self._program.release)
        self._values.end_segment(kept)


def _is_repeatable(call: OpCall) -> bool:
    """Return whether an op that raised has changed nothing."""
    return not (call.writes or may_draw(call.op))


def _set_rng_state(state: bytes) -> None:
    try:
        torch.default_generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    except (RuntimeError, ValueError) as error:
        raise Refused(f"The graph's random state is not one of torch's CPU generator: {error}") from None


def _memory_bytes(returned: object) -> int:
    """Bytes of the memory behind what an op returned."""
    items = returned if isinstance(returned, (list, tuple)) else (returned,)
    return sum(item.untyped_storage().nbytes() for item in items if isinstance(item, torch.Tensor))
