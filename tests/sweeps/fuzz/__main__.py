"""``make sweep-fuzz``: random sequences of ops with odd dtypes, sizes and aliases, captured beside eager.

The sequences run in child processes: one that crashes or hangs is counted, and the next seed is run.
``--seed N`` repeats one, makes it short and prints it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sweeps.fuzz.report import Tally
from sweeps.fuzz.runner import BATCH, JOBS, run_range
from sweeps.fuzz.single import repeat

from benchmarks.machine import checkout_commit, now, this_machine
from djinn_lab.capture.recorders import chosen


def main() -> None:
    parser = argparse.ArgumentParser(prog="make sweep-fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="sequences")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=JOBS, help="processes at a time")
    parser.add_argument("--seed", type=int, help="repeat this one")
    parser.add_argument("--out", type=Path, help="folder for fuzz-<machine>-<date>.json")
    options = parser.parse_args()
    if options.seed is not None:
        sys.exit(repeat(options.seed))
    started, commit = now(), checkout_commit()
    tally = Tally()
    run_range(options.first, options.count, options.jobs, tally)
    print(tally)
    if options.out is not None:
        out = options.out / f"fuzz-{this_machine().slug}-{started.date()}.json"
        report: dict[str, Any] = {
            "what": "random sequences of ops, captured beside eager",
            "date": started.isoformat(),
            "commit": commit,
            "recorder": chosen(),
            "first": options.first,
            "count": options.count,
            "batch": BATCH,
            **tally.as_dict(),
        }
        out.write_text(json.dumps(report, indent=1) + "\n")
        print(out)
    sys.exit(1 if tally.crashes or tally.hangs else 0)


if __name__ == "__main__":
    main()
