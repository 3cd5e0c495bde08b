"""Blocks of ``session.capture()`` that the pool refuses: what tensors and random numbers are afterwards."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import NamedTuple

import pytest
import torch
from device_kind import only_cpus
from real_pool import PoolUnderTest

import djinn_lab
from djinn_lab.client.dry_run import DryRun
from djinn_lab.client.session import Session
from djinn_lab.errors import DeviceMemoryError, Refused, RemoteError, ValueLost
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


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


def _look(tensor: torch.Tensor) -> object:
    history = None if tensor.grad_fn is None else type(tensor.grad_fn).__name__
    return tensor.tolist(), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, history


class Tensors:
    """Of each kind that a cell may give other memory, another layout or a history."""

    def __init__(self, session: Session) -> None:
        self.plain, self.used, self.trained = _model(), _model(), _model()
        self.models = self.plain, self.used, self.trained
        self.row, self.wide, self.free = (torch.arange(6.0).view(2, 3) for _ in range(3))
        self.alone, self.weight = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        with session.capture():
            self.used(torch.ones(2, 3))
            self.trained(torch.ones(2, 3)).sum().backward()
            self.lazy, self.turned, self.set, self.given, self.written = (
                torch.arange(6.0).view(2, 3) * 2 for _ in range(5)
            )
            self.small = torch.ones(2) * 3
            self.product = self.weight * self.small

    def now(self) -> list[object]:
        """Return everything that a user can see of them."""
        found = [tensor for model in self.models for tensor in (*model.parameters(), *model.buffers())]
        found += [parameter.grad for parameter in self.trained.parameters() if parameter.grad is not None]
        found += [self.row, self.wide, self.free, self.alone, self.weight, self.lazy, self.turned, self.set]
        found += [self.given, self.written, self.small, self.product]
        return [*map(_look, found), self.free.data_ptr()]

    def change(self, recorder: str) -> None:
        self.plain.half()
        self.used.double()
        self.trained.to(torch.bfloat16)
        self.alone.data = self.lazy[0, :2] * 2
        self.row.t_()
        self.turned.t_()
        self.turned.unsqueeze_(0)
        self.wide.data = self.lazy * 2
        self.lazy.data = self.lazy * 3
        self.given.data = self.free
        self.free.data = torch.zeros(2)
        self.written.mul_(self.trained[0].weight.sum())
        self.small.add_(self.plain[0].bias)
        if recorder == "native":  # for the other one they are cuts, or refused
            self.set.set_(self.lazy)
            self.weight.data = self.alone * 2
            self.product.mul_(self.weight)


@pytest.mark.parametrize("recorder", ["native", "python"])
@pytest.mark.parametrize("name", ["target", "queued", "memory"])
@pytest.mark.parametrize("waits", [True, False], ids=["waits", "left"])
def test_refused_block_leaves_tensors_that_it_gave_other_memory(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch, recorder: str, name: str, waits: bool
) -> None:
    monkeypatch.setenv("DJINN_LAB_RECORDER", recorder)
    case = CASES[name]
    with pool.session() as session:
        tensors = Tensors(session)
        before = tensors.now()
        if case.limits is not None:
            pool.rest.set_targets(session.welcome.user, limits=case.limits)
        left = False
        with pytest.raises((Refused, DeviceMemoryError)):
            with session.capture(terms=case.terms, wait=waits) as cell:
                tensors.change(recorder)
                _large = torch.ones(case.side, case.side)[0, 0] * tensors.lazy
                left = True
            cell.handle.get()
        pool.rest.set_targets(session.welcome.user, limits=Limits())
        assert left
        assert tensors.now() == before
        tensors.product.sum().backward()
        assert tensors.weight.grad is not None
        assert tensors.weight.grad.tolist() == [3.0, 3.0]
        with session.capture():
            plain, used = (model(torch.ones(2, 3)) for model in (tensors.plain, tensors.used))
            tensors.trained(torch.ones(2, 3)).sum().backward()
            after = tensors.written + tensors.lazy
        assert torch.equal(plain, used)
        assert after.tolist() == [[0.0, 4.0, 8.0], [12.0, 16.0, 20.0]]


@pytest.mark.parametrize("recorder", ["native", "python"])
def test_dry_run_leaves_tensors_that_it_gave_other_memory(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch, recorder: str
) -> None:
    monkeypatch.setenv("DJINN_LAB_RECORDER", recorder)
    with pool.session() as session:
        tensors = Tensors(session)
        before = tensors.now()
        with DryRun(session, session.capture()) as cell:
            tensors.change(recorder)
        assert cell.report.ops_recorded > 10
        assert tensors.now() == before


def left_by_a_session(pool: PoolUnderTest) -> torch.Tensor:
    """Return a tensor whose session was closed and is gone."""
    with pool.session() as session, session.capture():
        left = torch.ones(3) * 2
    del session
    gc.collect()
    return left


@pytest.mark.parametrize("recorder", ["native", "python"])
def test_dry_run_passes_over_what_a_session_left_that_is_gone(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch, recorder: str
) -> None:
    monkeypatch.setenv("DJINN_LAB_RECORDER", recorder)
    left = left_by_a_session(pool)
    with pool.session() as session, DryRun(session, session.capture()) as cell:
        made = torch.ones(2) * 2
    assert (cell.report.ops_recorded, left.shape, made.shape) == (2, (3,), (2,))


@pytest.mark.parametrize("recorder", ["native", "python"])
@pytest.mark.parametrize(
    "look", [repr, methodcaller("cpu"), methodcaller("tolist"), methodcaller("sum"), djinn_lab.fetch]
)
def test_a_value_of_a_session_that_is_gone_is_lost(
    pool: PoolUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    recorder: str,
    look: Callable[[torch.Tensor], object],
) -> None:
    monkeypatch.setenv("DJINN_LAB_RECORDER", recorder)
    left = left_by_a_session(pool)
    with pytest.raises(ValueLost, match="session"):
        look(left)


@only_cpus("an op that fails leaves the device as it is")
@pytest.mark.parametrize("recorder", ["native", "python"])
def test_what_an_op_before_it_kept_from_being_computed_replaces_nothing(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch, recorder: str
) -> None:
    monkeypatch.setenv("DJINN_LAB_RECORDER", recorder)
    with pool.session() as session:
        model, computed = _model(), torch.nn.Parameter(torch.ones(2))
        with session.capture():
            values = torch.arange(3.0) * 2
        before = [_look(tensor) for tensor in (*model.parameters(), *model.buffers())]
        with pytest.raises(RemoteError, match="out of bounds"), session.capture():
            computed.data = computed.data * 2
            kept = values.gather(0, torch.tensor([9]))
            model.half()
        assert [_look(tensor) for tensor in (*model.parameters(), *model.buffers())] == before
        assert computed.tolist() == [2.0, 2.0]
        with pytest.raises(ValueLost):
            kept.tolist()
        with session.capture():
            model.half()
        assert {tensor.dtype for tensor in model.parameters()} == {torch.float16}
