"""``Session.push``: tensors go to the pool before the cell that uses them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.client.session import Session
from djinn_lab.errors import UserError

pytestmark = pytest.mark.processes
MIB = 2**20


def test_pushed_module_keeps_its_identity_and_is_not_sent_again(session: Session) -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512))
    parameters, optimizer = list(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1)
    expected = model.eval()(torch.ones(2, 512)).detach()
    pushed = session.push(model)
    assert pushed.tensors == 7
    assert pushed.nbytes >= MIB
    assert pushed.sent_bytes >= MIB
    assert pushed.plain == 0
    assert all(is_lazy(parameter) for parameter in parameters)
    assert [id(one) for one in model.parameters()] == [id(one) for one in parameters]
    with session.capture() as cell:
        found = model(torch.ones(2, 512)).detach()
    assert cell.report.bytes_up < MIB / 4
    torch.testing.assert_close(found.cpu(), expected)
    session.pull(model)
    assert not is_lazy(model[0].weight)
    assert optimizer.param_groups[0]["params"][0] is parameters[0]


def test_pushed_containers_have_lazy_tensors_where_memory_is_not_shared(session: Session) -> None:
    whole = torch.arange(6.0)
    batch = {"x": torch.ones(4), "views": [whole[:2], whole], "text": "kept"}
    pushed = session.push(batch)
    assert (pushed.tensors, pushed.plain) == (1, 2)
    assert is_lazy(batch["x"])  # type: ignore[arg-type]
    whole += 1
    with session.capture():
        total = batch["x"].sum() + batch["views"][0].sum()  # type: ignore[union-attr, index]
    assert float(total) == 4 + 3


def test_pulled_containers_have_plain_tensors(session: Session) -> None:
    batch = {"x": torch.ones(4), "parts": [torch.arange(3.0)], "text": "kept"}
    session.push(batch)
    with session.capture():
        batch["x"] += 1  # type: ignore[operator]
    session.pull(batch)
    assert not is_lazy(batch["x"])  # type: ignore[arg-type]
    assert not is_lazy(batch["parts"][0])  # type: ignore[arg-type]
    assert (batch["x"].tolist(), batch["parts"][0].tolist()) == ([2.0] * 4, [0.0, 1.0, 2.0])  # type: ignore[union-attr]


def test_push_of_nothing_and_again_sends_nothing(session: Session) -> None:
    x = torch.ones(512, 512)
    first, again, nothing = session.push([x]), session.push([x]), session.push([])
    assert first.sent_bytes >= MIB
    assert again.sent_bytes < 1000
    assert (nothing.tensors, nothing.nbytes) == (0, 0)
    assert session.last_cell is None


def test_push_in_a_captured_cell_is_refused(session: Session) -> None:
    with session.capture(), pytest.raises(UserError, match="uploads what its ops use"):
        session.push([torch.ones(2)])


def test_push_waits_for_a_pending_cell(session: Session) -> None:
    with session.capture(wait=False) as cell:
        y = torch.ones(3) + 1
        cell.result = y
    session.push([torch.ones(4)])
    assert cell.report.outcome == "done"
