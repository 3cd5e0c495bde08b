"""Blocks of ``session.capture()`` that the pool refuses: what tensors and random numbers are afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
from real_pool import PoolUnderTest

from djinn_lab.client.session import Session
from djinn_lab.errors import DeviceMemoryError, Refused, ValueLost
from djinn_lab.jobs import Terms
from djinn_lab.jobs.fairness.limits import Limits

pytestmark = pytest.mark.processes
NO_MEMORY = 10**5


class Case(NamedTuple):
    """``limits``: of the user's account while the block is captured."""

    terms: Terms | None = None
    priority: str | None = None
    limits: Limits | None = None
    side: int = 1


CASES = {
    "target": Case(Terms(target="gpu=h200")),
    "gang": Case(Terms(gang=9, gang_min=9)),
    "dependency": Case(Terms(after=("0123456789abcdef",))),
    "priority": Case(priority="HIGH", limits=Limits(rank_min=2)),
    "queued": Case(limits=Limits(queued_max=0)),
    "devices": Case(limits=Limits(devices_max=0.5)),
    "memory": Case(side=NO_MEMORY),
}


@pytest.fixture
def limited(pool: PoolUnderTest, session: Session) -> Iterator[Callable[[Limits], None]]:
    """Give a call that limits the session's account until the test ends."""
    yield lambda limits: pool.rest.set_targets(session.welcome.user, limits=limits)
    pool.rest.set_targets(session.welcome.user, limits=Limits())


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "left"])
@pytest.mark.parametrize("name", CASES)
def test_refused_block_changes_no_tensor_and_no_random_number(
    session: Session, limited: Callable[[Limits], None], name: str, waits: bool
) -> None:
    case = CASES[name]
    with session.capture():
        written, added, read = torch.arange(3.0), torch.ones(3) * 2, torch.ones(3) + 1
        weight = torch.nn.Parameter(torch.ones(2) * 3)
        drawn = torch.rand(4)
    plain = torch.zeros(3)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    if case.limits is not None:
        limited(case.limits)
    with pytest.raises((Refused, DeviceMemoryError)):
        with session.capture(terms=case.terms, priority=case.priority, wait=waits) as cell:
            torch.manual_seed(9)
            written.mul_(5)
            added += read + torch.rand(3)
            with torch.no_grad():
                weight.add_(1)
            new = read * 2 + torch.ones(case.side, case.side)[0, 0]
            if waits:
                plain += written
        cell.handle.get()
    limited(Limits())
    assert torch.equal(torch.rand(2), expected)
    assert (written.tolist(), added.tolist(), read.tolist()) == ([0.0, 1.0, 2.0], [2.0] * 3, [2.0] * 3)
    assert (weight.tolist(), plain.tolist(), len(drawn.tolist())) == ([3.0, 3.0], [0.0] * 3, 4)
    with pytest.raises(ValueLost):
        new.tolist()
    with session.capture():
        after = written + added
    assert after.tolist() == [2.0, 3.0, 4.0]


def test_refused_block_that_was_left_keeps_a_seed_set_since(session: Session) -> None:
    with session.capture(terms=Terms(target="gpu=h200"), wait=False) as cell:
        drawn = torch.rand(3)
    torch.manual_seed(5)
    with pytest.raises(Refused):
        cell.handle.get()
    after = torch.rand(2)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(2))
    with pytest.raises(ValueLost):
        drawn.tolist()
