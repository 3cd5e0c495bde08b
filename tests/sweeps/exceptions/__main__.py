"""Throws exceptions into cells at random moments (``make sweep-exceptions``): out of signal handlers, out of
other threads, by Ctrl-C. Each must leave its cell as itself, and the next cell must be as in eager torch."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from real_pool import PoolUnderTest
from sweeps.exceptions.harness import Sum, throw
from sweeps.result_file import SweepResult

EACH = 50
"""Trials of a process, of which every fourth has the recorder in Python."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a folder for exceptions-<machine>-<date>.json")
    options = parser.parse_args()
    result = SweepResult("exceptions", options.seed)
    found = {"native": Sum(), "python": Sum()}
    with tempfile.TemporaryDirectory(prefix="djinn-exceptions-") as directory:
        with PoolUnderTest(Path(directory)) as pool:
            for number, begun in enumerate(range(0, options.count, EACH)):
                recorder = "python" if number % 4 == 3 else "native"
                count = min(EACH, options.count - begun)
                throw(pool.environment, recorder, options.seed * 1000 + number, count, found[recorder])
                print(f"{begun + count} thrown: {found[recorder].problems or 'nothing found'}", flush=True)
    result.write(options.out, exceptions={recorder: asdict(total) for recorder, total in found.items()})
    return 1 if any(total.problems for total in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
