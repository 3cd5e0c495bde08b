"""``make sweep-frames``: a pool's WebSocket under random frames and changed messages of a session."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from device_kind import KIND
from real_pool import PoolUnderTest
from sweeps.api.calls import tracebacks
from sweeps.frames.attack import SILENT, UNREADABLE, attack

from benchmarks.machine import checkout_commit, now, this_machine
from djinn_lab.pool.launch import LOG_FILE

GROWTH_MB_MAX = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sweep-frames", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, help="a folder for frames-<machine>-<date>.json")
    options = parser.parse_args()
    started, commit, began_s = now(), checkout_commit(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="djinn-frames-") as folder:
        with PoolUnderTest(Path(folder), f"{KIND}:2", 2**29) as pool:
            found = attack(pool, options.count, options.first)
        traced = tracebacks(Path(folder) / LOG_FILE)
    machine = this_machine()
    content = {
        "format": 1,
        "started_at": started.isoformat(),
        "finished_at": now().isoformat(),
        "seconds": round(time.monotonic() - began_s),
        "machine": asdict(machine),
        "commit": commit,
        "first": options.first,
        "frames": sum(found.outcomes.values()),
        "outcomes": dict(found.outcomes),
        "examples": found.examples,
        "resident_mb": found.resident,
        "sessions_left": found.sessions_left,
        "cells_beside": found.cells,
        "wrong_cells_beside": found.wrong,
        "tracebacks": traced,
    }
    print(json.dumps(content, indent=1))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"frames-{machine.slug}-{started.date().isoformat()}.json"
        path.write_text(json.dumps(content, indent=1) + "\n")
    bad = (
        found.outcomes[SILENT] + found.outcomes[UNREADABLE] + found.wrong + found.sessions_left + len(traced)
    )
    return 1 if bad or found.resident[-1] - found.resident[1] > GROWTH_MB_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
