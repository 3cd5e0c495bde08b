"""Run segments of several sessions in lockstep, within their tolerances.

Every member is a run of its own, as the interpreter does it: it loads, computes, reserves and frees for its
session alone, and fails or stops alone. It pauses before each node that may be joined. Members that pause
before the same node, with the same weight in memory, get their results from one call; the others, from their
own."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from djinn_lab.protocol.worker import RunSegment
from djinn_lab.srg.program import Program, decode_program
from djinn_lab.worker.batched.join_points import JoinableCall, JoinPoint, Returned, Steps
from djinn_lab.worker.batched.joinable import WEIGHT_ELEMENTS_MIN, joinable_nodes, with_joinable
from djinn_lab.worker.batched.joining import identity, join
from djinn_lab.worker.compiled.distance import distance
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.outcome import Outcome, Stop

STRUCTURES_MAX = 256
"""Of so many structures is remembered what may be joined; those that ran longest ago are forgotten."""


@dataclass(frozen=True)
class Joining:
    """What is known of a structure. ``nodes``: those that may be joined. ``differences``: by node, how far
    joined results were from those of the members alone when it was joined first."""

    nodes: tuple[int, ...]
    differences: dict[int, float]


@dataclass(frozen=True)
class Given:
    """One member's segment. ``blobs``, ``should_stop``, ``report``: as for
    :meth:`~djinn_lab.worker.interpreter.Interpreter.run`."""

    message: RunSegment
    blobs: Mapping[str, str]
    should_stop: Callable[[], Stop | None]
    report: Callable[[int, int], None]


class Member:
    """A run in lockstep with others. ``point``: where it pauses. ``outcome``: once it has ended.
    ``beside``: the most other sessions with which an op ran as one."""

    def __init__(self, number: int, steps: Steps[Outcome], draws: bool, memory: MemoryAccount) -> None:
        self.number = number
        self.point: JoinPoint | None = None
        self.outcome: Outcome | None = None
        self.beside = 0
        self._steps = steps
        self._memory = memory
        self._offload = memory.offload
        self._draws = draws
        self._rng_state: torch.Tensor | None = None
        self._ran_s = 0.0

    def begin(self) -> None:
        """Run to the first pause, or to the end."""
        self._resume(lambda: next(self._steps))

    def answer(self, result: object, seconds: float) -> None:
        """Run on to the next pause with the result of an op that took this member so many seconds."""
        self._ran_s += seconds
        self._resume(lambda: self._steps.send(Returned(result, seconds)))

    def fail(self, error: Exception) -> None:
        """Run on with an op that raised."""
        self._resume(lambda: self._steps.throw(error))

    def alone(self) -> tuple[object, float]:
        """Return the result of the op for this member's own inputs, and its seconds."""
        assert self.point is not None
        began_s = perf_counter()
        return self.point.alone(), perf_counter() - began_s

    def _resume(self, run_on: Callable[[], JoinPoint]) -> None:
        """Resume the run with the random state, and what may be offloaded, as it left them."""
        memory, generator = self._memory, torch.default_generator
        others_offload, memory.offload = memory.offload, self._offload
        if self._rng_state is not None:
            generator.set_state(self._rng_state)
        began_s = perf_counter()
        try:
            self.point = run_on()
        except StopIteration as end:
            self.point, self.outcome = None, end.value
        self._ran_s += perf_counter() - began_s
        if self._draws:
            self._rng_state = generator.get_state()
        self._offload, memory.offload = memory.offload, others_offload
        if self.outcome is not None:
            outcome = self.outcome
            outcome.run_s = max(0.0, self._ran_s - outcome.load_s - outcome.fetch_s)
            outcome.batched_with = self.beside


