"""Which tasks a program falls into, and what travels between them."""

from __future__ import annotations

import torch
from programs import Script

from djinn_lab.srg.branches import EPILOGUE, PRELUDE
from djinn_lab.srg.program import Program
from djinn_lab.srg.tasks import Tasks, find_tasks

SQUARE = torch.eye(4)
BYTES = 4 * 4 * 4


def tasks_of(program: Program, grain: float = 0.0) -> Tasks:
    found = find_tasks(program, [1.0] * len(program.nodes), grain)
    assert found is not None
    return found


def block(script: Script, value: int, ops: int = 5) -> int:
    """With a residual connection round each op."""
    for _ in range(ops):
        value = script.op("aten.add.Tensor", value, script.op("aten.relu.default", value))
    return value


def experts(script: Script, value: int, layers: int, count: int = 2) -> int:
    """Experts side by side in every layer, whose results are added."""
    for _ in range(layers):
        ends = [block(script, value) for _ in range(count)]
        value = ends[0]
        for end in ends[1:]:
            value = script.op("aten.add.Tensor", value, end)
    return value


def test_layers_of_experts_are_tasks_that_feed_the_next_layer() -> None:
    script = Script()
    found = tasks_of(script.program(fetch=(experts(script, script.load(SQUARE), 3),)))
    assert sorted(found.seconds) == [1.0] * 3 + [10.0] * 6
    assert len(found.edges) == 3 * 2 + 2 * 2
    assert {nbytes for *_, nbytes in found.edges} == {BYTES}


def test_short_tasks_are_joined_with_one_neighbour() -> None:
    """What adds two experts has two before it and two after it: only the last one has one neighbour less."""
    script = Script()
    found = tasks_of(script.program(fetch=(experts(script, script.load(SQUARE), 3),)), grain=2.0)
    assert sorted(found.seconds) == [1.0] * 3 + [10.0] * 6
    fine = tasks_of(script.program(fetch=(block(script, experts(script, script.load(SQUARE), 3), 1),)))
    assert sorted(fine.seconds) == [1.0] * 2 + [3.0] + [10.0] * 6


def test_steps_of_a_stacked_recurrent_network_are_a_wavefront() -> None:
    """Each cell waits for the one below it and for the one before it."""
    script, steps, layers = Script(), 4, 3
    hidden = [script.load(SQUARE) for _ in range(layers)]
    for _ in range(steps):
        value = script.load(SQUARE)
        for layer in range(layers):
            value = script.op("aten.mm.default", hidden[layer], value)
            value = hidden[layer] = block(script, value)
    found = tasks_of(script.program(keep=tuple(hidden)))
    assert found.seconds == (11.0,) * (steps * layers)
    assert len(found.edges) == steps * (layers - 1) + layers * (steps - 1)


def test_a_chain_has_no_tasks() -> None:
    script = Script()
    program = script.program(fetch=(block(script, script.load(SQUARE), 50),))
    assert find_tasks(program, [1.0] * len(program.nodes), 0.0) is None


def test_what_is_written_in_place_is_read_elsewhere_after_its_last_write() -> None:
    script = Script()
    first, second = (block(script, script.load(SQUARE)) for _ in range(2))
    early = script.op("aten.relu.default", first)
    script.write("aten.add_.Tensor", first, early)
    ends = [block(script, script.op("aten.mm.default", first, second)) for _ in range(2)]
    program = script.program(fetch=tuple(ends))
    found = tasks_of(program)
    writer = next(
        index
        for index, node in enumerate(program.nodes)
        if program.templates[node.template].op == "aten.add_.Tensor"
    )
    assert found.places[writer - 1] == found.places[writer] == found.places[0]
    assert sorted(found.seconds) == [10.0, 11.0, 11.0, 12.0]


def test_what_the_session_has_is_written_at_its_end_where_others_read_it() -> None:
    """Weights are read by every step; what only one op touches is written by it."""
    script = Script()
    weight, average = (script.load(SQUARE) for _ in range(2))
    script.program(keep=(weight, average))
    ends = [block(script, script.op("aten.mm.default", weight, script.load(SQUARE))) for _ in range(2)]
    script.write("aten.add_.Tensor", average, ends[0])
    for end in ends:
        script.write("aten.add_.Tensor", weight, end)
    program = script.program()
    found = tasks_of(program)
    assert found.places[-3:] == (EPILOGUE,) * 3
    assert found.home_bytes == (BYTES, BYTES)


def test_random_numbers_are_drawn_first_at_home() -> None:
    script = Script()
    noise = [script.op("aten.rand_like.default", script.load(SQUARE)) for _ in range(2)]
    ends = [block(script, one) for one in noise]
    found = tasks_of(script.program(fetch=tuple(ends), rng_state=b"state"))
    assert found.places[:2] == (PRELUDE, PRELUDE)
    assert found.home_bytes == (BYTES, BYTES)
