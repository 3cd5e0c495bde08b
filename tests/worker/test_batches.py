"""Segments of several sessions in lockstep: each has the values that it has alone, within its tolerance, and
its own memory, failure and stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from audit import audit
from programs import HOLE, Script, contiguous
from worker_kit import Device, read_fetched

from djinn_lab.errors import DeviceMemoryError
from djinn_lab.protocol.worker import Resume, RunSegment
from djinn_lab.srg.plan_key import keyed, plan_key, resizable
from djinn_lab.srg.program import Program, encode_program
from djinn_lab.worker.batched import batches as batches_module
from djinn_lab.worker.batched import joining
from djinn_lab.worker.batched.batches import Batches, Given
from djinn_lab.worker.batched.join_points import JoinPoint
from djinn_lab.worker.batched.joinable import joinable_nodes
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.outcome import Outcome, Stop, StopSignal

MakeDevice = Callable[..., Device]
TOLERANCE = 1e-5
WIDTH, HEADS, HEAD = 64, 4, 16


@dataclass
class Agent:
    """A session that decodes: a script, its weights, and its key-value cache."""

    session: str
    script: Script
    weights: tuple[int, ...]
    cache: tuple[int, int]


def weights() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH, 256)]
    return [torch.randn(shape, generator=generator) / 8 for shape in shapes]


def agent(device: Device, number: int, tokens: int) -> Agent:
    """Load the shared weights, and a cache of so many tokens."""
    script = Script(1 + 10_000 * number)
    names = [device.blob(weight, f"weight{place}") for place, weight in enumerate(weights())]
    loaded = tuple(script.load(weight, blob=name) for weight, name in zip(weights(), names, strict=True))
    generator = torch.Generator().manual_seed(number)
    past = [torch.randn(1, HEADS, tokens, HEAD, generator=generator) for _ in range(2)]
    cache = (script.load(past[0]), script.load(past[1]))
    session = f"s{number}"
    device.run(session, script.program(keep=(*loaded, *cache)))
    return Agent(session, script, loaded, cache)


def step(agent: Agent, token: torch.Tensor, draws: bool = False) -> Program:
    """Return a decode step: projections by shared weights, attention over the session's own cache."""
    script, (qkv, bias, out, head) = agent.script, agent.weights
    row = script.load(token)
    joined = script.op("aten.addmm.default", bias, row, qkv, shape=(len(token), 3 * WIDTH))
    queries, *new = (
        script.op(
            "aten.as_strided.default",
            joined,
            meta=contiguous(1, HEADS, 1, HEAD),
            args=[HOLE, [1, HEADS, 1, HEAD], [WIDTH, HEAD, HEAD, 1], place * WIDTH],
            view=True,
        )
        for place in range(3)
    )
    keys, values = (script.append(past, one) for past, one in zip(agent.cache, new, strict=True))
    agent.cache = (keys, values)
    tokens = script.metas[keys].shape[2]
    weighted = script.op("aten.mul.Tensor", keys, queries, shape=(1, HEADS, tokens, HEAD))
    scores = script.op("aten.sum.dim_IntList", weighted, shape=(1, HEADS, tokens, 1), args=[HOLE, [3], True])
    shares = script.op("aten._softmax.default", scores, args=[HOLE, 2, False])
    seen = script.op("aten.mul.Tensor", values, shares)
    found = script.op("aten.sum.dim_IntList", seen, shape=(1, HEADS, HEAD), args=[HOLE, [2]])
    flat = script.op("aten.view.default", found, shape=(1, WIDTH), args=[HOLE, [1, WIDTH]], view=True)
    mixed = script.op("aten.mm.default", flat, out, shape=(1, WIDTH))
    if draws:
        noise = script.op("aten.bernoulli.p", mixed, args=[HOLE, 0.5])
        mixed = script.op("aten.mul.Tensor", mixed, noise)
    logits = script.op("aten.mm.default", mixed, head, shape=(1, 256))
    state = torch.Generator().manual_seed(3).get_state().numpy().tobytes() if draws else None
    return script.program(keep=(keys, values), fetch=(logits,), rng_state=state)


def segment(one: Agent, program: Program, tolerance: float = TOLERANCE) -> RunSegment:
    encoded = encode_program(program)
    key = plan_key(encoded)
    return RunSegment(f"job {one.session}", 0, one.session, encoded, key=key, tolerance=tolerance)


