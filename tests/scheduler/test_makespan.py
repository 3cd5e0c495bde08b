"""Tasks laid over devices: every schedule is possible, never longer than HEFT's, and on small graphs about as
short as an exact solver's."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.exact_makespan import exact_makespan_s
from djinn_lab.scheduler.makespan import Laid, TaskGraph, heft, lay


@st.composite
def graphs(draw: st.DrawFn, tasks_max: int, devices_max: int = 4) -> TaskGraph:
    """Draw tasks of up to ten seconds on devices of different speed, with up to three edges into each."""
    devices = draw(st.integers(1, devices_max))
    tasks = draw(st.integers(1, tasks_max))
    seconds = st.integers(0, 100).map(lambda tenths: tenths / 10)
    rows = tuple(tuple(draw(seconds) for _ in range(devices)) for _ in range(tasks))
    edges = tuple(
        (before, task, draw(seconds) / 5)
        for task in range(1, tasks)
        for before in sorted(draw(st.sets(st.integers(max(0, task - 6), task - 1), max_size=3)))
    )
    return TaskGraph(rows, edges)


def assert_possible(graph: TaskGraph, laid: Laid) -> None:
    ends = [
        start + graph.seconds[task][device]
        for task, (start, device) in enumerate(zip(laid.start_s, laid.device, strict=True))
    ]
    for before, after, seconds in graph.edges:
        apart_s = seconds if laid.device[before] != laid.device[after] else 0.0
        assert laid.start_s[after] >= ends[before] + apart_s - 1e-9
    for device in range(graph.devices):
        own = sorted((laid.start_s[t], ends[t]) for t in range(len(ends)) if laid.device[t] == device)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(own))
    assert laid.makespan_s == pytest.approx(max(ends))


@settings(max_examples=100, deadline=None)
@given(graphs(tasks_max=30))
def test_any_schedule_is_possible_and_never_longer_than_heft_or_one_device(graph: TaskGraph) -> None:
    by_heft, laid = heft(graph), lay(graph, looks=5_000)
    assert_possible(graph, by_heft)
    assert_possible(graph, laid)
    alone_s = min(graph.alone_s(device) for device in range(graph.devices))
    assert laid.makespan_s <= min(by_heft.makespan_s, alone_s) + 1e-9
    assert laid.makespan_s >= graph.longest_way_s() - 1e-9
    assert lay(graph, looks=5_000) == laid


@settings(max_examples=8, deadline=None)
@given(graphs(tasks_max=9, devices_max=3))
def test_small_graphs_are_laid_about_as_well_as_by_an_exact_solver(graph: TaskGraph) -> None:
    assert lay(graph).makespan_s <= 1.05 * exact_makespan_s(graph) + 1e-9


def test_heft_finds_the_schedule_of_its_paper() -> None:
    """The graph of figure 2 and table 2 in Topcuoglu, Hariri and Wu: HEFT takes 80."""
    seconds = (
        (14, 16, 9),
        (13, 19, 18),
        (11, 13, 19),
        (13, 8, 17),
        (12, 13, 10),
        (13, 16, 9),
        (7, 15, 11),
        (5, 11, 14),
        (18, 12, 20),
        (21, 7, 16),
    )
    edges = (
        *((1, 2, 18), (1, 3, 12), (1, 4, 9), (1, 5, 11), (1, 6, 14), (2, 8, 19), (2, 9, 16), (3, 7, 23)),
        *((4, 8, 27), (4, 9, 23), (5, 9, 13), (6, 8, 15), (7, 10, 17), (8, 10, 11), (9, 10, 13)),
    )
    graph = TaskGraph(
        tuple(tuple(float(one) for one in row) for row in seconds),
        tuple((before - 1, after - 1, float(s)) for before, after, s in edges),
    )
    assert heft(graph).makespan_s == 80
    assert lay(graph).makespan_s == exact_makespan_s(graph) == 73


@pytest.mark.parametrize(
    ("seconds", "edges", "message"),
    [
        (((1.0,), (1.0, 2.0)), (), "on each of the devices"),
        (((-1.0,),), (), "zero or more"),
        (((float("nan"),),), (), "zero or more"),
        (((1.0,), (1.0,)), ((1, 0, 0.5),), "no edge of 2 tasks"),
        (((1.0,), (1.0,)), ((0, 1, -0.5),), "no edge of 2 tasks"),
    ],
)
def test_what_is_no_graph_of_tasks_is_refused(
    seconds: tuple[tuple[float, ...], ...], edges: tuple[tuple[int, int, float], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TaskGraph(seconds, edges)
