"""``make sweep-api``: a real pool's REST API under requests that schemathesis draws from its schema."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from pool_kit import running_pool
from sweeps.api.calls import sweep, tracebacks, until

from benchmarks.machine import checkout_commit, now, this_machine
from djinn_lab.pool.launch import LOG_FILE

EXAMPLES = 10
GROWTH_MB_MAX = 200
"""After the first samples; users, tokens and accounts that were made stay."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sweep-api", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", type=Path, help="a folder for api-<machine>-<date>.json")
    options = parser.parse_args()
    started, commit = now(), checkout_commit()
    with tempfile.TemporaryDirectory(prefix="djinn-api-") as folder, running_pool(Path(folder)) as info:
        found = sweep(info, EXAMPLES, until(options.minutes))
        traced = tracebacks(Path(folder) / LOG_FILE)
    machine = this_machine()
    content = {
        "format": 1,
        "started_at": started.isoformat(),
        "finished_at": now().isoformat(),
        "machine": asdict(machine),
        "commit": commit,
        "calls": found.calls,
        "answers": dict(sorted(found.answers.items())),
        "tracebacks": traced,
        "resident_mb": found.resident,
        "faults": found.faults,
    }
    print(json.dumps(content, indent=1))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"api-{machine.slug}-{started.date().isoformat()}.json"
        path.write_text(json.dumps(content, indent=1) + "\n")
    grown = found.resident[-1] - found.resident[min(1, len(found.resident) - 1)]
    return 1 if found.faults or traced or grown > GROWTH_MB_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