class Batching:
    """A device that runs batches. ``joined``: how many members each joined op had."""

    def __init__(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = device
        self.batches = Batches(device.interpreter)
        self.joined: list[int] = []
        self.spoilt = 0.0
        join = joining.join

        def counted(points: Sequence[JoinPoint], account: MemoryAccount) -> list[torch.Tensor] | None:
            results = join(points, account)
            if results is None:
                return None
            self.joined.append(len(points))
            return [result + self.spoilt for result in results]

        monkeypatch.setattr(batches_module, "join", counted)

    def run(
        self,
        segments: Sequence[RunSegment],
        stops: Sequence[Callable[[], Stop | None]] = (),
    ) -> list[Outcome]:
        structure = resizable(keyed(segments[0].program).material).structure
        asked = stops or [StopSignal() for _ in segments]
        given = [
            Given(one, {}, stop, lambda done, total: None) for one, stop in zip(segments, asked, strict=True)
        ]
        ended = dict(self.batches.run(structure, given))
        audit(self.device)
        return [ended[number] for number in range(len(segments))]

    def fetched(self, outcome: Outcome) -> torch.Tensor:
        assert outcome.failure is None, outcome.failure
        return read_fetched(outcome.fetched[0], self.device.results)


@pytest.fixture
def batching(make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch) -> Batching:
    return Batching(make_device(), monkeypatch)


def agents(device: Device, count: int) -> list[Agent]:
    return [agent(device, number, 3 + number) for number in range(count)]


def tokens(count: int) -> list[torch.Tensor]:
    return [torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(n)) for n in range(count)]


@pytest.mark.parametrize("draws", [False, True])
def test_batch_of_decode_steps_gives_each_session_what_it_has_alone(
    make_device: MakeDevice, batching: Batching, draws: bool
) -> None:
    alone = make_device()
    lone, together = agents(alone, 3), agents(batching.device, 3)
    for number in range(3):
        expected = [
            alone.fetch(one.session, step(one, token, draws))[0]
            for one, token in zip(lone, tokens(3), strict=True)
        ]
        programs = [step(one, token, draws) for one, token in zip(together, tokens(3), strict=True)]
        outcomes = batching.run([segment(*pair) for pair in zip(together, programs, strict=True)])
        for outcome, wanted in zip(outcomes, expected, strict=True):
            torch.testing.assert_close(batching.fetched(outcome), wanted, rtol=TOLERANCE, atol=TOLERANCE)
            assert outcome.batched_with == 2
            assert outcome.executed == len(programs[0].nodes)
            assert len(outcome.node_times) == 16 * outcome.executed
        assert batching.joined == [3] * 3 * (number + 1)
    before, after = alone.memory(), batching.device.memory()
    assert after.session_bytes == before.session_bytes
    assert after.kv_bytes == before.kv_bytes


def test_node_whose_joined_results_differ_by_more_than_the_tolerance_is_not_joined_any_more(
    batching: Batching,
) -> None:
    batching.spoilt = 1e-2
    together = agents(batching.device, 2)
    for number in range(2):
        programs = [step(one, token) for one, token in zip(together, tokens(2), strict=True)]
        outcomes = batching.run([segment(*pair) for pair in zip(together, programs, strict=True)])
        assert [outcome.batched_with for outcome in outcomes] == [0, 0]
        assert batching.joined == [2] * 3, number


def test_member_with_a_weight_of_its_own_runs_that_node_alone(batching: Batching) -> None:
    together = agents(batching.device, 3)
    other = together[2]
    script = other.script
    script.write("aten.mul_.Tensor", other.weights[3], script.load(torch.tensor(2.0)))
    batching.device.run(other.session, script.program(keep=other.weights))
    programs = [step(one, token) for one, token in zip(together, tokens(3), strict=True)]
    outcomes = batching.run([segment(*pair) for pair in zip(together, programs, strict=True)])
    assert batching.joined == [3, 3, 2]
    assert [outcome.failure for outcome in outcomes] == [None] * 3


def test_member_of_another_structure_runs_beside_the_others(batching: Batching) -> None:
    together = agents(batching.device, 3)
    programs = [step(one, token) for one, token in zip(together[:2], tokens(2), strict=True)]
    script = together[2].script
    row = script.load(torch.ones(1, WIDTH))
    only = script.op("aten.mm.default", row, together[2].weights[3], shape=(1, 256))
    programs.append(script.program(fetch=(only,)))
    outcomes = batching.run([segment(*pair) for pair in zip(together, programs, strict=True)])
    torch.testing.assert_close(batching.fetched(outcomes[2]), torch.ones(1, WIDTH) @ weights()[3])
    assert batching.joined == [2, 2, 2]


