"""Runs trials in processes of their own, which may hang or be aborted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parents[2]


@dataclass
class Sum:
    """``late``: thrown where the cell had ended. ``reported``: Python could only print it. ``polluted``: what
    was not as it had to be. ``died``: how processes ended that hung or were aborted."""

    thrown: int = 0
    late: int = 0
    reported: int = 0
    polluted: list[str] = field(default_factory=list)
    died: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return self.polluted + self.died


def throw(environment: Mapping[str, str], recorder: str, seed: int, count: int, total: Sum) -> None:
    """Run ``count`` trials in a process, and add what they found."""
    command = [sys.executable, "-m", "sweeps.exceptions.trials", "--seed", str(seed), "--count", str(count)]
    variables = {
        **environment,
        "PYTHONPATH": f"{TESTS.parent}:{TESTS}",
        "DJINN_LAB_RECORDER": recorder,
        "OMP_NUM_THREADS": "1",
    }
    ran = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    lines = ran.stdout.splitlines()
    if lines:
        found = json.loads(lines[-1])
        total.thrown += found["thrown"]
        total.late += found["late"]
        total.reported += found["reported"]
        total.polluted += [f"{recorder}, seed {seed}, {problem}" for problem in found["polluted"]]
    if ran.returncode:
        trial = len(lines)
        total.died.append(f"{recorder}, seed {seed}, trial {trial}: {ran.returncode}: {ran.stderr[-3000:]}")
