"""A program that needs more memory than the device has runs to its end with the same values."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from audit import audit
from programs import HOLE, Script
from worker_kit import MIB, Device, fetch, keep

from djinn_lab.protocol.worker import Resume
from djinn_lab.scheduler.offload import offload_plan
from djinn_lab.srg.graph import SRG

Make = Callable[..., Device]
SIDE = 512
"""A matrix of this side has one MiB."""


def matrices(count: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(count)
    return [torch.randn(SIDE, SIDE, generator=made) / 16 for _ in range(count)]


def chain(
    device: Device, script: Script, weights: list[torch.Tensor], uploaded: bool
) -> tuple[list[int], int]:
    """Load the weights and multiply them, one after the other."""
    values = [
        script.load(weight, device.blob(weight, f"weight{index}") if uploaded else None)
        for index, weight in enumerate(weights)
    ]
    product = values[0]
    for value in values[1:]:
        product = script.op("aten.mm.default", product, value)
    return values, product


def product_of(weights: list[torch.Tensor]) -> torch.Tensor:
    product = weights[0]
    for weight in weights[1:]:
        product = product @ weight
    return product


@pytest.mark.parametrize("uploaded", [True, False])
def test_weights_of_twice_the_device(make_device: Make, uploaded: bool) -> None:
    device, script, weights = make_device(memory_bytes=6 * MIB), Script(), matrices(12)
    values, product = chain(device, script, weights, uploaded)
    outcome = device.run("ann", script.program(keep=(*values, product)))
    assert outcome.out_bytes >= 7 * MIB
    memory = device.memory()
    assert memory.peak_bytes <= 6 * MIB
    assert memory.session_bytes["ann"] + memory.offloaded_bytes["ann"] == 13 * MIB
    audit(device)
    found = fetch(device, "ann", script, *values, product)
    assert all(torch.equal(one, other) for one, other in zip(found, weights, strict=False))
    torch.testing.assert_close(found[-1], product_of(weights))
    audit(device)


def test_what_is_not_written_leaves_without_another_copy(make_device: Make) -> None:
    device, script, weights = make_device(memory_bytes=6 * MIB), Script(), matrices(12)
    values, product = chain(device, script, weights, uploaded=True)
    device.run("ann", script.program(keep=(*values, product)))
    for _ in range(4):
        again = values[0]
        for value in values[1:]:
            again = script.op("aten.mm.default", again, value)
        outcome = device.run("ann", script.program(fetch=(again,)))
        assert outcome.in_bytes >= 6 * MIB
    assert outcome.out_bytes == 0
    audit(device)


def test_what_is_written_is_copied_again(make_device: Make) -> None:
    device, script, weights = make_device(memory_bytes=4 * MIB), Script(), matrices(8)
    values = keep(device, "ann", script, *weights)
    for scale in (2, 3):
        for value in values:
            script.write("aten.mul_.Tensor", value, scalars=(scale,))
        device.run("ann", script.program())
        audit(device)
    found = fetch(device, "ann", script, *values)
    assert all(torch.equal(one, other * 2 * 3) for one, other in zip(found, weights, strict=True))


def test_the_value_that_is_used_last_gives_way(make_device: Make) -> None:
    """Three of four values fit: the one that no op reads is the only one to leave."""
    device, script = make_device(memory_bytes=3 * MIB), Script()
    first, second, unused = keep(device, "ann", script, *matrices(3))
    total = script.op("aten.add.Tensor", first, second)
    outcome = device.run("ann", script.program(keep=(total,)))
    assert (outcome.out_bytes, outcome.in_bytes) == (MIB, 0)
    assert unused in device.interpreter.values_of("ann").offloaded.values


def test_an_op_that_cannot_fit_fails_and_nothing_is_lost(make_device: Make) -> None:
    device, script = make_device(memory_bytes=4 * MIB), Script()
    values = keep(device, "ann", script, *matrices(3))
    script.op("aten.new_zeros.default", values[0], args=[HOLE, [5 * SIDE, SIDE]], shape=(5 * SIDE, SIDE))
    outcome = device.try_run("ann", script.program())
    assert outcome.failure is not None
    assert (outcome.failure.family, outcome.failure.node) == ("memory", 0)
    assert "needs 5.0 MiB" in outcome.failure.message
    assert outcome.out_bytes == 0
    found = fetch(device, "ann", script, *values)
    assert all(torch.equal(one, other) for one, other in zip(found, matrices(3), strict=True))
    audit(device)


def test_a_full_host_is_named(make_device: Make) -> None:
    device, script = make_device(memory_bytes=4 * MIB, host_bytes=2 * MIB), Script()
    values = [script.load(weight) for weight in matrices(8)]
    outcome = device.try_run("ann", script.program(keep=tuple(values)))
    assert outcome.failure is not None
    assert outcome.failure.family == "memory"
    assert "the host tier is full" in outcome.failure.message
    audit(device)


def test_the_disk_takes_what_the_host_should_not(make_device: Make) -> None:
    device, script = make_device(memory_bytes=4 * MIB, host_bytes=8 * MIB, disk_bytes=32 * MIB), Script()
    values = keep(device, "ann", script, *matrices(12))
    memory = device.memory()
    assert memory.host_bytes == 0
    assert memory.disk_bytes >= 8 * MIB
    found = fetch(device, "ann", script, *values)
    assert all(torch.equal(one, other) for one, other in zip(found, matrices(12), strict=True))
    audit(device)


def test_a_parked_session_comes_back_as_far_as_it_fits(make_device: Make) -> None:
    device, script, weights = make_device(memory_bytes=4 * MIB), Script(), matrices(9)
    values = keep(device, "ann", script, *weights)
    offloaded = device.memory().offloaded_bytes["ann"]
    device.park("ann")
    assert device.memory().used_bytes == 0
    audit(device)
    device.restore("ann")
    audit(device)
    assert device.memory().offloaded_bytes["ann"] == offloaded
    found = fetch(device, "ann", script, *values)
    assert all(torch.equal(one, other) for one, other in zip(found, weights, strict=True))


def test_another_process_takes_over_all_of_it(make_device: Make) -> None:
    """What it does not bring to its device it copies to its own host: the other's memory goes with it."""
    there, here = make_device(memory_bytes=4 * MIB), make_device(memory_bytes=3 * MIB)
    script, weights = Script(), matrices(9)
    values = keep(there, "ann", script, *weights)
    stored = there.park("ann")
    assert stored.manifest is not None
    here.restore("ann", manifest=stored.manifest)
    there.interpreter.drop_parked("ann")
    audit(there)
    audit(here)
    assert here.memory().session_bytes["ann"] <= 3 * MIB
    found = fetch(here, "ann", script, *values)
    assert all(torch.equal(one, other) for one, other in zip(found, weights, strict=True))
    audit(here)


