"""The shortest makespan of tasks over devices, by OR-tools' CP-SAT."""

from __future__ import annotations

from ortools.sat.python import cp_model

from djinn_lab.scheduler.makespan import TaskGraph

TICKS = 1000
"""In a second: the solver counts in whole numbers."""


def exact_makespan_s(graph: TaskGraph) -> float:
    """Return the shortest makespan there is, in milliseconds of precision. For up to some twenty tasks."""
    model = cp_model.CpModel()
    horizon = _ticks(sum(map(max, graph.seconds)) + sum(seconds for *_, seconds in graph.edges))
    begins = [model.new_int_var(0, horizon, "") for _ in graph.seconds]
    ends = [model.new_int_var(0, horizon, "") for _ in graph.seconds]
    on = [[model.new_bool_var("") for _ in row] for row in graph.seconds]
    for places in on:
        model.add_exactly_one(places)
    for device in range(graph.devices):
        model.add_no_overlap(
            model.new_optional_interval_var(
                begins[task], _ticks(row[device]), ends[task], on[task][device], ""
            )
            for task, row in enumerate(graph.seconds)
        )
    for before, after, seconds in graph.edges:
        model.add(begins[after] >= ends[before])
        for device in range(graph.devices):
            apart = model.add(begins[after] >= ends[before] + _ticks(seconds))
            apart.only_enforce_if(on[before][device], on[after][device].negated())
    makespan = model.new_int_var(0, horizon, "")
    model.add_max_equality(makespan, ends)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return float(solver.objective_value) / TICKS


def _ticks(seconds: float) -> int:
    return round(seconds * TICKS)
