"""Where a program falls apart into branches, and where it does not."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from programs import HOLE, Script, contiguous

from djinn_lab.srg.branches import COPIED, EPILOGUE, PRELUDE, Branches, BranchFinder
from djinn_lab.srg.parting import part_program
from djinn_lab.srg.program import Program, TensorMeta

SQUARE = torch.eye(4)


def best(program: Program, devices: int = 2) -> Branches:
    found = BranchFinder(program, [1.0] * len(program.nodes)).best(devices)
    assert found is not None
    return found


def chain(script: Script, value: int, ops: int) -> int:
    """With a fork and a join in every step."""
    for _ in range(ops):
        value = script.op("aten.add.Tensor", value, script.op("aten.relu.default", value))
    return value


def test_four_chains_are_four_branches_and_two_for_each_of_two_devices() -> None:
    script = Script()
    ends = [chain(script, script.load(SQUARE), 5) for _ in range(4)]
    found = best(script.program(fetch=tuple(ends)))
    assert found.branch_s == (10.0,) * 4
    assert found.home_s == 0
    assert [len(group) for group in found.groups(2)] == [2, 2]
    assert found.makespan_s(2) == 20


def test_what_they_share_comes_first_and_what_joins_them_last() -> None:
    script = Script()
    shared = chain(script, script.load(SQUARE), 3)
    ends = [chain(script, shared, 10) for _ in range(3)]
    total = ends[0]
    for end in ends[1:]:
        total = script.op("aten.add.Tensor", total, end)
    found = best(script.program(fetch=(total,)), devices=3)
    assert found.branch_s == (20.0,) * 3
    assert found.places[:6] == (PRELUDE,) * 6
    assert found.places[-2:] == (EPILOGUE,) * 2


def test_one_chain_is_no_gang() -> None:
    script = Script()
    program = script.program(fetch=(chain(script, script.load(SQUARE), 50),))
    seconds = [1.0] * len(program.nodes)
    assert BranchFinder(program, seconds).best(2) is None


def test_random_numbers_are_drawn_at_home_in_their_order() -> None:
    script = Script()
    ends = []
    for _ in range(2):
        noise = script.op("aten.rand_like.default", script.load(SQUARE))
        ends.append(chain(script, noise, 20))
    found = best(script.program(fetch=tuple(ends), rng_state=b"state"))
    assert [place for place in found.places if place == PRELUDE] == [PRELUDE, PRELUDE]
    assert len(found.branch_s) == 2


def test_unused_random_numbers_are_drawn_once() -> None:
    """Such as those of a result that was not asked for: what is drawn after them depends on it."""
    script = Script()
    ends = [chain(script, script.load(SQUARE), 20) for _ in range(2)]
    script.op("aten.rand.default", meta=contiguous(4), args=[[4]])
    program = script.program(fetch=tuple(ends), rng_state=b"state")
    *chains, draw = program.nodes
    draw = replace(draw, outputs=(None,), output_metas=(None,), storages=(None,))
    program = replace(program, nodes=[*chains, draw])
    found = best(program)
    assert found.places[-1] == PRELUDE
    parts = part_program(program, found.places, found.groups(2))
    assert parts.prelude is not None
    assert parts.prelude.nodes == (len(chains),)


def test_branches_that_draw_what_depends_on_them_stay_together() -> None:
    script = Script()
    ends = []
    for _ in range(2):
        value = chain(script, script.load(SQUARE), 20)
        ends.append(
            script.op("aten.mul.Tensor", value, script.op("aten.bernoulli.p", value, args=[HOLE, 0.5]))
        )
    program = script.program(fetch=tuple(ends), rng_state=b"state")
    found = BranchFinder(program, [1.0] * len(program.nodes)).best(2)
    assert found is None or found.makespan_s(2) > 0.9 * len(program.nodes)


def test_chain_reading_what_another_writes_shares_its_branch() -> None:
    """The second chain reads what the first writes."""
    script = Script()
    shared = script.load(SQUARE)
    first = chain(script, script.load(SQUARE), 5)
    script.write("aten.copy_.default", shared, first)
    second = chain(script, shared, 5)
    program = script.program(fetch=(first, second))
    finder = BranchFinder(program, [1.0] * len(program.nodes))
    found = finder.at(0, 0)
    assert found is not None
    assert len(found.branch_s) == 1


def test_views_of_unwritten_values_are_made_by_every_part() -> None:
    script = Script()
    images = script.load(SQUARE)
    turned = script.op("aten.t.default", images, meta=TensorMeta("float32", (4, 4), (1, 4)), view=True)
    ends = [chain(script, script.op("aten.mm.default", turned, script.load(SQUARE)), 9) for _ in range(2)]
    program = script.program(fetch=tuple(ends))
    found = best(program)
    assert found.places[0] == COPIED
    parts = part_program(program, found.places, found.groups(2))
    assert all(0 in group.nodes for group in parts.groups)
    assert parts.prelude is None


def test_only_what_is_needed_elsewhere_travels() -> None:
    """A weight of the session that a branch writes goes there and back; what only it uses stays where it
    is."""
    script = Script()
    weights = [script.load(SQUARE) for _ in range(2)]
    script.program(keep=tuple(weights))
    for weight in weights:
        step = chain(script, weight, 9)
        script.write("aten.add_.Tensor", weight, step)
    program = script.program()
    found = best(program)
    parts = part_program(program, found.places, found.groups(2))
    assert parts.prelude is not None
    assert parts.prelude.exports == tuple(weights) == parts.undo
    assert [group.exports for group in parts.groups] == [(weights[0],), (weights[1],)]
    assert parts.epilogue.imports == tuple(weights)
    assert parts.made == ()
    nbytes = contiguous(4, 4).nbytes
    assert parts.prelude.exported_bytes == parts.epilogue.imported_bytes == 2 * nbytes
    assert [(group.imported_bytes, group.exported_bytes) for group in parts.groups] == [(nbytes, nbytes)] * 2


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 5))
def test_branches_of_any_length_are_laid_once_each_and_about_evenly(lengths: list[int], devices: int) -> None:
    script = Script()
    program = script.program(fetch=tuple(chain(script, script.load(SQUARE), length) for length in lengths))
    found = BranchFinder(program, [1.0] * len(program.nodes)).at(0, 0)
    assert found is not None
    laid = [branch for group in found.groups(devices) for branch in group]
    assert sorted(laid) == list(range(len(lengths)))
    longest, even = 2.0 * max(lengths), 2.0 * sum(lengths) / devices
    assert max(longest, even) <= found.makespan_s(devices) + 1e-9
    # What any list scheduling keeps to: Graham, Bounds on multiprocessing timing anomalies, SIAM 1969.
    assert found.makespan_s(devices) <= even + (1 - 1 / devices) * longest + 1e-9
