"""``python -m benchmarks [NAME ...] [--only NAME] [--quick] [--output FOLDER]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from benchmarks import (
    batching,
    bytes_sent,
    capture_per_op,
    capture_programs,
    compiling,
    copy_engine,
    cost_model,
    dashboard_paint,
    dashboard_visitors,
    decisions,
    decode_beside_prefill,
    devices,
    early_start,
    empty_cell,
    fair_share,
    gang,
    generation,
    graph_page,
    hosts,
    hosts_simulated,
    isolation,
    long_cell,
    memory_live,
    memory_simulated,
    memory_turns,
    notebook_cells,
    offload,
    plan,
    preemption,
    queue_simulated,
    queue_tuning,
    quickstart,
    round_trip,
    scale_live,
    serialisation,
    slow_link,
    start_times,
    tiny_beside_long,
    transfer,
    why_truth,
)
from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.machine import checkout_commit
from benchmarks.report import print_figures, write_results
from benchmarks.stage_audit import stage_figures

RESULTS = Path(__file__).parent / "results"
TOPICS: dict[str, Callable[[Bench], list[Figure]]] = {
    module.NAME: module.measure
    for module in (
        capture_per_op,
        capture_programs,
        empty_cell,
        round_trip,
        slow_link,
        long_cell,
        generation,
        bytes_sent,
        serialisation,
        transfer,
        offload,
        compiling,
        batching,
        memory_live,
        memory_simulated,
        memory_turns,
        cost_model,
        plan,
        notebook_cells,
        queue_simulated,
        queue_tuning,
        copy_engine,
        decisions,
        scale_live,
        fair_share,
        why_truth,
        preemption,
        decode_beside_prefill,
        tiny_beside_long,
        early_start,
        gang,
        devices,
        isolation,
        hosts,
        hosts_simulated,
        dashboard_paint,
        dashboard_visitors,
        graph_page,
        start_times,
        quickstart,
    )
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TOPICS)}; default: all")
    parser.add_argument("--only", action="append", default=[], choices=TOPICS, help="the same, as an option")
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that everything runs")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results; none if quick")
    options = parser.parse_args(arguments)
    chosen = [*options.names, *options.only] or list(TOPICS)
    unknown = sorted(set(chosen) - set(TOPICS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(TOPICS)}")
    commit = checkout_commit()
    with Bench(options.quick) as bench:
        figures = run(bench, [name for name in TOPICS if name in chosen])
    folder = options.output or (None if options.quick else RESULTS)
    if folder is not None:
        print(f"written: {write_results(folder, figures, options.quick, commit)}")
    return 0


def run(bench: Bench, names: Sequence[str]) -> list[Figure]:
    """Return the figures of these benchmarks and, at the end, of the cells that they measured."""
    figures: list[Figure] = []
    for name in names:
        started = perf_counter()
        found = TOPICS[name](bench)
        print_figures(f"{name} ({perf_counter() - started:.0f} s)", found)
        figures += found
    audit = stage_figures(bench.cells)
    if audit:
        print_figures("stages", audit)
    return figures + audit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
