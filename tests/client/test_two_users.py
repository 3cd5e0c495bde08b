"""Two users on one device: the mishaps of one cost the other nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from device_kind import KIND
from real_pool import PoolUnderTest, wait_for
from torch import nn

from djinn_lab.client.session import Session
from djinn_lab.errors import DeviceMemoryError
from djinn_lab.protocol.rest.status import DeviceView

pytestmark = pytest.mark.processes

DEVICE_BYTES = 256 * 2**20


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1", memory_bytes=DEVICE_BYTES) as running:
        yield running


def device(pool: PoolUnderTest) -> DeviceView:
    (found,) = pool.rest.status().devices
    return found


def trained(session: Session, steps: int = 400) -> torch.Tensor:
    """Train in one cell, and return the weights."""
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 64), torch.randn(32, 64)
    optimizer = torch.optim.AdamW(layer.parameters())
    with session.capture():
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.dropout(layer(x)).pow(2).mean().backward()
            optimizer.step()
    return layer.weight.detach().cpu()


def iterated(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2000):
        x = torch.tanh(x @ x)
    return x.sum()


def test_a_killed_worker_spares_the_running_cell_of_another_user(pool: PoolUnderTest) -> None:
    with pool.session("ann") as ann, pool.session("bob") as bob, ThreadPoolExecutor(1) as threads:
        with ann.capture():
            hers = torch.ones(4) + 1
        x = torch.randn(256, 256)
        with bob.capture():
            kept = x + 0
        before = device(pool).workers["bob"]

        def compute() -> torch.Tensor:
            with bob.capture():
                found = iterated(kept)
            return found.cpu()

        computed = threads.submit(compute)
        pool.wait_for_job(user="bob", state="RUNNING")
        killed = device(pool).workers["ann"]
        os.kill(killed, signal.SIGKILL)
        assert torch.equal(computed.result(), iterated(x + 0))
        assert device(pool).workers["bob"] == before
        wait_for(lambda: device(pool).workers.get("ann") not in (None, killed))
        with ann.capture():
            again = torch.ones(4) + 1
        assert torch.equal(again.cpu(), torch.full((4,), 2.0))
        del hers


def test_users_who_do_not_fit_together_are_parked_for_each_other(pool: PoolUnderTest) -> None:
    count = DEVICE_BYTES * 5 // 8 // 4
    with pool.session("ann") as ann, pool.session("bob") as bob:
        held = {}
        for number, session in enumerate((ann, bob)):
            with session.capture():
                held[session] = torch.full((count,), float(number))
        for _ in range(3):
            for session in (ann, bob):
                with session.capture():
                    held[session] += 1
                assert device(pool).used_bytes <= DEVICE_BYTES
        for number, session in enumerate((ann, bob)):
            assert torch.equal(session.fetch(held[session]), torch.full((count,), number + 3.0))


def test_a_cell_too_large_beside_another_user_fails_alone(pool: PoolUnderTest) -> None:
    with pool.session("ann") as ann, pool.session("bob") as bob:
        with ann.capture():
            small = torch.ones(1000) * 2
        with pytest.raises(DeviceMemoryError), bob.capture():
            (torch.ones(DEVICE_BYTES // 2) + 1).sum().item()
        assert torch.equal(ann.fetch(small), torch.full((1000,), 2.0))
        assert torch.equal(trained(bob, steps=2), trained(ann, steps=2))
