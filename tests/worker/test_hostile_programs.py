"""Programs that no capture records: they reach no memory but their own, and take none uncounted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from programs import HOLE, Script
from worker_kit import MIB, Device

from djinn_lab.srg.program import ScalarHole, TensorMeta

FLOATS = 4000


@pytest.fixture(params=["native", "python"])
def device(request: pytest.FixtureRequest, make_device: Callable[..., Device]) -> Device:
    return make_device(native=request.param == "native")


@pytest.mark.parametrize("op", ["aten._reshape_alias.default", "aten.as_strided.default"])
def test_a_view_stays_within_its_tensors_memory(device: Device, op: str) -> None:
    script = Script()
    mine = script.op("aten.clone.default", script.load(torch.zeros(4)))
    beyond = TensorMeta("float32", (FLOATS,), (1,))
    view = script.op(op, mine, meta=beyond, args=[HOLE, [FLOATS], [1]], view=True)
    outcome = device.try_run("bob", script.program(fetch=(script.op("aten.clone.default", view),)))
    assert outcome.failure is not None
    assert outcome.failure.family == "user"
    assert "out of bounds" in outcome.failure.message


def test_a_view_within_its_tensors_memory_equals_torch(device: Device) -> None:
    script = Script()
    given = torch.arange(6.0)
    mine = script.op("aten.clone.default", script.load(given))
    meta = TensorMeta("float32", (2, 2), (3, 1))
    view = script.op("aten._reshape_alias.default", mine, meta=meta, args=[HOLE, [2, 2], [3, 1]], view=True)
    [found] = device.fetch("bob", script.program(fetch=(view,)))
    assert torch.equal(found, given.as_strided((2, 2), (3, 1)))


@pytest.mark.parametrize("op", ["aten.empty_strided.default", "aten.new_empty_strided.default"])
def test_gaps_between_elements_are_zero(device: Device, op: str) -> None:
    script = Script()
    used = script.op(
        "aten.add.Tensor", script.load(torch.full((FLOATS,), 7.0)), script.load(torch.ones(FLOATS))
    )
    device.run("ann", script.program(fetch=(used,)))  # freed again: the allocator may hand it on
    script = Script(1000)
    given = (script.load(torch.zeros(1)),) if "new" in op else ()
    sparse = TensorMeta("float32", (2,), (FLOATS - 1,))
    args = [*(HOLE for _ in given), [2], [FLOATS - 1]]
    made = script.op(op, *given, meta=sparse, args=args)
    whole = TensorMeta("float32", (FLOATS,), (1,))
    view = script.op("aten.as_strided.default", made, meta=whole, args=[HOLE, [FLOATS], [1]], view=True)
    [found] = device.fetch("bob", script.program(fetch=(view,)))
    assert torch.equal(found, torch.zeros(FLOATS))


def test_statistics_that_an_op_updates_are_the_sessions_own(device: Device) -> None:
    shared = torch.zeros(3)
    blob = device.blob(shared, "shared")
    scripts = {"ann": Script(), "bob": Script()}
    held = {}
    for name, script in scripts.items():
        mean, var = script.load(shared, blob), script.load(torch.ones(3))
        held[name] = (mean, var)
        device.run(name, script.program(keep=(mean, var)))
    script = scripts["bob"]
    batch = script.op("aten.clone.default", script.load(torch.full((2, 3, 4), 8.0)))
    args = [HOLE, HOLE, HOLE, ScalarHole()]
    script.op(
        "aten.batch_norm_update_stats.default", batch, *held["bob"], shape=(3,), args=args, scalars=(0.5,)
    )
    device.try_run("bob", script.program(keep=held["bob"]))
    [of_ann] = device.fetch("ann", scripts["ann"].program(fetch=held["ann"][:1]))
    assert torch.equal(of_ann, shared)
    assert (device.directory / blob).read_bytes() == bytes(12)


def test_memory_is_charged_for_sizes_known_only_afterwards(make_device: Callable[..., Device]) -> None:
    device = make_device(memory_bytes=MIB)
    script = Script()
    flags = script.op("aten.clone.default", script.load(torch.ones(100_000, dtype=torch.bool)))
    found = script.dynamic("aten.nonzero.default", flags)  # 800,000 bytes beside 200,000
    outcome = device.try_run("bob", script.program(keep=(flags, found)))
    assert outcome.failure is None
    assert device.memory().used_bytes >= 900_000
    script = Script(1000)
    more = script.op("aten.clone.default", script.load(torch.ones(20_000, dtype=torch.bool)))
    outcome = device.try_run("ann", script.program(keep=(more, script.dynamic("aten.nonzero.default", more))))
    assert outcome.failure is not None
    assert outcome.failure.family == "memory"
    assert device.memory().used_bytes <= MIB
