"""Decode steps of several sessions on a live pool of one device: those that wait for it together run as one
batch, within their tolerance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Barrier, Thread

import pytest
import torch
from device_kind import KIND
from real_pool import PoolUnderTest, kill_worker
from torch import nn
from torch.nn import functional as F

from djinn_lab.client.cell import Cell
from djinn_lab.client.session import Session
from djinn_lab.errors import CellCancelled, DjinnError

pytestmark = pytest.mark.processes
TOLERANCE = 1e-4
WIDTH, LAYERS, TOKENS = 256, 8, 16


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path, f"{KIND}:1") as pool:
        yield pool


def model(layers: int) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))


def decode(layers: nn.ModuleList, row: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    """Return the row after all layers, each of which attends to the past."""
    for layer in layers:
        query = layer(row)[None, None]
        keys = torch.cat([past[None, None], query], -2)
        row = row + F.scaled_dot_product_attention(query, keys, keys)[0, 0]
        row = row / row.norm()
    return row


class Agent:
    """A session with a model of its own, of the same weights in all, and a past of its own."""

    def __init__(self, session: Session, number: int, layers: int = LAYERS) -> None:
        self.session, self.number = session, number
        self.layers = model(layers)
        self.rows: list[torch.Tensor] = []
        self.cells: list[Cell] = []
        torch.manual_seed(number)
        self.row, self.past = torch.randn(1, WIDTH), torch.randn(5 + number, WIDTH)
        with torch.no_grad(), session.capture("prefill") as cell:
            cell.past = self.past * 1.0  # type: ignore[attr-defined]
        self.cell = cell

    def run(self, steps: int, together: Barrier) -> None:
        """Decode so many tokens, one cell each."""
        for _ in range(steps):
            together.wait(60)
            self.step()

    def run_on(self, steps: int, together: Barrier) -> None:
        """Decode as :meth:`run` does, whatever becomes of single cells."""
        for _ in range(steps):
            together.wait(60)
            with suppress(DjinnError, CellCancelled):
                self.step()

    def step(self) -> None:
        with torch.no_grad(), self.session.capture("decode", tolerance=TOLERANCE) as cell:
            cell.row = decode(self.layers, self.row, self.cell.past)  # type: ignore[attr-defined]
        self.rows.append(self.session.fetch(cell.row))  # type: ignore[attr-defined]
        self.cells.append(cell)


def test_steps_that_wait_together_run_as_one_batch(pool: PoolUnderTest) -> None:
    with ExitStack() as stack:
        agents = [Agent(stack.enter_context(pool.session()), number) for number in range(4)]
        beside = [0]
        for _ in range(5):  # on a busy machine their steps may not meet at once
            together = Barrier(len(agents))
            threads = [Thread(target=agent.run, args=(12, together)) for agent in agents]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            beside = [cell.report.batched_with for agent in agents for cell in agent.cells]
            if max(beside) > 0:
                break
        for agent in agents:
            with torch.no_grad():
                expected = decode(agent.layers, agent.row, agent.past)
            for row in agent.rows:
                torch.testing.assert_close(row, expected, rtol=TOLERANCE, atol=TOLERANCE)
        assert max(beside) > 0


def test_cancel_and_dead_worker_leave_every_session_its_values(pool: PoolUnderTest) -> None:
    """Steps end, fail or run again: what a session has afterwards is what it computes alone."""
    with ExitStack() as stack:
        agents = [Agent(stack.enter_context(pool.session()), number, 100) for number in range(4)]
        together = Barrier(len(agents))
        threads = [Thread(target=agent.run_on, args=(20, together)) for agent in agents]
        for thread in threads:
            thread.start()
        cancelled, killed = 0, False
        while any(thread.is_alive() for thread in threads):
            for job in pool.rest.jobs(limit=2):
                if cancelled < 8 and job.cell == "decode" and job.state in ("RUNNING", "QUEUED"):
                    with suppress(DjinnError):
                        pool.rest.cancel(job.job)
                        cancelled += 1
            if len(agents[0].rows) > 5 and not killed:
                kill_worker(pool)
                killed = True
        assert killed
        assert cancelled
        for thread in threads:
            thread.join()
        for agent in agents:
            with torch.no_grad():
                expected = decode(agent.layers, agent.row, agent.past)
            assert agent.rows
            for row in agent.rows:
                torch.testing.assert_close(row, expected, rtol=TOLERANCE, atol=TOLERANCE)
        states = {job.state for job in pool.rest.jobs(limit=400)}
        assert states <= {"DONE", "FAILED", "CANCELLED"}, states
