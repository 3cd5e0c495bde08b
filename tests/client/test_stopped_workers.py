"""A worker that is stopped, as by a debugger or a busy machine, holds up only its own cells."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from real_pool import DEADLINE_S, PoolUnderTest, wait_for

from djinn_lab.client.session import Session

pytestmark = pytest.mark.processes


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path, devices="cpu:2") as running:
        yield running


def doubled(session: Session, values: list[torch.Tensor]) -> torch.Tensor:
    with session.capture():
        values[0] = values[0] * 2
    return values[0].cpu()


def test_a_stopped_worker_keeps_its_values_and_blocks_no_other_device(pool: PoolUnderTest) -> None:
    ones = torch.ones(64, 64)
    with pool.session() as ann, pool.session() as bob:
        kept = {ann: [ones], bob: [ones]}
        for session in (ann, bob):
            doubled(session, kept[session])
        home = ann.device
        assert {home, bob.device} == {"cpu:0", "cpu:1"}
        (pid,) = [row.pid for row in pool.rest.status().devices if row.device == home]
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for(lambda: "silent" in [row.state for row in pool.rest.status().devices])
            answer: list[torch.Tensor] = []
            cell = threading.Thread(target=lambda: answer.append(doubled(ann, kept[ann])))
            cell.start()
            wait_for(lambda: any(job.finished_at is None for job in pool.rest.jobs()))
            (job,) = [one for one in pool.rest.jobs() if one.finished_at is None]
            assert "does not answer" in pool.rest.why(job.job).sentence
            for _ in range(3):
                assert torch.equal(doubled(bob, [ones]), 2 * ones)  # meanwhile
            with pool.session() as eve:
                assert torch.equal(doubled(eve, [ones]), 2 * ones)
            assert not answer
        finally:
            os.kill(pid, signal.SIGCONT)
        cell.join(DEADLINE_S)
        assert torch.equal(answer[0], 4 * ones)
        assert [row.restarts for row in pool.rest.status().devices] == [0, 0]
