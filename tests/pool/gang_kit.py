"""A search over networks that train side by side, as a long cell, and what it must not leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import torch
from device_kind import KIND
from real_pool import PoolUnderTest, wait_for
from torch import nn
from torch.nn import functional as F

from djinn_lab.client.session import Session
from djinn_lab.jobs import Terms

DEVICE_BYTES = 2**28
RATES = (0.1, 0.05, 0.02, 0.01)
TOGETHER = f"It ran on 2 devices: {KIND}:0, {KIND}:1."


class Search:
    """Four small networks with a learning rate each. ``beside``: how many rounds of ops run before them on
    their common input, and after them on all their results."""

    def __init__(self, rows: int = 256, beside: int = 0) -> None:
        torch.manual_seed(0)
        self.models = [nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)) for _ in RATES]
        self.optimizers = [
            torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
            for model, rate in zip(self.models, RATES, strict=True)
        ]
        self.images, self.labels = torch.randn(rows, 64), torch.randint(0, 8, (rows,))
        self._beside = beside

    def train(self, steps: int) -> torch.Tensor:
        losses = []
        images = self.images
        if self._beside:
            torch.manual_seed(1)
        for _ in range(self._beside):
            images = images + 0.01 * torch.rand_like(images)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for _ in range(steps):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), self.labels)
                loss.backward()
                optimizer.step()
            losses.append(loss.detach())
        found = torch.stack(losses)
        for _ in range(self._beside):
            found = found + 0.01 * (images * found.mean()).mean()
        return found

    def weights(self) -> list[list[float]]:
        return [one.detach().flatten().tolist() for model in self.models for one in model.parameters()]

    def state(self) -> list[list[float]]:
        """Return the state of the optimizers."""
        found = [optimizer.state_dict()["state"] for optimizer in self.optimizers]
        return [
            buffer.flatten().tolist() for state in found for one in state.values() for buffer in one.values()
        ]


class LongCell:
    """A long cell in a thread of its own. ``job``: once it runs; ``losses``, ``raised``, ``gang_report``,
    ``stages``: once it has ended."""

    def __init__(self, session: Session, search: Search, steps: int, terms: Terms) -> None:
        self.job = ""
        self.losses: list[float] = []
        self.raised: list[BaseException] = []
        self.gang_report = ""
        self.stages: dict[str, float] = {}
        self._session, self._search, self._steps, self._terms = session, search, steps, terms
        self.thread = Thread(target=self._run)

    def _run(self) -> None:
        try:
            with self._session.capture("long", terms=self._terms) as cell:
                losses = self._search.train(self._steps)
            self.gang_report, self.stages = cell.report.gang, cell.report.stages
            self.losses = losses.tolist()
        except BaseException as error:  # noqa: BLE001 - for the test to look at
            self.raised.append(error)


@contextmanager
def running(
    pool: PoolUnderTest, session: Session, search: Search, steps: int, terms: Terms, ops: int = 100
) -> Iterator[LongCell]:
    """Start a long cell, and yield it once ``ops`` of its ops have run."""
    cell = LongCell(session, search, steps, terms)
    cell.thread.start()
    try:
        cell.job = pool.wait_for_job(session=session.welcome.session, state="RUNNING").job
        wait_for(lambda: pool.rest.job(cell.job).ops_done > ops)
        yield cell
    finally:
        cell.thread.join()


def other_of(device: str) -> str:
    """Return the other one of two devices."""
    return f"{KIND}:1" if device == f"{KIND}:0" else f"{KIND}:0"


def leaves_nothing_behind(pool: PoolUnderTest, session: Session) -> None:
    """Wait until the pool has no session of a part and no file that one part made for another."""
    wait_for(lambda: not any("/" in row.session for row in pool.rest.memory().sessions))
    assert session.welcome.blob_directory is not None
    results = Path(session.welcome.blob_directory).parent / "results"
    wait_for(lambda: not list(results.iterdir()))
