"""Workers killed at random moments of random notebooks, training with dropout among them: a small sample of
``make sweep-losses``."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweeps.losses.harness import run

pytestmark = pytest.mark.processes
KILLS = 3


def test_variables_of_random_notebooks_come_back_bit_for_bit(tmp_path: Path) -> None:
    outcome = run(tmp_path, KILLS, seed=11)
    assert outcome.wrong == []
    assert outcome.kills == KILLS
