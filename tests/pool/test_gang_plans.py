"""Whether a cell is worth several devices, and the reason that its user gets."""

from __future__ import annotations

import pytest
import torch
from programs import Script

from djinn_lab.pool.gangs import layouts
from djinn_lab.pool.gangs import plans as gang_plans
from djinn_lab.pool.gangs.layouts import LayoutCache
from djinn_lab.pool.gangs.plans import GangDecision, decide_gang
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.plan_key import plan_key
from djinn_lab.srg.program import Program, encode_program

FLOPS_PER_S = 1e9
CURVES = DeviceCurves.of_rates(FLOPS_PER_S, 1e10, 1e-6)
SIZE = 100
STEP_S = 2 * SIZE**3 / FLOPS_PER_S


def search(branches: int, steps: int) -> Program:
    """Make a program of independent chains of matrix products, 2 ms each."""
    script = Script()
    ends = []
    for _ in range(branches):
        value = start = script.load(torch.eye(SIZE))
        for _ in range(steps):
            value = script.op("aten.mm.default", value, start)
        ends.append(value)
    return script.program(fetch=tuple(ends))


def layers(depth: int, experts: int) -> Program:
    """Make a program of layers: chains of ten matrix products side by side, whose sum is the next one's
    input."""
    script = Script()
    value = script.load(torch.eye(SIZE))
    for _ in range(depth):
        ends = []
        for _ in range(experts):
            end = value
            for _ in range(10):
                end = script.op("aten.mm.default", end, value)
            ends.append(end)
        value = ends[0]
        for end in ends[1:]:
            value = script.op("aten.add.Tensor", value, end)
    return script.program(fetch=(value,))


def judged(program: Program, asked: int = 2, pool: int = 2, known: LayoutCache | None = None) -> GangDecision:
    return decide_gang(
        program, asked, pool, CURVES, known or LayoutCache(), plan_key(encode_program(program))
    )


def test_a_search_is_worth_as_many_devices_as_were_asked_for() -> None:
    found = judged(search(4, 50), asked=4, pool=8)
    assert found.devices == 4
    assert found.why == ""
    assert found.predicted_s is not None
    assert 50 * STEP_S < found.predicted_s < 60 * STEP_S


def test_gang_with_fewer_branches_or_devices_than_asked_says_why() -> None:
    assert judged(search(3, 50), asked=4, pool=8).why == (
        "It uses 3 of the 4 devices that it asked for: its graph has 3 branches."
    )
    found = judged(search(4, 50), asked=4, pool=2)
    assert found.devices == 2
    assert found.why == "It uses 2 of the 4 devices that it asked for: this pool has 2."
    assert judged(search(2, 50), asked=8, pool=4).why == (
        "It uses 2 of the 8 devices that it asked for: its graph has 2 branches."
    )


def test_gang_that_costs_more_than_it_saves_says_the_numbers() -> None:
    found = judged(search(2, 2))
    assert found.devices == 1
    assert found.why.startswith("It runs on one device: it needs about 8.")
    assert found.why.endswith(" on 2, with 78.1 KiB to be moved.")


def test_a_chain_has_no_branches() -> None:
    found = judged(search(1, 50))
    assert (found.devices, found.plan) == (1, None)
    assert found.why == "It runs on one device: its graph has no parts that could run side by side."


def test_layers_whose_experts_run_side_by_side_are_worth_several_devices() -> None:
    """They are joined after every layer: no branch goes from the first to the last."""
    for devices in (2, 4):
        found = judged(layers(6, 4), asked=devices, pool=devices)
        assert (found.devices, found.why) == (devices, "")
        assert found.plan is not None
        assert found.predicted_s is not None
        assert found.predicted_s < 1.4 * 240 * STEP_S / devices
        assert any(group.after for group in found.plan.groups)
        nodes = [node for group in found.plan.groups for node in group.nodes]
        assert len(nodes) == len(set(nodes))
    few = judged(layers(6, 2), asked=4, pool=4)
    assert few.why == ("It uses 2 of the 4 devices that it asked for: more than 2 would not make it faster.")


def test_very_long_programs_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_plans, "OPS_MAX", 99)
    assert "it has 100 ops, and branches are looked for in up to 99" in judged(search(2, 50)).why


def test_a_device_that_turns_out_to_be_faster_does_not_change_what_is_worth_it() -> None:
    """Branches found at a guessed speed lead to the same decision as those found at the measured speed."""
    known, program = LayoutCache(), search(4, 50)
    key = plan_key(encode_program(program))
    guessed = decide_gang(program, 2, 2, CURVES, known, key)
    faster = DeviceCurves.of_rates(3 * FLOPS_PER_S, 1e10, 1e-6)
    measured = decide_gang(program, 2, 2, faster, known, key)
    assert (guessed.devices, measured.devices) == (2, 2)
    assert measured == decide_gang(program, 2, 2, faster, LayoutCache(), key)


def test_equal_programs_are_looked_into_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = LayoutCache()
    first = judged(search(2, 50), known=known)
    monkeypatch.setattr(layouts, "BranchFinder", None)
    again = judged(search(2, 50), known=known)
    assert again == first
    assert first.devices == 2


def test_branch_cache_beyond_its_ops_limit_forgets_the_oldest_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cache is limited by the ops of its programs, not only by their number."""
    known = LayoutCache(ops_max=350)
    for branches in (6, 4, 2):  # 300, 200 and 100 ops
        judged(search(branches, 50), known=known)
    looked = []
    finder = layouts.BranchFinder
    monkeypatch.setattr(
        layouts, "BranchFinder", lambda program, seconds: looked.append(1) or finder(program, seconds)
    )
    for branches, looks in ((2, 0), (4, 0), (6, 1)):
        judged(search(branches, 50), known=known)
        assert len(looked) == looks
