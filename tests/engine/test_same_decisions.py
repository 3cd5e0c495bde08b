"""The same events lead to the same commands in every process, or a replay would decide otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from hashlib import sha256
from djinn_lab import engine
from djinn_lab.simulator.agents import Agents, Habits
from djinn_lab.simulator.pool import SimulatedPool

digest = sha256()

class Listening(SimulatedPool):
    def perform(self, command: engine.Command) -> None:
        digest.update(f"{self.now_s} {command}".encode())
        super().perform(command)

pool = Listening(2, 200, 100, 300, 800)
Agents(pool, 18, Habits(state_mib=55, cell_s=(0.03, 0.2), tool_s=(0.2, 0.5), estimate_sigma=0.3)).run(4.0)
print(digest.hexdigest())
"""


def commands_with(hash_seed: int) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    return run.stdout


def test_commands_do_not_depend_on_the_order_of_sets() -> None:
    assert len({commands_with(hash_seed) for hash_seed in (1, 3, 4)}) == 1