class Batches:
    """``interpreter``: runs the members. ``elements_min``: of a weight that is worth joining for."""

    def __init__(self, interpreter: Interpreter, elements_min: int = WEIGHT_ELEMENTS_MIN) -> None:
        self._interpreter = interpreter
        self._elements_min = elements_min
        self._known: OrderedDict[bytes, Joining] = OrderedDict()

    def run(self, structure: bytes, segments: Sequence[Given]) -> Iterator[tuple[int, Outcome]]:
        """Run segments of one structure; yield the place of each, with its outcome, as soon as it ends."""
        tolerance = min((given.message.tolerance for given in segments), default=0.0)
        programs = [decode_program(given.message.program) for given in segments]
        joining = self._joining(structure, programs[0])
        members = [
            self._member(number, given, program, joining)
            for number, (given, program) in enumerate(zip(segments, programs, strict=True))
        ]
        paused = []
        for member in members:
            member.begin()
            paused.append(member)
        while True:
            for member in paused:
                if member.outcome is not None:
                    yield member.number, member.outcome
            paused = [member for member in paused if member.outcome is None]
            if not paused:
                return
            self._step(paused, joining, tolerance)

    def _joining(self, structure: bytes, program: Program) -> Joining:
        found = self._known.get(structure)
        if found is None:
            found = self._known[structure] = Joining(joinable_nodes(program, self._elements_min), {})
        self._known.move_to_end(structure)
        while len(self._known) > STRUCTURES_MAX:
            self._known.popitem(last=False)
        return found

    def _member(self, number: int, given: Given, program: Program, joining: Joining) -> Member:
        """Make a member's run. One that cannot pause runs to its end when it begins: a resumed one, a gang's
        part, and one with numeric settings, which are the process's."""
        message, interpreter, key = given.message, self._interpreter, given.message.key
        whole = message.resume is None and not message.imports and not message.exports
        if key is not None and whole and program.settings is None and joining.nodes:
            program, added = with_joinable(program, joining.nodes)
            calls = [JoinableCall(interpreter.call(template, program)) for template in added]
            key += b" joinable"
            interpreter.prepare_calls(program, calls, key)
        steps = interpreter.steps(
            program,
            message.session,
            given.blobs,
            given.should_stop,
            given.report,
            key,
            message.resume,
            message.imports,
            message.exports,
            message.serial,
        )
        return Member(number, steps, program.rng_state is not None, interpreter.memory)

    def _step(self, paused: Sequence[Member], joining: Joining, tolerance: float) -> None:
        """Answer the members that pause before the earliest node."""
        first = min(member.point.node for member in paused if member.point is not None)
        groups: defaultdict[Hashable, list[Member]] = defaultdict(list)
        for member in paused:
            if member.point is not None and member.point.node == first:
                groups[identity(member.point)].append(member)
        for group in groups.values():
            if len(group) == 1 or not self._join(first, group, joining, tolerance):
                for member in group:
                    _answer_alone(member)

    def _join(self, node: int, group: Sequence[Member], joining: Joining, tolerance: float) -> bool:
        """Answer all members of a group by one call; False, with nothing done, where each has to run
        alone."""
        difference = joining.differences.get(node)
        if difference is not None and difference > tolerance:
            return False
        points = [member.point for member in group if member.point is not None]
        began_s = perf_counter()
        try:
            results = join(points, self._interpreter.memory)
        except Exception:  # noqa: BLE001 - alone it is found out whose inputs raise, and reported there
            return False
        if results is None:
            return False
        seconds = (perf_counter() - began_s) / len(group)
        if difference is None:
            difference = joining.differences[node] = self._compared(points, results)
            if difference > tolerance:
                return False
        for member, result in zip(group, results, strict=True):
            member.beside = max(member.beside, len(group) - 1)
            member.answer(result, seconds)
        return True

    def _compared(self, points: Sequence[JoinPoint], results: Sequence[torch.Tensor]) -> float:
        """Return how far joined results are from those of each member alone."""
        pairs = zip(results, points, strict=True)
        return max(distance(joined, point.alone()) for joined, point in pairs)


def _answer_alone(member: Member) -> None:
    try:
        result, seconds = member.alone()
    except Exception as error:  # noqa: BLE001 - the member's own failure, which its run describes
        member.fail(error)
    else:
        member.answer(result, seconds)
