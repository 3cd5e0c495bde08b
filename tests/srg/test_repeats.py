"""Rows of equal blocks among the calls of a graph."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import LAYER, Script

from djinn_lab.scheduler import Scheduler
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.merging import merge_programs
from djinn_lab.srg.patterns.repeats import Repeats, find_repeats

calls = st.lists(st.integers(0, 6), max_size=40)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ([], None),
        ([1, 2, 3], None),
        ([9, 1, 2, 1, 2, 1, 2, 8], Repeats(1, 2, 3)),
        ([1, 1, 1], Repeats(0, 1, 3)),
        ([5, 1, 2, 2, 1, 2, 2, 7], Repeats(1, 3, 2)),
    ],
)
def test_the_longest_row_of_equal_blocks_is_found(found: list[int], wanted: Repeats | None) -> None:
    assert find_repeats(found) == wanted


@given(calls)
def test_blocks_that_are_found_are_equal(found: list[int]) -> None:
    repeats = find_repeats(found)
    if repeats is not None:
        blocks = [
            found[start : start + repeats.length]
            for start in range(repeats.first, repeats.last + 1, repeats.length)
        ]
        assert len(blocks) == repeats.blocks > 1
        assert all(block == blocks[0] for block in blocks)


def test_a_schedule_says_which_blocks_repeat_and_how_many_calls_were_priced() -> None:
    script = Script(0, LAYER)
    value = script.source((4, 8))
    for _ in range(5):
        weight = script.source((8, 8), "weight")
        value = script.op("aten.mm.default", value, weight, shape=(4, 8))
        value = script.op("aten.relu.default", value, shape=(4, 8))
    schedule = Scheduler().create_schedule(SRG.from_program(script.program()))
    assert (
        "Repeats: nodes 0 to 9 are 5 equal blocks of 2; 2 different calls were priced for 10 nodes."
        in schedule.explain()
    )


def test_a_graph_that_was_sent_in_parts_repeats_as_if_it_were_whole() -> None:
    script = Script(0, LAYER)
    value, parts = script.source((4, 8)), []
    for _ in range(3):
        value = script.op("aten.relu.default", value, shape=(4, 8))
        value = script.op("aten.neg.default", value, shape=(4, 8))
        parts.append(script.program(keep=(value,)))
    assert find_repeats(SRG.from_program(merge_programs(parts)).calls) == Repeats(0, 2, 3)
