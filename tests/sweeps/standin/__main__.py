"""The whole operator database on the stand-in accelerator, beside the CPU (``make sweep-standin``)."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isolated import Task, Template
from operator_database import EXCEPTIONS, operators
from sweeps.result_file import SweepResult

DATABASE = "torch.testing._internal.common_methods_invocations"
SETTINGS = {"manual": True, "memory_bytes": 4 * 2**30}


def main() -> int:
    """Return the exit code: 1 when a sample differs, raises or ends its process without a reason known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one operator by name")
    parser.add_argument("--samples", type=int, default=2, help="of each operator, forward and backward")
    parser.add_argument("--out", type=Path, help="a folder for the result file")
    options = parser.parse_args()
    result, template = SweepResult("standin", 0), Template(DATABASE)
    counts: Counter[str] = Counter()
    problems: list[dict[str, Any]] = []
    names = [op.formatted_name for op in operators() if options.only in (None, op.name)]
    for position, name in enumerate(names, 1):
        found = _judge(template, name, options.samples)
        for verdict in found:
            counts["equal" if not verdict["problem"] else "known" if verdict["known"] else "unknown"] += 1
        problems += [verdict for verdict in found if verdict["problem"]]
        print(f"{position}/{len(names)} {name}: {dict(counts)}", flush=True)
    template.close()
    content = result.write(options.out, operators=len(names), counts=counts, problems=problems)
    print(json.dumps([one for one in content["problems"] if not one["known"]], indent=1))
    return 1 if counts["unknown"] else 0


def _judge(template: Template, name: str, samples: int) -> list[dict[str, Any]]:
    """Return the verdicts of an operator, judged in a process of its own."""
    outcome = template.run(
        Task("operator_database", "judge_named", {"name": name, "samples": samples}, SETTINGS)
    )
    known = EXCEPTIONS.get(name, "")
    if outcome.trace or outcome.status:
        problem = outcome.trace or f"the process ended with status {outcome.status}"
        return [{"operator": name, "problem": problem, "known": known}]
    return [{**asdict(verdict), "known": known} for verdict in outcome.returned]


if __name__ == "__main__":
    sys.exit(main())
