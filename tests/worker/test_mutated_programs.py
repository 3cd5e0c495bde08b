"""A sample of ``make sweep-mutants``, and programs that it found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from programs import Script
from sweeps.mutants.__main__ import DIED, sweep
from sweeps.mutants.trial import BAD, RAN
from worker_kit import Device

SEEDS = 300


def test_changed_programs_end_no_process_and_are_refused_or_answered() -> None:
    found = sweep(SEEDS)
    assert found.seeds == SEEDS
    assert found.counts[RAN] > SEEDS
    assert not [one for one in found.examples if one["outcome"] in (*BAD, DIED)]


@pytest.mark.parametrize("state", [b"\0" * 5055, b"\0" * 5056, b"\xff" * 5056])
def test_a_random_state_of_no_generator_is_refused(make_device: Callable[..., Device], state: bytes) -> None:
    script = Script()
    outcome = make_device().try_run(
        "ann", script.program(fetch=(script.load(torch.ones(2)),), rng_state=state)
    )
    assert outcome.failure is not None
    assert (outcome.failure.family, outcome.failure.type_name) == ("refused", "Refused")
    assert "random state" in outcome.failure.message
