"""Measure how far the cost model's predictions of run time and peak memory are off, on programs that it
never saw.

Small models in random configurations are captured by the recorder and run by the interpreter in a process of
its own, with one thread, as a pool on this machine gives a CPU device. That process measures its device
first, as workers do. Beside: the roofline of three rates that the curves replaced, over the same runs."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import msgspec
import torch

from benchmarks.bench import Bench
from benchmarks.cost_model_graphs import FAMILIES, Graph, held_out_graphs
from benchmarks.cost_model_player import Captured, Played, Player, captured
from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.samples import percentile
from djinn_lab.memory import predict_peak_bytes
from djinn_lab.srg.costs import Work, node_costs, work_of
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.families import FamilyWork
from djinn_lab.srg.program import Program, decode_program
from djinn_lab.srg.wiring import trace_wiring

NAME = "cost-model"
SEED = 20260101
GRAPHS_EACH, GRAPHS_EACH_QUICK = 18, 1
RUNS = 6
"""Of a graph, and one before that does not count."""
MEASURE_EVERY = 24
"""Graphs between two measurements of the device, since a machine changes."""
THREADS = 1
ROOFLINE = "roofline"
MEDIAN_GOAL, P90_GOAL = 0.2, 0.4
COMPARED_BYTES_MIN = 2**16
"""Of less, a peak is mostly what the session holds already."""


class Compared(NamedTuple):
    """One graph. Seconds, and bytes of its fullest program."""

    family: str
    measured_s: float
    predicted_s: float
    roofline_s: float
    measured_bytes: int
    predicted_bytes: int
    ops: int
    unpriced: tuple[str, ...]


def measure(bench: Bench) -> list[Figure]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(THREADS)
    each = bench.rounds(GRAPHS_EACH, GRAPHS_EACH_QUICK)
    with Player(THREADS) as player, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own about small configurations
        compared = _compare(player, list(held_out_graphs(SEED, each)))
    families = [figure for family in FAMILIES for figure in _errors(family, _of(compared, family))]
    return [*families, *_all(compared)]


def _of(compared: Sequence[Compared], family: str) -> list[Compared]:
    return [one for one in compared if one.family == family]


def _compare(player: Player, graphs: Sequence[Graph]) -> list[Compared]:
    """Alternate over families, so that what changes on the machine meets all of them."""
    found = []
    by_turn = sorted(graphs, key=lambda graph: int(graph.name.rsplit(maxsplit=1)[1]))
    for number, graph in enumerate(by_turn):
        if number % MEASURE_EVERY == 0:
            curves = msgspec.msgpack.decode(player.measure(), type=DeviceCurves)
        with captured(graph, RUNS + 1) as programs:
            found.append(_compared(graph, programs, player.play(programs), curves))
    return found


def _compared(
    graph: Graph, captured: Captured, played: Sequence[Sequence[Played]], curves: DeviceCurves
) -> Compared:
    """The first cell builds and the second runs for the first time; of the others the median counts, per
    cell, and the prediction is the median of theirs, since a cache may grow with every run."""
    works: list[Work] = []
    rooflines, peaks = [], []
    for cell in captured.cells[2:]:
        programs = [decode_program(encoded) for encoded in cell]
        works += [_joined([work_of(program) for program in programs])]
        rooflines.append(sum(_roofline_s(program, curves) for program in programs))
        peaks.append(max(predict_peak_bytes(program).peak_bytes for program in programs))
    runs = played[2:]
    return Compared(
        graph.family,
        median(sum(one.run_s for one in cell) for cell in runs),
        median(work.seconds(curves) for work in works),
        median(rooflines),
        int(median(max(one.peak_bytes - one.held_bytes for one in cell) for cell in runs)),
        int(median(peaks)),
        works[-1].ops,
        works[-1].unpriced,
    )


def _joined(works: Sequence[Work]) -> Work:
    charges: defaultdict[FamilyWork, int] = defaultdict(int)
    for work in works:
        for charge, count in work.charges:
            charges[charge] += count
    unpriced = dict.fromkeys(name for work in works for name in work.unpriced)
    return Work(sum(work.ops for work in works), tuple(charges.items()), tuple(unpriced))


def _roofline_s(program: Program, curves: DeviceCurves) -> float:
    """The baseline: the whole by arithmetic or by memory, the slower of both, and a fixed cost for every
    op."""
    costs = node_costs(trace_wiring(program)).nodes
    flops_s = sum(cost.flops for cost in costs) / curves.flops_per_s
    bytes_s = sum(cost.bytes_read + cost.bytes_written for cost in costs) / curves.memory_bytes_per_s
    return max(flops_s, bytes_s) + len(costs) * curves.op_s


def _errors(name: str, compared: Sequence[Compared], judged: bool = False) -> list[Figure]:
    """Errors as parts of what was measured: the median over graphs, and what nine of ten keep within."""
    errors = {
        OURS: [_off(one.predicted_s, one.measured_s) for one in compared],
        ROOFLINE: [_off(one.roofline_s, one.measured_s) for one in compared],
    }
    p90 = {contender: [percentile(sorted(values), 0.9)] for contender, values in errors.items()}
    facts = {
        "graphs": len(compared),
        "ops": sum(one.ops for one in compared),
        "ratios": sorted(round(one.predicted_s / one.measured_s, 3) for one in compared),
    }
    median_goals, p90_goals = ([Goal(MEDIAN_GOAL)], [Goal(P90_GOAL)]) if judged else ([], [])
    what = f"{name}: run time predicted, off by"
    return [
        figure(NAME, what, "part", errors, median_goals, **facts),
        figure(NAME, f"{what} (nine of ten)", "part", p90, p90_goals),
    ]


def _all(compared: Sequence[Compared]) -> list[Figure]:
    found = _errors("all", compared, judged=True)
    found[0].facts["unpriced"] = sorted({name for one in compared for name in one.unpriced})
    peaks = [
        _off(one.predicted_bytes, one.measured_bytes)
        for one in compared
        if one.measured_bytes >= COMPARED_BYTES_MIN
    ]
    off = figure(
        NAME, "all: peak memory predicted, off by", "part", {OURS: peaks}, values={OURS: median(peaks)}
    )
    return [*found, off]


def _off(predicted: float, measured: float) -> float:
    return max(abs(predicted / measured - 1), 1e-9)
