"""An order with a lower peak: it never raises the peak, and real runs in it give the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from drawn_programs import Step, build, steps
from hypothesis import given, settings
from programs import LAYER, Script
from torch_recording import Recording

from djinn_lab.scheduler import DeviceProfile, MemoryOrder, Scheduler
from djinn_lab.scheduler.memory_plan import plan_memory
from djinn_lab.scheduler.ordering import check_order
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.program import Program, encode_program
from djinn_lab.srg.reordering import executed_prefix, reordered, values_ahead
from djinn_lab.srg.validation import validate_program
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.values import SessionValues

SEED = 7


def proposed(program: Program) -> tuple[int, ...]:
    srg = SRG.from_program(program)
    return tuple(MemoryOrder().propose(srg, tuple(range(len(srg.nodes)))))


def peak(program: Program, order: Sequence[int]) -> int:
    return plan_memory(SRG.from_program(program), order).peak_bytes


def run(program: Program, results: Path) -> tuple[dict[int, torch.Tensor | None], int]:
    """Run a program by a worker's interpreter; return what the session holds then, and the peak in bytes."""
    validate_program(program)
    worker = Interpreter(torch.device("cpu"), 2**30, results)
    values = worker.sessions["session"] = SessionValues(worker.memory)
    generator = torch.Generator().manual_seed(SEED)
    shared: dict[int, torch.Tensor] = {}
    for source in program.sources:
        meta = program.metas[source.meta]
        dtype = getattr(torch, meta.dtype)
        if source.storage not in shared:
            count = meta.span_bytes // dtype.itemsize
            made = torch.rand(count, generator=generator) if dtype.is_floating_point else torch.zeros(count)
            shared[source.storage] = made.to(dtype)
        values.put(source.value, shared[source.storage].as_strided(meta.shape, meta.stride))
    state = torch.Generator().manual_seed(SEED).get_state().numpy().tobytes()
    program = msgspec.structs.replace(program, rng_state=state)
    outcome = worker.run("session", encode_program(program), {}, lambda: None, lambda done, total: None)
    assert outcome.failure is None
    return values.tensors, worker.memory.peak_bytes


def assert_equal_runs(program: Program, order: Sequence[int], results: Path) -> None:
    before, _ = run(program, results)
    after, after_bytes = run(reordered(program, order), results)
    assert before.keys() == after.keys()
    for value, tensor in before.items():
        other = after[value]
        assert (tensor is None) == (other is None)
        assert tensor is None or (other is not None and torch.equal(tensor, other))
    assert after_bytes == peak(program, order)


@given(steps)
def test_memory_order_is_valid_and_its_peak_is_never_higher(plan: list[Step]) -> None:
    for uploaded in (False, True):
        program = build(plan, uploaded=uploaded)
        order = proposed(program)
        check_order(SRG.from_program(program), order)
        assert peak(program, order) <= peak(program, range(len(program.nodes)))
        if order != tuple(range(len(order))):
            assert peak(program, order) < peak(program, range(len(order)))


@settings(max_examples=40)
@given(steps)
def test_drawn_programs_give_the_same_bits_in_memory_order(
    tmp_path_factory: pytest.TempPathFactory, plan: list[Step]
) -> None:
    program = build(plan, keep_every=3)
    assert_equal_runs(program, proposed(program), tmp_path_factory.mktemp("results"))


def wide_branches() -> Program:
    """All branches are widened before the first is reduced, as a list comprehension and a sum do it."""
    x, weight = torch.randn(64, 32), torch.nn.Parameter(torch.randn(32, 512))
    with Recording() as recording, torch.no_grad():
        wide = [torch.relu((x + shift) @ weight) for shift in range(6)]
        total = torch.stack([one.sum(1) for one in wide]).sum(0)
    return recording.program(keep=(total,), fetch=(total,))


