"""A schedule from memory is the schedule that would be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import msgspec
import pytest
from drawn_programs import Step, build, steps
from hypothesis import given
from hypothesis import strategies as st
from programs import LAYER, Script

from djinn_lab.scheduler import (
    AdaptiveScheduler,
    DeviceProfile,
    ExecutionSchedule,
    MemoryOrder,
    Scheduler,
    create_advanced_scheduler,
)
from djinn_lab.scheduler.costs import GraphCostEstimator, NodeEstimate
from djinn_lab.scheduler.remembered import forget_schedules, schedule_use
from djinn_lab.srg.costs import forget_prices
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.graph import SRG, Node
from djinn_lab.srg.program import Program, ScalarHole, Scope

DEVICES = [DeviceProfile.default("cpu"), DeviceProfile.default("cuda")]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    forget_schedules()
    yield
    forget_schedules()


def anew(scheduler: Scheduler, program: Program) -> ExecutionSchedule:
    forget_prices()
    return scheduler.create_schedule(SRG.from_program(program))


def renamed(program: Program, random: Random) -> Program:
    """The same with other ids, in another order of numbers."""
    replace = msgspec.structs.replace
    ids = {number for source in program.sources for number in (source.value, source.storage)}
    for node in program.nodes:
        ids.update(number for number in (*node.outputs, *node.storages) if number is not None)
    drawn = random.sample(range(10 * len(ids)), len(ids))
    new: dict[int | None, int] = dict(zip(sorted(ids), drawn, strict=True))
    return replace(
        program,
        sources=[
            replace(source, value=new[source.value], storage=new[source.storage])
            for source in program.sources
        ],
        nodes=[
            replace(
                node,
                inputs=tuple(map(new.get, node.inputs)),
                outputs=tuple(map(new.get, node.outputs)),
                storages=tuple(map(new.get, node.storages)),
            )
            for node in program.nodes
        ],
        keep=[new[one] for one in program.keep],
        fetch=[new[one] for one in program.fetch],
    )


SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "plain": lambda: Scheduler(devices=DEVICES),
    "memory order": lambda: Scheduler(devices=DEVICES[:1], strategies=[MemoryOrder()]),
    "auto": lambda: AdaptiveScheduler("auto", devices=DEVICES),
    "advanced": lambda: create_advanced_scheduler(devices=DEVICES),
}


@given(steps, st.sampled_from(list(SCHEDULERS)), st.booleans(), st.randoms(use_true_random=False))
def test_a_remembered_schedule_equals_a_new_one(
    plan: list[Step], name: str, uploaded: bool, random: Random
) -> None:
    make, program = SCHEDULERS[name], build(plan, uploaded=uploaded)
    forget_schedules()
    assert make().schedule_program(program) == anew(make(), program)
    again = renamed(program, random)
    assert make().schedule_program(again) == anew(make(), again)
    assert schedule_use() == (1, 1)
    for one in (program, again):
        assert make().arrange_program(one) == make().arrange(SRG.from_program(one))
    assert schedule_use() == (2, 2)


def scaled(scalar: float = 2.0, scope: Scope = LAYER) -> Program:
    script = Script(0, scope)
    x = script.source((32, 32), blob="0" * 64)
    y = script.op("aten.mul.Tensor", x, shape=(32, 32), args=[ScalarHole(), ScalarHole()])
    program = script.program(fetch=(y,))
    node = msgspec.structs.replace(program.nodes[0], inputs=(), scalars=(scalar, scalar))
    return msgspec.structs.replace(program, nodes=[node])


def test_what_a_schedule_shows_or_depends_on_makes_another_one() -> None:
    device, replace = DEVICES[0], msgspec.structs.replace
    cases = [
        (Scheduler(devices=[device]), scaled()),
        (Scheduler(devices=[device]), scaled(3.0)),
        (Scheduler(devices=[device]), scaled(scope=replace(LAYER, module="Other"))),
        (Scheduler(devices=[device]), scaled(scope=replace(LAYER, line=9))),
        (Scheduler(devices=[device]), scaled(scope=replace(LAYER, phase="backward"))),
        (Scheduler(devices=[replace(device, used_bytes=2**20)]), scaled()),
        (Scheduler(devices=[replace(device, curves=DeviceCurves.of_rates(1e9, 1e9, 1e-6))]), scaled()),
        (Scheduler(devices=[device], profile="llm_serving"), scaled()),
        (Scheduler(devices=[device], bound_by="why not"), scaled()),
        (AdaptiveScheduler("basic", devices=[device]), scaled()),
        (AdaptiveScheduler("semantic", devices=[device]), scaled()),
    ]
    found = [scheduler.schedule_program(program) for scheduler, program in cases]
    assert schedule_use() == (len(cases), 0)
    assert found == [anew(scheduler, program) for scheduler, program in cases]
    switched = AdaptiveScheduler("basic", devices=[device])
    switched.enable_feature("placement")
    assert switched.schedule_program(scaled()) == anew(switched, scaled())


def test_another_cell_of_equal_code_is_known() -> None:
    scheduler = Scheduler(devices=DEVICES)
    scheduler.schedule_program(scaled())
    scheduler.schedule_program(scaled(scope=msgspec.structs.replace(LAYER, cell="In [7]", call=5)))
    assert schedule_use() == (1, 1)


def test_code_of_others_is_asked_each_time() -> None:
    class Slower(GraphCostEstimator):
        factor = 1.0

        def estimate(self, node: Node, device: DeviceProfile) -> NodeEstimate:
            Slower.factor *= 2
            return NodeEstimate(Slower.factor, "compute")

    class Own(Scheduler):
        def arrange(self, srg: SRG) -> None:  # type: ignore[override]
            raise ArithmeticError

    scheduler = Scheduler(Slower())
    assert scheduler.schedule_program(scaled()).compute_s < scheduler.schedule_program(scaled()).compute_s
    Scheduler().schedule_program(scaled())
    with pytest.raises(ArithmeticError):
        Own().schedule_program(scaled())


def test_offloading_schedules_are_made_each_time() -> None:
    tight = msgspec.structs.replace(DEVICES[0], memory_bytes=9000, below_bytes=2**20)
    script = Script(0, LAYER)
    values = [script.source((32, 32), blob=f"{number:064x}") for number in range(3)]
    script.op("aten.add.Tensor", *values[:2], shape=(32,))
    program = script.program()
    scheduler = Scheduler(devices=[tight], profile="basic_inference")
    for _ in range(2):
        assert scheduler.schedule_program(program).offload is not None
    assert schedule_use().known == 0
