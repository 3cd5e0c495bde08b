"""How long it takes from a graph to what a pool needs before it runs it, and to the schedule that is shown:
for known graphs, graphs known but for their sizes, and new ones.

Beside: the same without anything remembered, and the same where metadata is asked for over a socket, a round
trip for each node."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, repeat
from time import perf_counter
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.metadata_server import metadata_server
from benchmarks.plan_programs import Gpt2, recorded
from benchmarks.samples import Samples, percentile, scaled
from djinn_lab.pool.context import spare_full_collections
from djinn_lab.pool.sessions.admission import PlanCache, inspect_encoded
from djinn_lab.scheduler import DeviceProfile, ExecutionSchedule, Scheduler
from djinn_lab.scheduler.remembered import forget_schedules
from djinn_lab.srg.costs import forget_prices
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.program import Program, encode_program

NAME = "plan"
ANEW = "nothing remembered"
ASKED = "metadata asked for"
DEVICE = DeviceProfile.default("cpu", memory_bytes=2**36)
ROUNDS, ROUNDS_LONG = 31, 7
TOKENS, TOKENS_QUICK = 110, 11
"""That the long cell decodes: 50,000 nodes, and a tenth."""
LONG = 1_000
"""Nodes, from which on all of a graph is judged, and not each node."""
KNOWN_GOAL, NEW_GOAL, LONG_GOAL = Goal(0.35), Goal(5.0), Goal(0.5)
Ask = Callable[[], object]
Graph = Program | SRG | bytes
"""Encoded, as a pool gets it."""
Plan = Callable[[Any], object]


def measure(bench: Bench) -> list[Figure]:
    forward = recorded(Gpt2(tiny=bench.quick).forward, 3)[-1]
    steps = recorded(Gpt2(tiny=bench.quick).decode, 4 + bench.rounds(ROUNDS, 1))[1:]
    tokens = bench.rounds(TOKENS, TOKENS_QUICK)
    [long] = recorded(partial(Gpt2(tiny=True).decode, tokens), 1)
    with _collecting_as_a_pool():
        with _asking(long) as ask:
            of_long = _new(bench, "a long cell, new", long, ask)
        return [*_gpt2(bench, forward, steps), *of_long]


@contextmanager
def _collecting_as_a_pool() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.collect()
    spare_full_collections()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)


def _gpt2(bench: Bench, forward: Program, steps: Sequence[Program]) -> list[Figure]:
    plans, sent = PlanCache(), encode_program(forward)
    with _asking(forward) as ask:
        return [
            _known(bench, "GPT-2, known: admitted", sent, ask, _admit_anew, partial(_admit, plans=plans)),
            _known(bench, "GPT-2, known: scheduled", forward, ask, _schedule_anew, _schedule),
            _grown(bench, steps, ask),
            *_new(bench, "GPT-2, new", forward, ask),
        ]


def _new(bench: Bench, name: str, program: Program, ask: Ask) -> list[Figure]:
    """Plan a program as if none had been planned before."""
    srg = SRG.from_program(program)
    ways: tuple[tuple[str, Any, Plan], ...] = (
        ("admitted", encode_program(program), _admit_anew),
        ("its graph scheduled", srg, _schedule_graph),
        ("made a graph and scheduled", program, _schedule_anew),
    )
    long = len(program.nodes) > LONG
    found = []
    for way, graph, anew in ways:
        answers = _Answers()
        contenders = {
            OURS: answers.timed(anew, repeat(graph)),
            ASKED: answers.timed(_after(ask, anew), repeat(graph)),
        }
        taken = bench.alternate(contenders, ROUNDS_LONG if long else ROUNDS)
        found.append(_of_new(f"{name}: {way}", taken, len(program.nodes), long, answers.equal))
    return found


def _of_new(name: str, taken: Samples, nodes: int, long: bool, equal: bool) -> Figure:
    us_a_node = percentile(sorted(taken[OURS]), 0.5) / nodes * 1e6
    facts = {"nodes": nodes, "us_a_node": us_a_node, "equal": equal}
    if long:
        return figure(NAME, name, "s", taken, [LONG_GOAL], **facts)
    goals = [] if "made" in name else [NEW_GOAL]
    return figure(NAME, name, "us/node", scaled(taken, 1e6 / nodes), goals, **facts)


@contextmanager
def _asking(program: Program) -> Iterator[Ask]:
    """Ask a server for the layout of each node's first result."""
    metas = [program.metas[node.output_metas[0] or 0] for node in program.nodes]
    with metadata_server(metas) as client:
        yield lambda: client.ask(range(len(metas)))