def test_member_whose_op_raises_fails_alone(batching: Batching) -> None:
    together = agents(batching.device, 3)
    programs = [step(one, token) for one, token in zip(together, tokens(3), strict=True)]
    bad = programs[1]
    lost = list(together[1].weights[3:])
    batching.device.interpreter.values_of("s1").release(lost)
    outcomes = batching.run([segment(*pair) for pair in zip(together, programs, strict=True)])
    assert outcomes[1].failure is not None
    assert outcomes[1].missing == lost
    assert batching.joined == [2] * 3
    assert [outcome.executed for outcome in outcomes] == [len(bad.nodes), 0, len(bad.nodes)]


def test_fault_of_joining_lets_each_member_run_alone(
    batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = agents(batching.device, 3)
    programs = [step(one, token) for one, token in zip(together, tokens(3), strict=True)]
    calls = []

    def failing(points: Sequence[JoinPoint], account: MemoryAccount) -> None:
        calls.append(len(points))
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(batches_module, "join", failing)
    outcomes = batching.run([segment(*pair) for pair in zip(together, programs, strict=True)])
    assert calls == [3, 3, 3]
    assert [outcome.failure for outcome in outcomes] == [None] * 3


@pytest.mark.parametrize("kind", ["cancelled", "preempted"])
def test_stopped_member_leaves_the_others_and_can_resume(
    make_device: MakeDevice, batching: Batching, kind: Stop
) -> None:
    together = agents(batching.device, 3)
    programs = [step(one, token) for one, token in zip(together, tokens(3), strict=True)]
    segments = [segment(*pair) for pair in zip(together, programs, strict=True)]
    stops = [StopSignal() for _ in segments]
    join = batches_module.join

    def stopping(points: Sequence[JoinPoint], account: MemoryAccount) -> list[torch.Tensor] | None:
        if len(batching.joined) == 1:
            stops[1].ask(kind)
        return join(points, account)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches_module, "join", stopping)
        outcomes = batching.run(segments, stops)
    assert batching.joined == [3, 3, 2]
    assert [outcome.stopped for outcome in outcomes] == [None, kind, None]
    assert 0 < outcomes[1].executed < len(programs[1].nodes)
    if kind == "preempted":
        resume = Resume(outcomes[1].executed, outcomes[1].rng_state)
        resumed = batching.device.try_run("s1", programs[1], resume=resume)
        alone = make_device()
        lone = agent(alone, 1, 4)
        [expected] = alone.fetch(lone.session, step(lone, tokens(2)[1]))
        torch.testing.assert_close(batching.fetched(resumed), expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_batch_without_memory_for_joined_rows_runs_each_member_alone(
    batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = agents(batching.device, 2)
    programs = [step(one, token) for one, token in zip(together, tokens(2), strict=True)]
    memory = batching.device.interpreter.memory
    reserve = memory.reserve

    def full(nbytes: int, what: str) -> None:
        if what.startswith("joining"):
            raise DeviceMemoryError("full")
        reserve(nbytes, what)

    monkeypatch.setattr(memory, "reserve", full)
    outcomes = batching.run([segment(*pair) for pair in zip(together, programs, strict=True)])
    assert batching.joined == []
    assert [outcome.failure for outcome in outcomes] == [None, None]


def test_weight_that_the_program_writes_or_makes_is_not_joinable() -> None:
    script = Script()
    rows, weight = script.source((1, WIDTH)), script.source((WIDTH, WIDTH))
    made = script.op("aten.mul.Tensor", weight, weight)
    read = script.op("aten.mm.default", rows, made, shape=(1, WIDTH))
    joined = script.op("aten.mm.default", read, weight, shape=(1, WIDTH))
    assert joinable_nodes(script.program(keep=(joined,))) == (2,)
    rows, weight = script.source((1, WIDTH)), script.source((WIDTH, WIDTH))
    joined = script.op("aten.mm.default", rows, weight, shape=(1, WIDTH))
    script.write("aten.mul_.Tensor", weight, weight)
    assert joinable_nodes(script.program(keep=(joined,))) == ()
