"""Kills workers, or hosts, under random notebooks (``make sweep-losses``), and looks for what came back
otherwise."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from sweeps.losses.harness import Outcome, run
from sweeps.result_file import SweepResult


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--victim", choices=("worker", "host"), default="worker")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a folder for losses-<machine>-<date>.json, or host-losses-")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = SweepResult("losses" if options.victim == "worker" else "host-losses", options.seed)
    with tempfile.TemporaryDirectory(prefix="djinn-losses-") as directory:
        outcome = run(Path(directory), options.kills, options.seed, options.victim)
    content = result.write(options.out, **_figures(outcome))
    print(json.dumps(content, indent=1))
    return 1 if outcome.wrong else 0


def _figures(outcome: Outcome) -> dict[str, Any]:
    took_s = sorted(outcome.recovery_s)
    found = {
        "kills": outcome.kills,
        "programs": outcome.programs,
        "cells": outcome.cells,
        "cells that recovered": outcome.recovered,
        "of these, ran again": outcome.reran,
        "of these, replayed": outcome.replayed,
        "of these, restored from copies": outcome.restored,
        "programs with two deaths under one part of a cell": outcome.twice,
        "wrong": outcome.wrong[:50],
    }
    if took_s:
        found["recovery with the lost run, s"] = {
            name: round(took_s[int(part * (len(took_s) - 1))], 3)
            for name, part in (("p50", 0.5), ("p99", 0.99))
        }
    return found


if __name__ == "__main__":
    sys.exit(main())
