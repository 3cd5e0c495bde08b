"""``make sweep-mutants``: random programs with random changes, through admission and a worker's interpreter.
None may end the process, raise what is no refusal, or leave memory behind."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeps.mutants.trial import BAD, run_seeds

from benchmarks.machine import checkout_commit, now, this_machine

DIED = "ended the process"
BATCH = 2000
EXAMPLES_MAX = 40


class Found:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: list[dict[str, Any]] = []
        self.seeds = 0

    def add(self, seed: int, outcome: str, text: str) -> None:
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append({"seed": seed, "outcome": outcome, "text": text})


def run_batch(seeds: range, found: Found) -> int:
    """Run the seeds in a forked child, and return the first that was not reached."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        code = 1
        try:
            with tempfile.TemporaryDirectory() as directory, os.fdopen(writing, "wb", buffering=0) as lines:
                run_seeds(seeds, Path(directory), lines)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    seed, open_seed = seeds.start, False
    with os.fdopen(reading) as lines:
        for line in lines:
            read = json.loads(line)
            if isinstance(read, int):
                seed, open_seed = read, True
                continue
            open_seed, found.seeds = False, found.seeds + 1
            found.counts.update(read[0])
            for outcome, text in read[1]:
                found.add(seed, outcome, text)
    _, status = os.waitpid(pid, 0)
    if not status:
        return seeds.stop
    how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {status >> 8}"
    assert open_seed, f"the child ended between two seeds by {how}"
    found.counts[DIED] += 1
    found.add(seed, DIED, how)
    return seed + 1


def sweep(count: int, first: int = 0) -> Found:
    """Run ``count`` seeds from ``first`` on."""
    found, seed = Found(), first
    while seed < first + count:
        seed = run_batch(range(seed, min(seed + BATCH, first + count)), found)
        if sys.stdout.isatty():
            print(f"\r{found.seeds} {dict(found.counts)}", end="", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sweep-mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="seeds, of four programs each")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, help="a folder for mutants-<machine>-<date>.json")
    options = parser.parse_args()
    started, commit = now(), checkout_commit()
    found = sweep(options.count, options.first)
    machine = this_machine()
    content = {
        "format": 1,
        "started_at": started.isoformat(),
        "finished_at": now().isoformat(),
        "machine": asdict(machine),
        "commit": commit,
        "first": options.first,
        "seeds": found.seeds,
        "programs": found.counts.total(),
        "outcomes": dict(found.counts),
        "examples": found.examples,
    }
    print("\n" + json.dumps({key: content[key] for key in ("seeds", "outcomes", "examples")}, indent=1))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"mutants-{machine.slug}-{started.date().isoformat()}.json"
        path.write_text(json.dumps(content, indent=1) + "\n")
    return 1 if any(found.counts[outcome] for outcome in (*BAD, DIED)) else 0


if __name__ == "__main__":
    sys.exit(main())
