"""Programs with compiled regions, on a device in this process. A library here runs the region's own ops, so
that every bit can be compared; what TorchInductor makes is tested with a pool."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from audit import audit
from comparing import Left, summary
from compiling import Change, Compiling
from programs import HOLE, Script, contiguous
from random_programs import SIZE, RandomPrograms
from worker_kit import MIB, Device, read_fetched

from djinn_lab.protocol.worker import Resume
from djinn_lab.srg.program import Program, ScalarHole
from djinn_lab.worker.compiled.trial import ROUNDS, RUNS_BEFORE, UNUSED_MAX
from djinn_lab.worker.outcome import Stop

MakeDevice = Callable[..., Device]
MATRIX = torch.arange(12.0).view(3, 4)


def chain(kept: int = 1) -> Program:
    """Six ops on a matrix that comes along; the last ones are fetched."""
    script = Script()
    values = [script.load(MATRIX)]
    for name in ("exp", "neg", "tanh", "relu", "exp", "neg"):
        values.append(script.op(f"aten.{name}.default", values[-1]))
    return script.program(fetch=tuple(values[-kept:]))


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_never_notice_that_regions_ran_as_one(make_device: MakeDevice, seed: int) -> None:
    plain, compiling = make_device(), Compiling(make_device())
    made = torch.Generator().manual_seed(seed)
    for index in range(2):
        square = torch.randn(SIZE, SIZE, generator=made)
        for device in (plain, compiling.device):
            device.blob(square, f"blob{index}")
    rounds, compiled_ops = RUNS_BEFORE + 2, 0
    sessions = {
        f"session {count}": RandomPrograms(seed, ["blob0", "blob1"], 1 + 5000 * count)
        for count in range(rounds)
    }
    for _ in range(6):
        for session, random_programs in sessions.items():
            program = random_programs.next()
            here, there = plain.try_run(session, program), compiling.run(session, program)
            compiled_ops += there.compiled_ops
            assert summary(here) == summary(there)
            assert here.ops_total == there.ops_total
            assert len(here.node_times) == len(there.node_times)
            assert Left.of(plain.interpreter.values_of(session)) == Left.of(
                compiling.device.interpreter.values_of(session)
            )
            audit(compiling.device)
    assert compiled_ops > 10


def test_program_that_runs_often_is_compiled_checked_and_measured(make_device: MakeDevice) -> None:
    compiling = Compiling(make_device())
    said = [compiling.run("ann", chain()).compiled for _ in range(RUNS_BEFORE + 1 + 2 * ROUNDS)]
    assert len(compiling.regions) == 1
    assert said[0] == f"run op by op; compiled once it has run {RUNS_BEFORE} times"
    assert "within 0.0e+00; being measured" in said[RUNS_BEFORE]
    assert "compiled" in said[-1] or said[-1] == "run op by op: it is not faster so"


def growing(length: int) -> Program:
    """Ops on a matrix, and others on a vector that is longer in each step."""
    script = Script()
    matrix = script.load(MATRIX)
    vector = script.op("aten.ones.default", meta=contiguous(length), args=[[length]])
    for name in ("exp", "neg", "tanh", "relu"):
        matrix = script.op(f"aten.{name}.default", matrix)
    for name in ("sin", "neg"):
        vector = script.op(f"aten.{name}.default", vector)
    return script.program(fetch=(matrix, vector))


def test_ops_whose_sizes_stay_are_compiled_though_others_grow(make_device: MakeDevice) -> None:
    compiling, plain = Compiling(make_device()), make_device()
    ran = 0
    for length in range(20, 60):
        outcome = compiling.run("ann", growing(length))
        found = [read_fetched(item, compiling.device.results) for item in outcome.fetched]
        for ours, theirs in zip(found, plain.fetch("ann", growing(length)), strict=True):
            assert torch.equal(ours, theirs)
        ran += outcome.compiled_ops > 0
    assert len(compiling.regions) == 1
    assert ran > ROUNDS
    measured = "op by op: it is not faster so" in outcome.compiled
    assert measured or "; 3 ops of other sizes in each run run op by op" in outcome.compiled


def test_programs_of_several_sizes_that_repeat_are_compiled_each(make_device: MakeDevice) -> None:
    compiling = Compiling(make_device())

    def all_sized(length: int) -> Program:
        script = Script()
        vector = script.op("aten.ones.default", meta=contiguous(length), args=[[length]])
        for name in ("exp", "neg", "tanh", "relu"):
            vector = script.op(f"aten.{name}.default", vector)
        return script.program(fetch=(vector,))

    for _ in range(12):
        for length in range(20, 25):
            compiling.run("ann", all_sized(length))
    assert len(compiling.regions) == 5


def test_equal_regions_are_asked_for_once(make_device: MakeDevice) -> None:
    compiling = Compiling(make_device())
    script = Script()
    value = script.load(MATRIX)
    for _ in range(3):
        value = script.op("aten.neg.default", script.op("aten.exp.default", value))
        script.write("aten.cos_.default", value)
    compiling.settle(script.program(fetch=(value,)))
    assert len(compiling.regions) == 1


def test_session_without_tolerance_is_never_compiled(make_device: MakeDevice) -> None:
    compiling = Compiling(make_device())
    for _ in range(2 * RUNS_BEFORE):
        compiling.device.run("ann", chain())
    assert compiling.regions == []


def test_library_that_computes_something_else_is_dropped_with_the_difference(make_device: MakeDevice) -> None:
    compiling = Compiling(make_device(), lambda roots: [root + 0.01 for root in roots])
    outcome = compiling.settle(chain())
    assert outcome.compiled.startswith("run op by op: the results of a region differ by ")
    assert [item.data for item in outcome.fetched] == [
        item.data for item in compiling.device.run("ann", chain()).fetched
    ]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_library_that_computes_no_number_is_dropped(make_device: MakeDevice, wrong: float) -> None:
    compiling = Compiling(make_device(), lambda roots: [torch.full_like(root, wrong) for root in roots])
    assert "differ by inf" in compiling.settle(chain()).compiled


def test_library_that_fails_is_dropped_and_its_program_runs_on_op_by_op(make_device: MakeDevice) -> None:
    compiling = Compiling(make_device())
    compiling.settle(chain())

    def fail(roots: list[torch.Tensor]) -> list[torch.Tensor]:
        raise RuntimeError("no such kernel")

    compiling.change = fail
    outcome = compiling.run("bob", chain())
    assert outcome.failure is None
    assert outcome.compiled == "run op by op: its compiled form failed: no such kernel"
    assert outcome.executed == outcome.ops_total == 6
    assert len(outcome.node_times) == 6 * 16
    expected = MATRIX.exp().neg().tanh().relu().exp().neg()
    assert torch.equal(read_fetched(outcome.fetched[0], compiling.device.results), expected)
    audit(compiling.device)


def test_library_whose_results_are_on_another_device_is_dropped(make_device: MakeDevice) -> None:
    compiling = Compiling(make_device(), lambda roots: [root.to("meta") for root in roots])
    outcome = compiling.settle(chain())
    assert outcome.failure is None
    assert outcome.compiled.endswith("its compiled form failed: it returned a tensor on meta in place of cpu")
    assert [item.data for item in outcome.fetched] == [
        item.data for item in compiling.device.run("ann", chain()).fetched
    ]


def test_op_that_fails_behind_a_region_is_named_by_its_place_in_the_program(make_device: MakeDevice) -> None:
    def rows(index: int) -> Program:
        script = Script()
        table = script.op("aten.neg.default", script.op("aten.exp.default", script.load(MATRIX)))
        places = script.load(torch.tensor([0, index]))
        return script.program(keep=(table, script.op("aten.embedding.default", table, places, shape=(2, 4))))

    compiling = Compiling(make_device())
    compiling.settle(rows(2))
    outcome = compiling.run("ann", rows(3))
    assert outcome.failure is not None
    assert (outcome.failure.node, outcome.failure.op, outcome.executed) == (2, "aten.embedding.default", 2)
    assert outcome.compiled_ops == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda roots: [roots[0], roots[0].view(roots[0].shape)],
        lambda roots: [torch.stack(roots)[0], torch.stack(roots)[1]],
        lambda roots: [root.t().contiguous().t() for root in roots],
    ],
    ids=["one memory for both", "parts of a larger tensor", "another layout"],
)
def test_results_have_memory_and_layout_of_their_own_whatever_a_library_returns(
    make_device: MakeDevice, change: Change
) -> None:
    script = Script()
    value = script.load(MATRIX)
    one, other = (script.op("aten.exp.default", value) for _ in range(2))
    program = script.program(keep=(one, other))
    compiling = Compiling(make_device(), change)
    compiling.settle(program)
    compiling.run("ann", program)
    values = compiling.device.interpreter.values_of("ann")
    left = Left.of(values)
    assert left.together == {frozenset((one,)), frozenset((other,))}
    assert all(len(content) == MATRIX.nbytes for _, content in left.tensors.values())
    assert compiling.device.memory().session_bytes["ann"] == 2 * MATRIX.nbytes


def test_program_runs_op_by_op_where_a_device_has_no_memory_for_its_regions(make_device: MakeDevice) -> None:
    compiling = Compiling(make_device(memory_bytes=3 * MIB))
    script = Script()
    value = script.op("aten.ones.default", meta=contiguous(2**18), args=[[2**18]])
    for _ in range(5):
        value = script.op("aten.exp.default", value)
    program = script.program(keep=(value,))
    for _ in range(RUNS_BEFORE + UNUSED_MAX):
        outcome = compiling.run("ann", program)
        assert outcome.failure is None
        assert compiling.device.memory().peak_bytes <= 3 * MIB
    assert outcome.compiled == "run op by op: there was no memory for it"
    audit(compiling.device)


def test_zero_of_the_other_sign_is_another_number(make_device: MakeDevice) -> None:
    def divided(by: float) -> Program:
        script = Script()
        value = script.op("aten.div.Tensor", script.load(MATRIX + 1), scalars=(by,))
        return script.program(fetch=(script.op("aten.exp.default", value),))

    compiling = Compiling(make_device())
    compiling.settle(divided(0.0))
    assert torch.equal(compiling.fetch("s", divided(-0.0))[0], torch.zeros(3, 4))


def test_program_with_other_numbers_runs_op_by_op(make_device: MakeDevice) -> None:
    def scaled(factor: float) -> Program:
        script = Script()
        value = script.op("aten.mul.Tensor", script.load(MATRIX), scalars=(factor,))
        return script.program(fetch=(script.op("aten.exp.default", value),))

    compiling = Compiling(make_device())
    compiling.settle(scaled(0.5))
    assert torch.equal(compiling.fetch("ann", scaled(0.25))[0], (MATRIX * 0.25).exp())
    outcome = compiling.run("ann", scaled(0.25))
    assert outcome.compiled_ops == 0


def training(sessions: int, steps: int) -> list[tuple[str, int, list[Program]]]:
    """Return the programs of so many sessions, each with its name and the value of its weight: one that makes
    the weight, then steps that write it with another step size each."""
    found = []
    for session in range(sessions):
        script = Script(1 + 1000 * session)
        weight = script.load(MATRIX)
        programs = [script.program(keep=(weight,))]
        for step in range(steps):
            gradient = script.op("aten.tanh.default", weight)
            script.write("aten.mul_.Tensor", weight, scalars=(0.99,))
            script.write(
                *("aten.add_.Tensor", weight, gradient),
                args=[HOLE, HOLE],
                kwargs={"alpha": ScalarHole()},
                scalars=(-0.1 / (step + 1),),
            )
            programs.append(script.program(fetch=(weight,)))
        found.append((f"session {session}", weight, programs))
    return found


def test_writes_with_another_number_in_each_run_are_compiled(make_device: MakeDevice) -> None:
    plain, compiling = make_device(), Compiling(make_device())
    compiled_ops = 0
    for session, weight, programs in training(sessions=2, steps=8):
        for program in programs:
            there = compiling.run(session, program)
            plain.run(session, program)
            assert there.failure is None
            compiled_ops += there.compiled_ops
            ours, theirs = (
                device.interpreter.values_of(session).tensors[weight] for device in (compiling.device, plain)
            )
            assert ours is not None
            assert theirs is not None
            torch.testing.assert_close(ours, theirs)
            audit(compiling.device)
    assert compiled_ops >= 3 * ROUNDS
    assert [len(region.nodes) for region in compiling.regions] == [4]


def test_region_without_inputs_reads_a_number_that_is_another_in_each_run(make_device: MakeDevice) -> None:
    def scaled(factor: float) -> Program:
        script = Script()
        value = script.op("aten.ones.default", meta=contiguous(3, 4), args=[[3, 4]])
        value = script.op("aten.mul.Tensor", value, scalars=(factor,))
        return script.program(fetch=(script.op("aten.exp.default", value),))

    compiling, compiled_ops = Compiling(make_device()), 0
    for number in range(RUNS_BEFORE + ROUNDS):
        outcome = compiling.run("ann", scaled(number / 8))
        [found] = [read_fetched(item, compiling.device.results) for item in outcome.fetched]
        assert torch.equal(found, torch.full((3, 4), number / 8).exp())
        compiled_ops += outcome.compiled_ops
    assert compiled_ops
    assert [len(region.sources) for region in compiling.regions] == [1]


def test_library_of_a_package_that_spoils_what_it_reads_is_dropped_before_it_harms(
    make_device: MakeDevice,
) -> None:
    def spoil(roots: list[torch.Tensor]) -> list[torch.Tensor]:
        compiling.inputs[0].mul_(1.5)
        return roots

    compiling = Compiling(make_device(), spoil, foreign=True)
    script = Script()
    weight = script.load(MATRIX)
    compiling.run("ann", script.program(keep=(weight,)))
    for _ in range(RUNS_BEFORE + UNUSED_MAX):
        made = script.op("aten.tanh.default", script.op("aten.exp.default", weight))
        outcome = compiling.run("ann", script.program(fetch=(made,)))
        assert outcome.failure is None
        assert torch.equal(read_fetched(outcome.fetched[0], compiling.device.results), MATRIX.exp().tanh())
    assert outcome.compiled == "run op by op: its compiled form writes what the region only reads"
    audit(compiling.device)


def test_check_leaves_what_the_ops_wrote(make_device: MakeDevice) -> None:
    def spoil(roots: list[torch.Tensor]) -> list[torch.Tensor]:
        compiling.inputs[0].add_(0.5)
        return roots

    plain, compiling = make_device(), Compiling(make_device(), spoil)
    said = []
    for session, weight, programs in training(sessions=1, steps=6):
        for program in programs:
            said.append(compiling.run(session, program).compiled)
            plain.run(session, program)
            ours, theirs = (
                device.interpreter.values_of(session).tensors[weight] for device in (compiling.device, plain)
            )
            assert ours is not None
            assert theirs is not None
            assert torch.equal(ours, theirs)
    assert any("differ" in one for one in said)


def test_library_that_fails_after_a_write_is_an_error_of_the_pool(make_device: MakeDevice) -> None:
    def fail(roots: list[torch.Tensor]) -> list[torch.Tensor]:
        raise RuntimeError("no such kernel")

    compiling = Compiling(make_device())
    ((session, _, programs),) = training(sessions=1, steps=RUNS_BEFORE + 2)
    for program in programs[:-1]:
        compiling.run(session, program)
    compiling.change = fail
    outcome = compiling.run(session, programs[-1])
    assert outcome.failure is not None
    assert outcome.failure.family == "pool"
    assert "may have written" in outcome.failure.message


def test_program_is_compiled_anew_once_its_numbers_change_after_all(make_device: MakeDevice) -> None:
    def scaled(factor: float) -> Program:
        script = Script()
        value = script.op("aten.mul.Tensor", script.load(MATRIX), scalars=(factor,))
        return script.program(fetch=(script.op("aten.exp.default", value),))

    compiling = Compiling(make_device())
    compiling.settle(scaled(0.5))
    for _ in range(UNUSED_MAX * 2 + RUNS_BEFORE + 2):
        assert torch.equal(compiling.fetch("ann", scaled(0.25))[0], (MATRIX * 0.25).exp())
    assert len(compiling.regions) == 2
    assert compiling.run("ann", scaled(0.125)).failure is None
    assert [len(region.sources) for region in compiling.regions] == [1, 2]


def test_run_stops_between_regions_and_resumes_at_the_op_behind(make_device: MakeDevice) -> None:
    script = Script()
    value = script.load(MATRIX)
    first = script.op("aten.neg.default", script.op("aten.exp.default", value))
    script.write("aten.cos_.default", first)
    last = script.op("aten.neg.default", script.op("aten.tanh.default", first))
    program = script.program(fetch=(last,))
    compiling = Compiling(make_device())
    compiling.settle(program)
    asked: list[None] = []

    def stop_behind_the_first_region() -> Stop | None:
        asked.append(None)
        return "preempted" if len(asked) > 2 else None

    outcome = compiling.run("ann", program, stop_behind_the_first_region)
    assert outcome.stopped == "preempted"
    assert outcome.executed == 2
    assert len(outcome.node_times) == 2 * 16
    resumed = compiling.device.try_run("ann", program, resume=Resume(2))
    expected = MATRIX.exp().neg().cos().tanh().neg()
    assert torch.equal(read_fetched(resumed.fetched[0], compiling.device.results), expected)


@pytest.mark.parametrize("problem", ["this pool's machine has no C++ compiler (g++)"])
def test_region_that_cannot_be_compiled_says_why(make_device: MakeDevice, problem: str) -> None:
    compiling = Compiling(make_device())
    answer = compiling.answer
    compiling.answer = lambda: answer(problem)  # type: ignore[method-assign, misc, assignment]
    assert compiling.settle(chain()).compiled == f"run op by op: {problem}"
