"""``python -m sweeps.fuzz.child FIRST COUNT``: runs the programs of these seeds and reports each on a line.

A line ``begin SEED`` comes before each program, so that the parent knows which one ended the process.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
import warnings
from typing import Any

import torch
from sweeps.fuzz.execution import Difference, compare, count_lazy, difference, run_captured, run_eagerly
from sweeps.fuzz.generator import generate
from sweeps.fuzz.shrink import shrink
from sweeps.fuzz.steps import Program

SHRINK_MAX = 300
"""Differences that a process makes short; the rest are only counted."""


def main(first: int, count: int) -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    examine(first)  # imports what is imported late
    gc.collect()
    gc.freeze()
    shrunk = 0
    for seed in range(first, first + count):
        print(f"begin {seed}", flush=True)
        report = examine(seed, shrunk < SHRINK_MAX)
        shrunk += "short" in report
        print(json.dumps(report), flush=True)


def examine(seed: int, make_short: bool = True) -> dict[str, Any]:
    """Run the seed's program both ways."""
    program = generate(seed)
    captured = run_captured(program)
    report: dict[str, Any] = {"seed": seed, "steps": len(list(program.steps)), "lazy": count_lazy(captured)}
    found = compare(captured, run_eagerly(program)) and difference(program)
    if found is None:
        return report
    ops = {step.slot: step.op for step in program.steps}
    report |= {
        "kind": found.kind,
        "group": (ops.get(found.slot, "cell end"), found.signature),
        "text": f"v{found.slot}: {found.text}",
    }
    if make_short and found.kind != "refused":
        report["short"] = str(shrink(program, lambda shorter: _shows(shorter, found)))
    return report


def _shows(program: Program, wanted: Difference) -> bool:
    found = difference(program)
    return found is not None and found.signature == wanted.signature


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
