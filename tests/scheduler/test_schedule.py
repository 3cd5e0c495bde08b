"""Placement, order, times and memory of one graph on one device."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from drawn_programs import Step, build, steps
from hypothesis import given
from programs import HOLE, LAYER, Script

from djinn_lab.errors import DeviceMemoryError, OptionError
from djinn_lab.scheduler import (
    SCHEDULER_PROFILES,
    SESSION_BOUND,
    DeviceProfile,
    ExecutionSchedule,
    Scheduler,
    SchedulerProfile,
    create_scheduler_for_workload,
)
from djinn_lab.scheduler.ordering import check_order
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.program import Program

NO_RESERVE = SchedulerProfile("tight", "no reserve", "latency", 0.0)


def device(
    name: str = "cpu:0",
    memory_bytes: int = 2**30,
    flops_per_s: float = 1e9,
    used_bytes: int = 0,
    watts: float | None = None,
) -> DeviceProfile:
    curves = DeviceCurves.of_rates(flops_per_s, 1e9, 1e-6)
    return DeviceProfile(name, "cpu", memory_bytes, curves, used_bytes=used_bytes, watts=watts)


def schedule(
    program: Program, *devices: DeviceProfile, profile: str | SchedulerProfile = NO_RESERVE
) -> ExecutionSchedule:
    return Scheduler(devices=devices or (device(),), profile=profile).create_schedule(
        SRG.from_program(program)
    )


def live_sets(program: Program) -> list[int]:
    """Bytes alive at each node, worked out the slow way: by asking of each storage at each node."""
    size = {}
    touched: dict[int, list[int]] = {}
    for source in program.sources:
        size[source.storage] = program.metas[source.meta].span_bytes
        if source.blob is None:
            touched[source.storage] = [-1, len(program.nodes)]
        else:
            touched[source.storage] = [-1]
    storage_of = {source.value: source.storage for source in program.sources}
    for index, node in enumerate(program.nodes):
        for value, storage, meta in zip(node.outputs, node.storages, node.output_metas, strict=True):
            storage_of[value] = storage
            size[storage] = max(size.get(storage, 0), program.metas[meta].span_bytes)
        for value in (*node.inputs, *node.outputs):
            touched.setdefault(storage_of[value], []).append(index)
    for value in (*program.keep, *program.fetch):
        touched[storage_of[value]].append(len(program.nodes))
    for moments in touched.values():
        if moments == [-1]:
            moments.append(len(program.nodes))
    return [
        sum(size[storage] for storage, moments in touched.items() if min(moments) <= index <= max(moments))
        for index in range(len(program.nodes))
    ]


@given(steps)
def test_memory_equals_a_brute_force_recomputation(plan: list[Step]) -> None:
    for uploaded in (False, True):
        program = build(plan, uploaded=uploaded)
        memory = schedule(program).memory
        assert list(memory.live_bytes) == live_sets(program)
        assert memory.peak_bytes == max(live_sets(program), default=memory.resident_bytes)


@given(steps)
def test_the_order_gives_the_results_of_program_order(plan: list[Step]) -> None:
    srg = SRG.from_program(build(plan))
    made = Scheduler(devices=[device()]).create_schedule(srg)
    check_order(srg, made.order)
    starts = [node.start_s for node in made.nodes]
    assert starts == sorted(starts)
    assert all(one.end_s == other.start_s for one, other in zip(made.nodes, made.nodes[1:], strict=False))


@given(steps)
def test_no_schedule_exceeds_the_memory(plan: list[Step]) -> None:
    program = build(plan)
    need = max(live_sets(program), default=48)
    assert schedule(program, device(memory_bytes=need)).memory.peak_bytes <= need
    with pytest.raises(DeviceMemoryError):
        schedule(program, device(memory_bytes=need - 1))


def chain() -> Program:
    """A weight of 4 KiB, an upload of 4 KiB, a product of 4 KiB, its relu (kept and fetched)."""
    script = Script(0, LAYER)
    x, w = script.source((32, 32), blob="0" * 64), script.source((32, 32), "weight")
    product = script.op("aten.mm.default", x, w, shape=(32, 32))
    active = script.op("aten.relu.default", product, shape=(32, 32))
    return script.program(keep=(active,), fetch=(active,))


def test_times_are_the_curves() -> None:
    made = schedule(chain())
    product, active = made.nodes
    upload, fetch = made.transfers
    assert (upload.direction, upload.nbytes, upload.node) == ("upload", 4096, 0)
    assert upload.end_s == pytest.approx(4096 / 0.5e9)
    assert product.start_s == upload.end_s
    assert product.end_s - product.start_s == pytest.approx(2 * 32**3 / 1e9 + 1e-6)
    assert active.end_s - active.start_s == pytest.approx(8192 / 1e9 + 1e-6)
    assert (product.bound, active.bound) == ("compute", "memory")
    assert (fetch.direction, fetch.nbytes, fetch.node, fetch.start_s) == ("fetch", 4096, 1, active.end_s)
    assert made.predicted_s == fetch.end_s


def test_memory_of_the_chain() -> None:
    made = schedule(chain())
    assert made.memory.resident_bytes == 8192
    assert made.memory.live_bytes == (12288, 12288)
    assert (made.memory.peak_bytes, made.memory.peak_position) == (12288, 0)
    assert made.memory.kept_bytes == 8192


def test_too_large_says_where_how_much_and_what_to_do() -> None:
    with pytest.raises(DeviceMemoryError) as error:
        schedule(chain(), device("cpu:0", 8000), device("cpu:1", 9000, used_bytes=500))
    assert "needs 12.0 KiB at its peak" in error.value.message
    assert "node 0 (aten.mm.default, Net.layer, line 3)" in error.value.message
    assert "cpu:1 has 8.3 KiB free of its 8.8 KiB." in error.value.message
    assert "smaller batch" in error.value.advice


def test_schedule_picks_the_fastest_device_and_explains_why() -> None:
    made = schedule(
        chain(), device("slow"), device("fast", flops_per_s=1e12), device("tiny", memory_bytes=100)
    )
    assert made.device.device == "fast"
    explanation = made.explain()
    assert explanation[0].startswith("Device fast: fastest with ")
    assert "on slow" in explanation[0]
    assert (
        explanation[1]
        == "Device tiny: left out, the peak of 12.0 KiB does not fit its 100 B with 0 B in use."
    )
    assert any("peak 12.0 KiB at node 0 (aten.mm.default, line 3)" in line for line in explanation)
    assert "Transfers: 1 tensor (4.0 KiB) up, 1 tensor (4.0 KiB) down." in explanation


def test_schedule_of_one_device_names_the_real_constraint() -> None:
    graph = SRG.from_program(chain())
    made = Scheduler(devices=[device("cpu:0")], bound_by=SESSION_BOUND).create_schedule(graph)
    assert made.explain()[0].startswith("Device cpu:0: the session is bound to it, ")
    assert schedule(chain(), device("cpu:0")).explain()[0].startswith("Device cpu:0: the only candidate, ")
    made = schedule(chain(), device("cpu:0"), device("tiny", memory_bytes=100))
    assert made.explain()[0].startswith("Device cpu:0: the only candidate with enough memory, ")


def test_a_memory_objective_prefers_the_emptier_device() -> None:
    fast, roomy = device("fast", 2**14, flops_per_s=1e12), device("roomy", 2**20)
    assert schedule(chain(), fast, roomy, profile="basic_inference").device.device == "fast"
    made = schedule(chain(), fast, roomy, profile="research_training")
    assert made.device.device == "roomy"
    assert (
        made.explain()[0] == "Device roomy: its memory is filled least, 1% at the peak, against 75% on fast."
    )


def test_an_energy_objective_takes_the_fewest_joules_and_names_unknown_power() -> None:
    green = SchedulerProfile("green", "fewest joules", "energy", 0.0)
    fast, thrifty = device("fast", flops_per_s=1e12, watts=700), device("thrifty", watts=65)
    unknown = device("unknown", flops_per_s=1e13)
    made = schedule(chain(), fast, thrifty, unknown, profile=green)
    assert made.device.device == "thrifty"
    assert made.joules == pytest.approx(made.predicted_s * 65)
    reason = made.explain()[0]
    assert reason.startswith("Device thrifty: least energy with ")
    assert "at 65 W) predicted, against " in reason
    assert reason.endswith("at 700 W) on fast. The power of unknown is unknown.")
    hungry = msgspec.structs.replace(thrifty, watts=70000.0)
    assert schedule(chain(), fast, hungry, profile=green).device.device == "fast"
    nothing = schedule(chain(), device("slow"), unknown, profile=green)
    assert nothing.device.device == "unknown"
    assert "as no energy can be compared. The power of unknown and slow is unknown." in nothing.explain()[0]
    with pytest.raises(ValueError, match="cannot draw nan W"):
        device(watts=float("nan"))


@pytest.mark.parametrize("name", list(SCHEDULER_PROFILES))
def test_every_profile_keeps_its_reserve_free_where_a_device_allows_it(name: str) -> None:
    reserve = SCHEDULER_PROFILES[name].reserve_fraction
    roomy = device("roomy", int(12288 / (1 - reserve)) + 1)
    tight = device("tight", int(12288 / (1 - reserve)) - 2, flops_per_s=1e15)
    made = schedule(chain(), tight, roomy, profile=name)
    assert made.device.device == "roomy"
    assert any("Device tight: left out" in line and "the reserve" in line for line in made.explain())
    alone = schedule(chain(), tight, profile=name)
    assert alone.device.device == "tight"
    assert any("free, which no device does" in line for line in alone.explain())


def test_profiles_and_devices_reject_nonsense() -> None:
    with pytest.raises(ValueError, match="reserve_fraction"):
        SchedulerProfile("all", "", "latency", 1.0)
    with pytest.raises(ValueError, match="must be positive"):
        device(flops_per_s=0)
    with pytest.raises(ValueError, match="must be positive"):
        device(used_bytes=-1)
    with pytest.raises(TypeError):
        SCHEDULER_PROFILES["mine"] = NO_RESERVE  # type: ignore[index]


def test_an_unmeasured_device_is_marked() -> None:
    assert not DeviceProfile.default("cpu").measured
    explanation = Scheduler().create_schedule(SRG.from_program(chain())).explain()
    assert "Caution: the rates of cpu:0 are defaults, it has not been measured yet." in explanation


def test_views_and_writes_stay_with_their_base() -> None:
    script = Script(0, LAYER)
    x = script.source((8,))
    base = script.op("aten.relu.default", x, shape=(8,))
    view = script.op("aten.view.default", base, shape=(8,), args=[HOLE, [8]], view=True)
    other = script.op("aten.neg.default", x, shape=(8,))
    script.write("aten.add_.Tensor", view, other)
    assert schedule(script.program()).groups == ((0, 1, 3),)


class Reversed:
    name = "reversed"

    def propose(self, srg: SRG, order: Sequence[int]) -> Sequence[int]:
        return list(reversed(order))


def two_branches() -> Script:
    script = Script(0, LAYER)
    x = script.source((8,))
    script.op("aten.relu.default", x, shape=(8,))
    script.op("aten.neg.default", x, shape=(8,))
    return script


def test_a_strategy_may_change_the_order_and_is_named() -> None:
    made = Scheduler(devices=[device()], strategies=[Reversed()]).create_schedule(
        SRG.from_program(two_branches().program())
    )
    assert made.order == (1, 0)
    assert "Order: 2 nodes, rearranged by reversed; results are the same." in made.explain()


@pytest.mark.parametrize("op", ["write after read", "read after write", "random"])
def test_an_order_that_changes_results_is_rejected(op: str) -> None:
    script = Script(0, LAYER)
    x = script.source((8,))
    if op == "write after read":
        script.op("aten.relu.default", x, shape=(8,))
        script.write("aten.add_.Tensor", x, x)
    elif op == "read after write":
        script.write("aten.add_.Tensor", x, x)
        script.op("aten.relu.default", x, shape=(8,))
    else:
        script.op("aten.rand_like.default", x, shape=(8,))
        script.op("aten.rand_like.default", x, shape=(8,))
    with pytest.raises(ValueError, match=r"node 1 .* must run after node 0"):
        Scheduler(strategies=[Reversed()]).create_schedule(SRG.from_program(script.program()))


@pytest.mark.parametrize("op", ["aten.lstm.input", "aten._scaled_dot_product_attention_math.default"])
def test_ops_that_draw_for_their_dropout_keep_their_order(op: str) -> None:
    script = Script(0, LAYER)
    x = script.source((8,))
    script.op(op, x, shape=(8,))
    script.op("aten.rand_like.default", x, shape=(8,))
    with pytest.raises(ValueError, match=r"node 1 .* must run after node 0"):
        check_order(SRG.from_program(script.program()), (1, 0))


@pytest.mark.parametrize("order", [(0,), (0, 0), (0, 2), (0, 1, 2)])
def test_an_order_must_name_each_node_once(order: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="each of the 2 nodes once"):
        check_order(SRG.from_program(two_branches().program()), order)


def test_a_graph_without_nodes() -> None:
    script = Script(0, LAYER)
    x = script.source((8,), blob="0" * 64)
    made = schedule(script.program(fetch=(x,)))
    assert (made.nodes, made.memory.peak_bytes, made.memory.peak_position) == ((), 32, None)
    assert [transfer.node for transfer in made.transfers] == [None, None]


def test_profiles_say_the_same_as_the_settings_that_people_edit() -> None:
    from djinn_lab.config import BUILT_IN

    settings = {name: profile.scheduler for name, profile in BUILT_IN.items()}
    assert settings.keys() == SCHEDULER_PROFILES.keys()
    for name, profile in SCHEDULER_PROFILES.items():
        assert settings[name].objective == profile.objective
        assert settings[name].memory_reserve_fraction == profile.reserve_fraction


def test_schedulers_of_workloads_have_their_profile_and_say_what_is_wrong() -> None:
    made = create_scheduler_for_workload("research_training", reserve_fraction=0.3)
    assert (made.profile.objective, made.profile.reserve_fraction) == ("memory", 0.3)
    for workload, overrides, problem in (
        ("llm_servin", {}, "did you mean 'llm_serving'"),
        (
            "llm_serving",
            {"objectiv": "memory"},
            "'objectiv' is no setting .*did you mean 'objective'",
        ),
        ("llm_serving", {"objective": "beauty"}, "beauty"),
        ("llm_serving", {"reserve_fraction": 1.0}, "below 1"),
        ("llm_serving", {"reserve_fraction": "much"}, "reserve_fraction"),
    ):
        with pytest.raises(OptionError, match=problem):
            create_scheduler_for_workload(workload, **overrides)
    with pytest.raises(OptionError, match="no profile of the scheduler"):
        Scheduler(profile="none such")