def _admit(encoded: bytes, plans: PlanCache) -> tuple[Any, ...]:
    """Return what a pool needs before it queues a program: that it is valid, its peak, its work, its time."""
    found = inspect_encoded(encoded, plans)
    return found.key, found.footprint, found.work, found.reads, found.work.seconds(DEVICE.curves)


def _admit_anew(encoded: bytes) -> tuple[Any, ...]:
    forget_prices()
    return _admit(encoded, PlanCache())


def _schedule(program: Program) -> ExecutionSchedule:
    """Return what notebook and page show."""
    return Scheduler(devices=[DEVICE]).schedule_program(program)


def _schedule_anew(program: Program) -> ExecutionSchedule:
    forget_prices()
    forget_schedules()
    return _schedule(program)


def _schedule_graph(srg: SRG) -> ExecutionSchedule:
    return Scheduler(devices=[DEVICE]).create_schedule(srg)


class _Answers:
    """The first answer about each graph, and whether all others were ``equal``."""

    def __init__(self) -> None:
        self._found: dict[int, object] = {}
        self.equal = True

    def timed(
        self, plan: Plan, graphs: Iterator[Graph], before: Callable[[Any], object] = id
    ) -> Callable[[], float]:
        """Return a contender: the seconds of ``plan`` for the next graph, after ``before``."""

        def sample() -> float:
            graph = next(graphs)
            before(graph)
            began_s = perf_counter()
            answer = plan(graph)
            took_s = perf_counter() - began_s
            self.equal = self.equal and self._found.setdefault(id(graph), answer) == answer
            return took_s

        return sample


def _after(ask: Ask, plan: Plan) -> Plan:
    """Return a plan that asks first."""

    def asked(graph: Graph) -> object:
        ask()
        return plan(graph)

    return asked


def _known(bench: Bench, name: str, graph: Graph, ask: Ask, anew: Plan, known: Plan) -> Figure:
    """Plan a graph that was planned before."""
    answers = _Answers()
    contenders = {
        OURS: answers.timed(known, repeat(graph), before=known),
        ANEW: answers.timed(anew, repeat(graph)),
        ASKED: answers.timed(_after(ask, anew), repeat(graph)),
    }
    taken = scaled(bench.alternate(contenders, ROUNDS), 1e3)
    return figure(NAME, name, "ms", taken, [KNOWN_GOAL], equal=answers.equal)


def _grown(bench: Bench, steps: Sequence[Program], ask: Ask) -> Figure:
    """Admit steps of a decoder, one after the other: the cache of each is longer than all before."""
    answers, plans = _Answers(), PlanCache()
    encoded = list(map(encode_program, steps))
    before = dict(pairwise(encoded[::-1]))

    def warm(step: bytes) -> None:
        """As after the step before, whatever the other contenders forgot."""
        _admit(before[step], plans)
        _admit(before[step], PlanCache())

    contenders = {
        OURS: answers.timed(lambda step: _admit(step, plans), iter(encoded[1:]), warm),
        ANEW: answers.timed(_admit_anew, iter(encoded[1:])),
        ASKED: answers.timed(_after(ask, _admit_anew), iter(encoded[1:])),
    }
    taken = scaled(bench.alternate(contenders, ROUNDS), 1e3)
    nodes, resized = len(steps[-1].nodes), plans.resized
    name = "GPT-2, a decoding step whose cache grew: admitted"
    return figure(NAME, name, "ms", taken, nodes=nodes, known_structures=resized, equal=answers.equal)
