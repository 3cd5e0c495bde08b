"""Kills pools at random moments under load (``make sweep-kills``), and looks for what they lost."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch
from sweeps.kills.harness import Outcome, run
from sweeps.losses.harness import Outcome as Comparison
from sweeps.losses.harness import run as run_notebooks
from sweeps.result_file import SweepResult
from throwaway_postgresql import running_postgresql

from djinn_lab.pool.database.address import checked_url

KINDS = {
    "sqlite": "SQLite, one pool that is started again",
    "postgresql": "PostgreSQL, a second pool stands by",
    "notebooks": "SQLite, notebooks beside eager torch; the pool is started again by itself",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=100, help="for each kind of database")
    parser.add_argument("--database", choices=KINDS, action="append", help="only this kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a folder for kills-<machine>-<date>.json")
    options = parser.parse_args()
    result = SweepResult("kills", options.seed)
    found = {KINDS[kind]: _run(kind, options) for kind in options.database or KINDS}
    result.write(options.out, databases=found)
    print(json.dumps(found, indent=1))
    return 1 if any(one["wrong"] for one in found.values()) else 0


def _run(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    print(KINDS[kind])
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="djinn-kills-")))
        if kind == "notebooks":
            torch.set_num_threads(1)
            return _notebook_figures(run_notebooks(directory, options.moments, options.seed, "server"))
        if kind == "sqlite":
            url, pools = f"sqlite:///{directory / 'pool.sqlite3'}", 1
        else:
            url, pools = stack.enter_context(running_postgresql()).new_database(), 2
        return _figures(
            run(directory, checked_url(url), pools, options.moments, options.seed), options.moments
        )


def _notebook_figures(outcome: Comparison) -> dict[str, Any]:
    took_s = sorted(outcome.recovery_s)
    return {
        "kills": outcome.kills,
        "programs": outcome.programs,
        "cells": outcome.cells,
        "cells that recovered": outcome.recovered,
        "of these, ran again": outcome.reran,
        "of these, replayed": outcome.replayed,
        "of these, restored from copies": outcome.restored,
        "recovery, s, median": round(median(took_s), 2) if took_s else None,
        "wrong": outcome.wrong[:50],
    }


def _figures(outcome: Outcome, moments: int) -> dict[str, Any]:
    back_s = sorted(outcome.back_s)
    return {
        "moments": moments,
        "kills": outcome.kills,
        "served again after, s": {
            "median": round(median(back_s), 2),
            "p99": round(back_s[int(0.99 * (len(back_s) - 1))], 2),
        },
        **dict(sorted(outcome.findings.counts.items())),
        "wrong": outcome.findings.wrong[:50],
    }


if __name__ == "__main__":
    sys.exit(main())