@pytest.mark.parametrize("stop_at", [1, 5, 9])
def test_a_preempted_run_resumes_where_it_stopped(make_device: Make, stop_at: int) -> None:
    device, script, weights = make_device(memory_bytes=5 * MIB), Script(), matrices(12)
    values, product = chain(device, script, weights, uploaded=True)
    program = script.program(keep=(*values, product))
    asked = iter([None] * (len(values) + stop_at))
    stopped = device.try_run("ann", program, lambda: next(asked, "preempted"))
    assert stopped.stopped == "preempted"
    audit(device)
    device.park("ann")
    device.restore("ann")
    resumed = device.try_run("ann", program, resume=Resume(stopped.executed, stopped.rng_state))
    assert resumed.failure is None
    audit(device)
    found = fetch(device, "ann", script, product)
    torch.testing.assert_close(found[0], product_of(weights))


def test_two_sessions_share_the_weights_that_are_on_the_device(make_device: Make) -> None:
    device, weights = make_device(memory_bytes=6 * MIB), matrices(8)
    scripts = {"ann": Script(), "bob": Script()}
    small = weights[:2]
    bobs = [scripts["bob"].load(weight, device.blob(weight, f"weight{i}")) for i, weight in enumerate(small)]
    device.run("bob", scripts["bob"].program(keep=tuple(bobs)))
    values, product = chain(device, scripts["ann"], weights, uploaded=True)
    device.run("ann", scripts["ann"].program(keep=(*values, product)))
    audit(device)
    assert device.memory().shared_bytes == 2 * MIB  # another session looks at them: they cannot leave
    found = fetch(device, "bob", scripts["bob"], *bobs)
    assert all(torch.equal(one, other) for one, other in zip(found, small, strict=True))
    found = fetch(device, "ann", scripts["ann"], *values)
    assert all(torch.equal(one, other) for one, other in zip(found, weights, strict=True))


