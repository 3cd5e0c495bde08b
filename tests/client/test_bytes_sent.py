"""An iterative workload sends only what changed, and equal programs are checked once."""

from __future__ import annotations

import copy
from statistics import median

import pytest
import torch
from real_pool import PoolUnderTest
from torch import nn
from torch.nn import functional as F

from djinn_lab.client.report import CellReport
from djinn_lab.client.session import Session
from djinn_lab.protocol import messages

pytestmark = pytest.mark.processes


class Training:
    """A model, an optimizer and a batch, on the pool or in eager torch."""

    def __init__(self, kind: type[torch.optim.Optimizer], width: int = 256) -> None:
        torch.manual_seed(0)
        layers = nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 10)
        self.network = nn.Sequential(*layers)
        self.optimizer = kind(self.network.parameters(), lr=0.01)  # type: ignore[call-arg]
        self.inputs, self.labels = torch.randn(64, 64), torch.randint(0, 10, (64,))
        self.loss = torch.zeros(())

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(self.inputs), self.labels)
        loss.backward()
        self.optimizer.step()
        self.loss = loss.detach()


def run(session: Session, training: Training, turns: int, name: str = "In [1]") -> list[CellReport]:
    reports = []
    for _ in range(turns):
        with session.capture(name, code="train(model, batch)\n" * 40) as cell:
            training.step()
        reports.append(cell.report)
    return reports


@pytest.mark.parametrize(("kind", "steady"), [(torch.optim.SGD, 1), (torch.optim.AdamW, 2)])
def test_a_training_cell_run_again_sends_a_hundredth(
    session: Session, kind: type[torch.optim.Optimizer], steady: int
) -> None:
    """``steady``: AdamW's second step has other ops than its first, which makes the optimizer's state. The
    median, since a cell that the pool takes long for is sent in two parts from then on, which are new to it
    once."""
    ours, eager = Training(kind), Training(kind)
    reports = run(session, ours, 10)
    for _ in range(10):
        eager.step()
    assert ours.loss.item() == eager.loss.item()
    assert reports[0].bytes_up > ours.inputs.nbytes
    assert median(report.bytes_up for report in reports[steady:]) < reports[0].bytes_up / 150


def test_a_new_batch_costs_the_batch_alone(session: Session) -> None:
    training = Training(torch.optim.SGD)
    reports = run(session, training, 3)
    for _ in range(3):
        training.inputs = torch.randn(64, 64)
        reports += run(session, training, 1)
    for report in reports[-2:]:
        assert 0.9 * training.inputs.nbytes < report.bytes_up < training.inputs.nbytes + 500


def test_growing_shapes_cost_next_to_nothing(session: Session) -> None:
    attention = nn.MultiheadAttention(64, 4, batch_first=True).eval()
    keys = torch.randn(1, 1, 64)
    reports = []
    for _ in range(8):
        with session.capture() as cell, torch.no_grad():
            new = attention(keys[:, -1:], keys, keys, need_weights=False)[0]
            keys = torch.cat((keys, new), 1)
        reports.append(cell.report)
    assert keys.shape == (1, 9, 64)
    assert max(report.bytes_up for report in reports[4:]) < reports[0].bytes_up / 100


def test_parts_of_a_long_cell_share_their_structure(session: Session) -> None:
    ours, eager = Training(torch.optim.SGD), Training(torch.optim.SGD)
    reports = []
    for _ in range(3):
        with session.capture() as cell:
            for _ in range(200):
                ours.step()
        reports.append(cell.report)
    for _ in range(600):
        eager.step()
    assert ours.loss.item() == eager.loss.item()
    plain_bytes = 25 * reports[2].ops_run  # as the first protocol sent it
    assert reports[2].bytes_up < plain_bytes / 10  # a message for every few milliseconds of work


def test_dropout_does_not_send_the_random_state_again(session: Session) -> None:
    layer, x = nn.Dropout(0.5), torch.ones(64)
    torch.manual_seed(3)
    plain = [layer(x) for _ in range(4)]
    torch.manual_seed(3)
    reports = []
    for index in range(4):
        with session.capture() as cell:
            y = layer(x) * 1 + 0 - 0 + 0 - 0
        reports.append(cell.report)
        assert torch.equal(y.cpu(), plain[index])
    assert reports[0].bytes_up > 2500 > 1000 > max(report.bytes_up for report in reports[1:])


def test_equal_programs_are_checked_and_measured_once(pool: PoolUnderTest, session: Session) -> None:
    reports = run(session, Training(torch.optim.SGD, width=48), 4)
    assert [report.program_hits for report in reports[1:]] == [0, 1, 1]
    assert "graphs known to the pool: 1 of 1" in str(reports[3])
    status = pool.rest.status()
    assert status.plan_cache.hits >= 2
    assert status.plan_cache.misses >= 2
    with pool.session("another") as other:
        repeated = run(other, Training(torch.optim.SGD, width=48), 2, "In [9]")
    assert repeated[1].program_hits == 1


@pytest.mark.parametrize("newest", [1, 5])
def test_an_older_client_talks_with_this_pool_in_whole_programs(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch, newest: int
) -> None:
    """Pools no longer read the deltas of protocols 2 to 5, so the client must settle on protocol 1."""
    monkeypatch.setattr(messages, "CLIENT_VERSIONS", tuple(range(1, newest + 1)))
    with pool.session() as session:
        assert session.welcome.protocol_version == 1
        ours, eager = Training(torch.optim.SGD), copy.deepcopy(Training(torch.optim.SGD))
        reports = run(session, ours, 3)
        for _ in range(3):
            eager.step()
        assert ours.loss.item() == eager.loss.item()
        assert reports[2].bytes_up > 2000
