"""What a pool lists of a session: its cells, and how they ended."""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO

import pytest
import torch
from real_pool import PoolUnderTest

from djinn_lab.client.session import Session
from djinn_lab.errors import PoolError
from djinn_lab.jobs import Terms
from djinn_lab.protocol.rest.jobs import JobView

pytestmark = pytest.mark.processes


def listed(pool: PoolUnderTest, session: Session, *, fetches: bool = False) -> list[JobView]:
    own = session.welcome.session
    return [job for job in pool.rest.jobs(limit=100, fetches=fetches) if job.session == own][::-1]


def test_fetches_between_cells_are_listed_on_request_only(pool: PoolUnderTest, session: Session) -> None:
    with session.capture("first"):
        ones = torch.ones(3) + 1
    assert ones.sum().item() == 6
    with session.capture("second"):
        grid = torch.ones(2, 3) + 1
    torch.save({"grid": grid}, BytesIO())  # reads memory as it lies, by a view of it
    assert grid.T[0].tolist() == [2, 2]
    assert [job.cell for job in listed(pool, session)] == ["first", "second"]
    assert [job.is_fetch for job in listed(pool, session, fetches=True)].count(True) == 2
    own = next(one for one in pool.rest.sessions() if one.session == session.welcome.session)
    assert own.jobs == 2


def test_cell_whose_python_fails_has_failed_and_what_depends_on_it_does_not_run(
    pool: PoolUnderTest, session: Session
) -> None:
    with suppress(ZeroDivisionError), session.capture("fails"):
        before = torch.ones(2) * 3
        1 / 0  # noqa: B018
    [job] = listed(pool, session)
    assert (job.cell, job.state) == ("fails", "FAILED")
    assert "ZeroDivisionError" in job.reason
    with pytest.raises(PoolError, match="is FAILED"), session.capture("after", terms=Terms(after=(job.job,))):
        after = torch.ones(2) + 1
        assert after.sum() == 4
    assert before.tolist() == [3, 3]