def training_with_dropout() -> Program:
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with Recording() as recording:
        loss = net(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
    return recording.program(keep=(loss,))


def test_wide_branches_run_one_after_the_other_and_need_less(tmp_path: Path) -> None:
    program = wide_branches()
    order = proposed(program)
    assert peak(program, order) < peak(program, range(len(order))) / 2
    assert_equal_runs(program, order, tmp_path)


def test_training_gives_the_same_bits_in_memory_order(tmp_path: Path) -> None:
    program = training_with_dropout()
    assert_equal_runs(program, proposed(program), tmp_path)


def test_writes_to_held_memory_keep_their_position() -> None:
    """Three branches, a write to a weight, three branches again: no branch crosses the write."""
    script = Script(0, LAYER)
    x, weight = script.source((1024,)), script.source((1024,), "weight")
    ends: list[int] = []
    for _ in range(2):
        wide = [script.op("aten.exp.default", x, shape=(1024,)) for _ in range(3)]
        ends += [script.op("aten.sum.default", one, shape=()) for one in wide]
        if len(ends) == 3:
            script.write("aten.add_.Tensor", weight, x)
    program = script.program(keep=tuple(ends))
    order = proposed(program)
    assert order != tuple(range(13))
    assert order[6] == 6
    assert set(order[:6]) == set(range(6))


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2)])
def test_no_node_may_cross_a_write_to_held_memory(order: tuple[int, ...]) -> None:
    script = Script(0, LAYER)
    x, weight = script.source((8,)), script.source((8,), "weight")
    script.op("aten.exp.default", x, shape=(8,))
    script.write("aten.add_.Tensor", weight, x)
    script.op("aten.exp.default", x, shape=(8,))
    with pytest.raises(ValueError, match="must run after"):
        check_order(SRG.from_program(script.program()), order)


def test_a_node_gains_urgency_when_it_becomes_the_last_reader() -> None:
    """``wide``'s second reader frees it once the first has run, so that it goes before ``other``."""
    script = Script(0, LAYER)
    x = script.source((1,))
    other = script.op("aten.exp.default", x, shape=(500,))
    wide = script.op("aten.exp.default", x, shape=(1000,))
    first = script.op("aten.sum.default", wide, shape=(1,))
    second = script.op("aten.sin.default", wide, shape=(1000,))
    end = script.op("aten.sum.default", second, shape=(1,))
    program = script.program(keep=(other, first, end))
    assert peak(program, range(5)) == 4 * (1 + 500 + 1000 + 1 + 1000)
    assert peak(program, proposed(program)) == 4 * (1 + 1000 + 1 + 1000)


def test_a_kept_value_is_freed_by_no_reader() -> None:
    """The last reader of ``kept`` frees nothing, so that ``end`` goes first, which frees ``part``."""
    script = Script(0, LAYER)
    x = script.source((1,))
    kept = script.op("aten.exp.default", x, shape=(3000,))
    part = script.op("aten.sin.default", kept, shape=(1000,))
    last = script.op("aten.cos.default", kept, shape=(1100,))
    end = script.op("aten.sum.default", part, shape=(1,))
    program = script.program(keep=(kept, last, end))
    assert peak(program, range(4)) == 4 * (1 + 3000 + 1000 + 1100 + 1)
    assert peak(program, proposed(program)) == 4 * (1 + 3000 + 1100 + 1)


def test_nodes_that_ran_early_count_only_behind_an_unbroken_beginning() -> None:
    assert [executed_prefix((2, 0, 1), count) for count in range(4)] == [0, 0, 1, 3]
    script = Script(0, LAYER)
    x = script.source((8,))
    made = [script.op("aten.exp.default", x, shape=(8,)) for _ in range(3)]
    program = script.program(keep=tuple(made))
    assert [values_ahead(program, (2, 0, 1), count) for count in range(4)] == [[], [made[2]], [made[2]], []]


def test_a_schedule_names_the_order_and_plans_its_memory() -> None:
    program = wide_branches()
    plain = Scheduler(devices=[DeviceProfile.default()]).create_schedule(SRG.from_program(program))
    made = Scheduler(devices=[DeviceProfile.default()], strategies=[MemoryOrder()])
    schedule = made.create_schedule(SRG.from_program(program))
    assert schedule.memory.peak_bytes < plain.memory.peak_bytes
    assert any("rearranged by order_for_memory" in line for line in schedule.explain())