def test_released_values_free_the_host(make_device: Make) -> None:
    device, script = make_device(memory_bytes=4 * MIB), Script()
    values = keep(device, "ann", script, *matrices(9))
    device.run("ann", script.program(release=values))
    memory = device.memory()
    assert (memory.used_bytes, memory.host_bytes, memory.offloaded_bytes) == (0, 0, {})


@pytest.mark.parametrize("seed", range(12))
def test_the_plan_says_what_is_moved(make_device: Make, seed: int) -> None:
    """Programs of sums and writes in place: the worker moves what the scheduler planned, but for values of
    equal bytes, of which the host has one copy."""
    chosen, script = random.Random(seed), Script()
    values = [script.load(weight) for weight in matrices(7)]
    for _ in range(20):
        first, second = chosen.sample(values, 2)
        if chosen.random() < 0.3:
            script.write("aten.add_.Tensor", first, second)
        else:
            values.append(script.op("aten.add.Tensor", first, second))
    program = script.program(keep=tuple(chosen.sample(values, 6)), fetch=tuple(chosen.sample(values, 2)))
    device = make_device(memory_bytes=5 * MIB)
    outcome = device.run("ann", program)
    srg = SRG.from_program(program)
    plan = offload_plan(srg, range(len(srg.nodes)), 5 * MIB)
    assert plan is not None
    assert plan.in_bytes == outcome.in_bytes
    assert 0 < 0.75 * plan.out_bytes <= outcome.out_bytes <= plan.out_bytes


def test_an_op_whose_result_depends_on_data_finds_memory(make_device: Make) -> None:
    """What it needs is known when it has run."""
    device, script = make_device(memory_bytes=8 * MIB), Script()
    values = keep(device, "ann", script, *matrices(7))
    found = script.dynamic("aten.nonzero.default", values[0])
    outcome = device.run("ann", script.program(keep=(found,)))
    assert outcome.out_bytes > 0
    kept = fetch(device, "ann", script, *values)
    assert all(torch.equal(one, other) for one, other in zip(kept, matrices(7), strict=True))
    audit(device)


def test_nothing_is_offloaded_to_a_disk_alone(make_device: Make) -> None:
    device, script = make_device(memory_bytes=4 * MIB, host_bytes=0, disk_bytes=64 * MIB), Script()
    outcome = device.try_run("ann", script.program(keep=tuple(script.load(one) for one in matrices(6))))
    assert outcome.failure is not None
    assert outcome.failure.family == "memory"


def test_weights_come_back_while_the_ops_before_them_run(make_device: Make) -> None:
    """Nothing more is moved for it: the plan, which knows nothing of it, says the same bytes."""
    device, script, weights = make_device(memory_bytes=6 * MIB), Script(), matrices(12)
    values, product = chain(device, script, weights, uploaded=True)
    device.run("ann", script.program(keep=(*values, product)))
    again = values[0]
    for value in values[1:]:
        again = script.op("aten.mm.default", again, value)
        again = script.op("aten.relu.default", again)
    outcome = device.run("ann", script.program(fetch=(again,)))
    assert outcome.in_bytes >= 6 * MIB
    assert outcome.ahead_bytes > 0.5 * outcome.in_bytes
    audit(device)
