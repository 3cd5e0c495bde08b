"""``make sweep-hostile``: every allowed overload with hostile arguments. Which calls end the process, return
memory as it was before, or write what they do not say?

Valid calls are recorded from torch's operator database and changed. Each call that the pool would accept runs
through the worker's own ``Call`` in a child process, twice, on memory filled with two patterns.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sweeps.hostile.memory import is_guarded, restart_guarded
from sweeps.hostile.recorded import recorded_calls
from sweeps.hostile.runner import BAD, OUTCOMES, Found, run_overload

from benchmarks.machine import checkout_commit, now, this_machine
from djinn_lab.srg.ops import allowed_ops


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sweep-hostile", description=__doc__)
    parser.add_argument("--only", default="", help="overloads, with commas between, e.g. aten.add.Tensor")
    parser.add_argument("--tries", type=int, default=60, help="calls of each overload")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=4.0, help="processor time for one overload")
    parser.add_argument("--out", type=Path, help="a file, or a folder for hostile-<machine>-<date>.json")
    options = parser.parse_args()
    restart_guarded()
    torch.set_num_threads(1)
    started, commit = now(), checkout_commit()
    only = frozenset(filter(None, options.only.split(",")))
    calls = recorded_calls(only, _show)
    found = []
    ops = sorted(only or allowed_ops())
    for position, op in enumerate(ops, 1):
        _show(f"{position}/{len(ops)} {op}")
        found.append(run_overload(op, calls, options.tries, options.seconds, options.first))
        if any(found[-1].counts[outcome] for outcome in BAD):
            print(f"\r{op} {dict(found[-1].counts)} {found[-1].examples}", flush=True)
    content = {
        "format": 1,
        "started_at": started.isoformat(),
        "finished_at": now().isoformat(),
        "machine": asdict(this_machine()),
        "commit": commit,
        "guarded_memory": is_guarded(),
        "tries": options.tries,
        "first": options.first,
        "recorded": len(calls),
        "summary": summary(found),
        "found": [{"op": one.op, **one.counts, "examples": one.examples} for one in found if one.examples],
    }
    print("\n" + json.dumps(content["summary"], indent=1))
    if options.out is not None:
        _write(options.out, content, started.date().isoformat())
    return 1 if any(one.counts[outcome] for one in found for outcome in BAD) else 0


def summary(found: Sequence[Found]) -> dict[str, Any]:
    calls = sum((one.counts for one in found), Counter[str]())
    return {
        "overloads": len(found),
        "calls": calls.total(),
        "outcomes": {outcome: calls[outcome] for outcome in OUTCOMES},
        "overloads by outcome": {
            outcome: sum(outcome in one.counts for one in found) for outcome in OUTCOMES
        },
    }


def _show(text: str) -> None:
    if sys.stdout.isatty():
        print(f"\r{text:100.100}", end="", flush=True)


def _write(out: Path, content: dict[str, Any], date: str) -> None:
    path = out / f"hostile-{this_machine().slug}-{date}.json" if out.is_dir() else out
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    sys.exit(main())
