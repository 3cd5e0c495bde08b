"""What a cell did in the notebook around ops that the pool did not compute: it is as if it had not."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from device_kind import only_cpus
from real_pool import PoolUnderTest
from torch import nn

from djinn_lab.client.session import Session
from djinn_lab.errors import Refused
from djinn_lab.jobs import Terms

pytestmark = pytest.mark.processes
NOWHERE = Terms(target="gpu=h200")


@pytest.fixture
def session(recorder: str, pool: PoolUnderTest) -> Iterator[Session]:
    with pool.session() as opened:
        yield opened


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "left"])
def test_memory_that_is_replaced_again_and_again_is_the_first(session: Session, waits: bool) -> None:
    model, x = nn.Linear(3, 2), torch.arange(4.0)
    with session.capture():
        lazy = torch.arange(4.0) * 2
    before = [parameter.tolist() for parameter in model.parameters()]
    with pytest.raises(Refused):
        with session.capture(terms=NOWHERE, wait=waits) as cell:
            for _ in range(3):
                model.zero_grad()
                model(torch.ones(1, 3)).sum().backward()
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.data = parameter.data - 0.1 * parameter.grad
            model.half().float()
            x.data = x.data.double()
            x.data = x.data[:2].float()
            lazy.t_().unsqueeze_(0)
            lazy.data = lazy.data * 3
            lazy.data = lazy.data * 3
        cell.handle.get()
    assert [parameter.tolist() for parameter in model.parameters()] == before
    assert (x.tolist(), lazy.tolist()) == ([0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 4.0, 6.0])


@only_cpus("an op that fails leaves the device as it is")
def test_a_loop_that_fails_leaves_what_was_computed(session: Session) -> None:
    x, y, count, row = torch.ones(3), torch.ones(3), torch.tensor(0), torch.arange(6.0).view(2, 3)
    with session.capture():
        values = torch.arange(3.0) * 2
    with pytest.raises(RuntimeError, match="out of bounds"), session.capture():
        for i in range(6000):
            x.data = x.data + 1
            count += 1
            if i == 4000:
                y.data = y.data * 2
                row.t_()
                kept = values.gather(0, torch.tensor([9]))
                row.t_()
                y.data = y.data * 2
    assert kept.shape == (1,)
    assert count.item() == 4001
    assert y.tolist() in ([1.0] * 3, [2.0] * 3)
    assert 1 <= x[0].item() <= 4002
    assert x.tolist() == [x[0].item()] * 3
    assert row.shape == (3, 2)


@only_cpus("an op that fails leaves the device as it is")
def test_a_cell_that_fails_behind_one_that_was_left_is_taken_back_alone(session: Session) -> None:
    count, x = torch.tensor(0), torch.ones(3)
    with session.capture():
        values = torch.arange(3.0) * 2
    with session.capture(wait=False):
        count += 10
        x.data = x.data * 2
    with pytest.raises(RuntimeError, match="out of bounds"), session.capture():
        count += 1
        kept = values.gather(0, torch.tensor([9]))
        count += 1
        x.data = x.data * 2
    assert kept.shape == (1,)
    assert (count.item(), x.tolist()) == (11, [2.0] * 3)


@only_cpus("an op that fails leaves the device as it is")
def test_training_that_fails_goes_on_from_the_step_that_was_computed(session: Session) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3), torch.ones(2, 4)
    local = copy.deepcopy(model)
    optimizer, reference = (torch.optim.Adam(one.parameters(), lr=0.1) for one in (model, local))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    with session.capture():
        values = torch.arange(3.0) * 2
        step(model, optimizer)
    with pytest.raises(RuntimeError, match="out of bounds"), session.capture():
        for i in range(60):
            step(model, optimizer)
            if i == 30:
                kept = values.gather(0, torch.tensor([9]))
    assert kept.shape == (1,)
    for _ in range(32):
        step(local, reference)
    assert [int(state["step"]) for state in optimizer.state.values()] == [32, 32]
    with session.capture():
        step(model, optimizer)
    step(local, reference)
    for one, other in zip(model.parameters(), local.parameters(), strict=True):
        assert torch.equal(one.detach().cpu(), other.detach())


def test_the_next_write_into_a_view_has_a_gradient(session: Session, recorder: str) -> None:
    base, factor = torch.ones(4), torch.ones(2, requires_grad=True)
    view = base[:2]
    with pytest.raises(Refused), session.capture(terms=NOWHERE):
        view.copy_(factor)
        _made = torch.ones(2) + 1
    with session.capture():
        view.copy_(factor)
    view.sum().backward()
    assert factor.grad is not None
    assert factor.grad.tolist() == [1.0, 1.0]


def test_views_of_what_a_refused_cell_wrote_have_no_history(session: Session, recorder: str) -> None:
    if recorder == "python":
        pytest.skip("views keep their new history: docs/notebook.md says so")
    factor = torch.ones(4, 6, requires_grad=True)
    with session.capture():
        base = torch.ones(4, 6) * 2
        rows, turned = base[1:3], base.t()
    with session.capture(terms=NOWHERE, wait=False) as cell:
        base.mul_(factor)
    assert rows.requires_grad
    with pytest.raises(Refused):
        cell.handle.get()
    assert not any(tensor.requires_grad for tensor in (base, rows, turned))
    with session.capture():
        assert not (rows * 2).requires_grad


def test_a_refused_backward_pass_leaves_no_gradient(session: Session) -> None:
    model, x = nn.Linear(3, 1), torch.ones(2, 3)
    with pytest.raises(Refused), session.capture(terms=NOWHERE):
        model(x).sum().backward()
    assert [parameter.grad for parameter in model.parameters()] == [None, None]
    copy.deepcopy(model)
    with session.capture():
        model(x).sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[2.0, 2.0, 2.0]]


def test_a_refused_cell_shares_no_memory(session: Session, recorder: str) -> None:
    if recorder == "python":
        pytest.skip("refused by the recorder in Python: docs/notebook.md says so")
    model, whole = nn.Linear(2, 2), torch.arange(4.0)
    part, before = whole[1:], model.weight.tolist()
    with pytest.raises(Refused), session.capture(terms=NOWHERE):
        model.share_memory()
        whole.share_memory_()
        _made = torch.ones(2) + 1
    assert model.weight.tolist() == before
    assert (whole.tolist(), part.tolist()) == ([0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0])


def test_what_detaches_a_tensor_is_taken_back(session: Session, recorder: str) -> None:
    weight, free = nn.Parameter(torch.ones(2)), torch.ones(3)
    with session.capture():
        product = weight * 2
    with pytest.raises(Refused), session.capture(terms=NOWHERE):
        if recorder == "native":
            product.detach_()
        weight.requires_grad_(False)
        free.requires_grad_()
        _made = torch.ones(2) + 1
    assert (weight.requires_grad, free.requires_grad) == (True, False)
    product.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0]


def test_an_exception_with_a_value_that_was_not_computed_is_shown(session: Session) -> None:
    with pytest.raises(
        ValueError, match=r"a tensor of shape \(2,\), torch\.float32; .* not computed"
    ) as raised:
        with session.capture(terms=NOWHERE):
            raise ValueError(torch.ones(2) + 1, 5)
    assert raised.value.args[1] == 5
    assert "The pool refuses" in raised.value.__notes__[0]


def test_copies_of_a_module_have_no_gradients(session: Session) -> None:
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    expected = copy.deepcopy(model)
    with session.capture():
        model(torch.ones(1, 2))
        inside = copy.deepcopy(model)
    outside = copy.deepcopy(model)
    for copied in (inside, outside):
        assert isinstance(copied.weight, nn.Parameter)
        assert copied.weight.grad is expected.weight.grad is None
        with session.capture():
            copied(torch.ones(1, 2)).sum().backward()
        assert copied.weight.grad is not None
        assert copied.weight.grad.tolist() == [[1.0, 1.0]]
        assert copied.weight.tolist() == model.weight.tolist()


def test_functions_of_python_over_the_elements(session: Session) -> None:
    with session.capture():
        x = torch.ones(3) + 1
    with session.capture():
        x.apply_(lambda item: item + 1)
        x.map_(torch.ones(3), lambda one, other: one + other)
        y = x * 1
    assert y.tolist() == [4.0, 4.0, 4.0]


def test_writes_to_data_are_no_changes_to_autograd(session: Session) -> None:
    with session.capture():
        weight = torch.ones(3, requires_grad=True)
        hidden = weight * 2
        loss = (hidden * hidden).sum()
    with session.capture():
        hidden.data.mul_(5)
    with session.capture():
        loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [40.0, 40.0, 40.0]
