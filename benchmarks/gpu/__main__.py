"""``python -m benchmarks.gpu [--part N] [--device cuda] [--small] [--output FOLDER] [NAME ...]``.

Three parts, each of a few minutes; a part begins with what the machine can do. Results are written after each
experiment, so that a run which is stopped has what was measured."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.figures import OURS, Figure, skipped
from benchmarks.gpu import ceilings, decoding, forms, ops, parking, recorded, start, stopping, training, turns
from benchmarks.gpu.bench import Experiment, GpuBench
from benchmarks.machine import checkout_commit, now, this_machine
from benchmarks.report import print_figures

RESULTS = Path(__file__).parents[1] / "results"
PARTS: tuple[tuple[Experiment, ...], ...] = (
    (ops.measure, start.measure, forms.measure),
    (decoding.measure, recorded.measure, training.measure),
    (parking.measure, turns.measure, stopping.measure),
)
"""By value: what is last is missing where the time was short."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", help="experiments by their modules' names (default: all)")
    parser.add_argument("--part", type=int, choices=(1, 2, 3), help="one of the parts (default: all)")
    parser.add_argument("--device", default="cuda", help="torch's name of the accelerator (default: cuda)")
    parser.add_argument("--small", action="store_true", help="small sizes: that it works, not how fast")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result file")
    options = parser.parse_args(arguments)
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type != options.device:
        print(f"There is no {options.device} device here: torch finds {found or 'no accelerator'}.")
        return 1
    bench = GpuBench(torch.device(options.device, 0), options.small)
    failed = 0
    for number, experiments in enumerate(PARTS, 1):
        if options.part in (None, number):
            chosen = [one for one in experiments if not options.names or _name(one) in options.names]
            failed += _run_part(bench, number, (ceilings.measure, *chosen), options.output)
    return bool(failed)


def _run_part(bench: GpuBench, part: int, experiments: Sequence[Experiment], folder: Path) -> int:
    figures: list[Figure] = []
    failed, commit, began_s = 0, checkout_commit(), perf_counter()
    for experiment in experiments:
        try:
            made = experiment(bench)
        except Exception as error:  # noqa: BLE001 - the others are still measured
            why = f"{type(error).__name__}: {str(error)[:400]}"
            made, failed = [skipped(_name(experiment), "failed", "", why)], failed + 1
        figures += made
        shown = [one for one in made if one.skipped is not None or OURS in one.series]
        print_figures(f"part {part}: {_name(experiment)}, {perf_counter() - began_s:.0f} s", shown)
        _write(bench, part, figures, commit, folder)
    return failed


def _write(bench: GpuBench, part: int, figures: Sequence[Figure], commit: str, folder: Path) -> None:
    machine, at = this_machine(), now()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu-part-{part}-{machine.slug}-{at.date().isoformat()}.json"
    content = {
        "format": 1,
        "finished_at": at.isoformat(),
        "commit": commit,
        "machine": asdict(machine),
        "device": bench.device.type,
        "small": bench.small,
        "figures": [asdict(item) for item in figures],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _name(experiment: Experiment) -> str:
    return experiment.__module__.rpartition(".")[2]


if __name__ == "__main__":
    sys.exit(main())
