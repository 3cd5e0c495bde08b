"""Real pools whose devices behave as GPUs do: values, late faults, memory that processes share, parking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from real_pool import PoolUnderTest, device_row, wait_for
from sweeps.cuda.pools import ACTS, walked

from djinn_lab.client.session import Session
from djinn_lab.errors import OptionError, PoolError
from djinn_lab.worker.sandbox import landlock

pytestmark = pytest.mark.processes
MIB = 2**20

OpenPool = Callable[..., AbstractContextManager[PoolUnderTest]]


@pytest.fixture
def open_pool(tmp_path: Path) -> OpenPool:
    """Return what opens a pool of stand-ins; at its end no access to the device was out of order."""

    @contextmanager
    def opened(
        devices: str = "standin:1",
        memory: int = 512 * MIB,
        launch_s: float = 3e-6,
        **options: object,
    ) -> Iterator[PoolUnderTest]:
        card = {"devices": 2, "memory_bytes": 1024 * MIB, "context_bytes": 16 * MIB, "launch_s": launch_s}
        wanted: dict[str, object] = {"accept_weak_isolation": True} | options
        (tmp_path / "pool").mkdir()
        with PoolUnderTest(tmp_path / "pool", devices, memory, card, **wanted) as pool:
            yield pool

    return opened


def grow(session: Session, value: torch.Tensor, times: int) -> torch.Tensor:
    with session.capture():
        for _ in range(times):
            value = value * 1.5 - value.mean() + 1
    return value


def grown(value: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        value = value * 1.5 - value.mean() + 1
    return value


def train(model: torch.nn.Module, steps: int) -> list[torch.Tensor]:
    """Train on numbers that the model's own parameters make; return its losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    numbers = torch.arange(64.0).reshape(8, 8).sin()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(numbers) - numbers.roll(1, 0)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 8)
    )


def test_training_has_the_values_of_plain_torch(open_pool: OpenPool) -> None:
    expected = train(network(), 20)
    with open_pool() as pool, pool.session() as session:
        row = device_row(pool, "standin:0")
        assert (row.kind, row.name, row.memory_bytes) == ("standin", "standin", 512 * MIB)
        model = network()
        with session.capture():
            losses = train(model, 20)
        found = [session.fetch(loss) for loss in losses]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_a_second_user_comes_in_by_default(open_pool: OpenPool) -> None:
    with open_pool(accept_weak_isolation=False) as pool:
        with pool.session() as ann, pool.session("bob") as bob:
            for session in (ann, bob):
                assert torch.equal(session.fetch(grow(session, torch.ones(3), 2)), grown(torch.ones(3), 2))
        assert device_row(pool, "standin:0").sandbox == "driver"


def test_a_driver_that_does_not_begin_in_the_sandbox_works_without_it(
    open_pool: OpenPool, tmp_path: Path
) -> None:
    command = tmp_path / "worker.py"
    command.write_text(
        "import runpy, sys\n"
        "if '--not-confined' not in sys.argv:\n"
        "    sys.exit('the driver needs a file that is out of reach')\n"
        "runpy.run_module('djinn_lab.worker', run_name='__main__', alter_sys=True)\n"
    )
    started = [sys.executable, str(command)]
    with open_pool(accept_weak_isolation=False, worker_command=started) as pool, pool.session() as ann:
        assert torch.equal(ann.fetch(grow(ann, torch.ones(3), 2)), grown(torch.ones(3), 2))
        assert device_row(pool, "standin:0").sandbox == "process-only"
        with pytest.raises(PoolError, match="does not hold"), pool.session("bob"):
            raise AssertionError("bob came in")


def test_a_fault_names_its_op_and_costs_nothing_else(open_pool: OpenPool) -> None:
    table = torch.nn.Embedding(10, 4)
    with open_pool() as pool, pool.session() as ann, pool.session("bob") as bob:
        held = {session: grow(session, torch.ones(100), 3) for session in (ann, bob)}
        with pytest.raises(torch.AcceleratorError, match=r"op aten\.embedding\.default") as raised:
            with ann.capture("lookup"):
                value = held[ann] * 2
                value = value + table(torch.tensor([3, 50])).sum()
                for _ in range(200):
                    value = value + 1
            ann.fetch(value)
        assert "recorded at lookup" in str(raised.value)
        for session, value in held.items():
            assert torch.equal(session.fetch(value), grown(torch.ones(100), 3))
        assert torch.equal(ann.fetch(grow(ann, held[ann], 2)), grown(torch.ones(100), 5))
        wait_for(lambda: device_row(pool, "standin:0").state == "idle")


def test_sessions_that_do_not_fit_together_are_parked_and_come_back(open_pool: OpenPool) -> None:
    with open_pool(memory=16 * MIB) as pool, ExitStack() as stack:
        sessions = [stack.enter_context(pool.session()) for _ in range(5)]
        values = [torch.full((MIB,), float(number)) for number in range(5)]
        for _ in range(3):
            values = [grow(session, value, 2) for session, value in zip(sessions, values, strict=True)]
        for number, (session, value) in enumerate(zip(sessions, values, strict=True)):
            assert torch.equal(session.fetch(value), grown(torch.full((MIB,), float(number)), 6))


def test_a_cell_that_is_preempted_goes_on_bit_for_bit(open_pool: OpenPool) -> None:
    count = 20_000
    with open_pool(launch_s=2e-4) as pool, pool.session() as ann, pool.session("bob") as bob:
        value = torch.linspace(0, 1, 1000)

        def run_beside() -> None:
            wait_for(lambda: any(job.ops_done > 0 for job in pool.rest.jobs()))
            with bob.capture(priority="CRITICAL"):
                urgent = torch.ones(10) + 1
            assert bob.fetch(urgent).sum() == 20

        with ThreadPoolExecutor(1) as beside:
            ran = beside.submit(run_beside)
            with ann.capture("long"):
                for _ in range(count):
                    value = torch.sin(value) + 0.5
            ran.result()
        expected = torch.linspace(0, 1, 1000)
        for _ in range(count):
            expected = torch.sin(expected) + 0.5
        assert torch.equal(ann.fetch(value), expected)


def test_what_a_user_does_on_a_gpu(open_pool: OpenPool) -> None:
    with open_pool(memory=128 * MIB) as pool:
        verdicts = walked(pool, ACTS, "standin:0", 128 * MIB)
    assert {name: verdict.said for name, verdict in verdicts.items() if not verdict.passed} == {}


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ("standin:9", "there are 2 of them, not 9"),
        ("nothing:1", "torch knows no devices called nothing"),
    ],
)
def test_accelerators_that_are_not_there_are_named(open_pool: OpenPool, devices: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        with open_pool(devices):
            raise AssertionError("it started")
