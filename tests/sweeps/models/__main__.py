"""``make sweep-models``: every architecture of transformers, tiny and random, eagerly and captured.

The result lists each with its outcome: ``equal`` (every task that eager can do is equal to the last bit),
``not in eager`` with eager's own reason, ``refused``, ``wrong``, ``raised``, ``crashed`` or ``out of time``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from architectures import FAMILIES, model_types

from benchmarks.machine import checkout_commit, now, this_machine
from djinn_lab.capture.recorders import chosen

HERE = Path(__file__).parent
RESULTS = HERE.parents[2] / "benchmarks" / "results"
PER_CHILD = 25


class Child:
    """A process that checks; started when it is first needed."""

    def __init__(self, budget_s: int) -> None:
        self._budget_s = budget_s
        self._process: subprocess.Popen[str] | None = None
        self._done = 0

    def check(self, family: str, model_type: str) -> dict[str, Any]:
        if self._process is None:
            command = [sys.executable, str(HERE / "child.py"), str(self._budget_s)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            self._done = 0
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([family, model_type]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._process = None
            reason = f"the process ended with code {code}"
            return {"family": family, "model_type": model_type, "outcome": "crashed", "reason": reason}
        self._done += 1
        if self._done == PER_CHILD:
            self.close()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None


def main() -> None:
    parser = argparse.ArgumentParser(prog="make sweep-models", description=__doc__)
    parser.add_argument("--family", action="append", choices=list(FAMILIES), help="default: all of them")
    parser.add_argument("--only", action="append", help="a model type, such as llama")
    parser.add_argument("--budget", type=int, default=150, metavar="S", help="seconds an architecture")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/models-<machine>-<date>.json")
    options = parser.parse_args()
    commit = checkout_commit()
    child = Child(options.budget)
    found: list[dict[str, Any]] = []
    for family in options.family or FAMILIES:
        for model_type in model_types(family):
            if options.only and model_type not in options.only:
                continue
            answer = child.check(family, model_type)
            found.append(answer)
            print(_line(answer), flush=True)
    child.close()
    out = options.out or RESULTS / f"models-{this_machine().slug}-{now().date()}.json"
    report = {"commit": commit, "recorder": chosen(), **_report(found)}
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["counts"], indent=1))
    print(out)


def _line(answer: dict[str, Any]) -> str:
    bad = [
        f"{name}: {task['reason']}"
        for name, task in answer.get("tasks", {}).items()
        if task["outcome"] not in ("equal", "not in eager")
    ]
    reason = "; ".join(bad) or answer.get("reason", "")
    return f"{answer['family']:9} {answer['model_type']:28} {answer['outcome']:12} {reason[:200]}"


def _report(found: list[dict[str, Any]]) -> dict[str, Any]:
    counts: dict[str, dict[str, Any]] = {}
    for family in dict.fromkeys(item["family"] for item in found):
        of_family = [item for item in found if item["family"] == family]
        tasks = {name for item in of_family for name in item.get("tasks", {})}
        counts[family] = {
            "architectures": dict(Counter(item["outcome"] for item in of_family)),
            **{
                name: dict(Counter(item["tasks"][name]["outcome"] for item in of_family if item.get("tasks")))
                for name in sorted(tasks)
            },
        }
    return {
        "what": "architectures of transformers, tiny and random, eager against captured, bit for bit",
        "machine": asdict(this_machine()),
        "transformers": transformers.__version__,
        "torch": str(torch.__version__),
        "date": now().isoformat(),
        "counts": counts,
        "architectures": found,
    }


if __name__ == "__main__":
    main()
