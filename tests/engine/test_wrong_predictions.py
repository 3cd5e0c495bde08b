"""Cells that run far longer than predicted take turns seldom."""

from __future__ import annotations

import pytest

from djinn_lab.simulator.pool import SimulatedPool


@pytest.mark.parametrize("cells", [2, 4])
@pytest.mark.parametrize("expected_s", [0.05, 0.5, 2.0])
def test_equal_cells_that_were_predicted_far_too_short_do_not_swap_back_and_forth(
    cells: int, expected_s: float
) -> None:
    pool = SimulatedPool(1, 1000)
    for number in range(cells):
        pool.open(f"session{number}")
        account = f"user{number}"
        pool.submit(f"cell{number}", f"session{number}", account=account, seconds=20.0, expected_s=expected_s)
        pool.run(pool.now_s + 0.3)
    pool.run(40.0 * cells)
    assert list(pool.outcomes.values()) == ["DONE"] * cells
    assert max(map(len, pool.history.values())) <= 6
