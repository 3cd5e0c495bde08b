"""Cells that move aside on a live pool and go on later: what they compute, and what their users are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pool_kit import Client, http, rest, running_pool
from training import training

from djinn_lab.protocol.messages import SegmentResult
from djinn_lab.protocol.runtime_file import RuntimeInfo
from djinn_lab.srg.program import Program

pytestmark = pytest.mark.processes

MIB = 2**20
STEPS = 1200


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeInfo]:
    directory = tmp_path_factory.mktemp("preemption")
    with running_pool(directory, "cpu:1", memory_bytes=64 * MIB, worker_command=None) as info:
        yield info


def preempt(info: RuntimeInfo, job: str, token: str | None = None) -> int:
    with http(info, token) as client:
        return client.post(f"/v1/jobs/{job}/preempt").status_code


def weights(result: SegmentResult) -> list[bytes]:
    assert result.outcome == "done", result.error
    found = [tensor.data for tensor in result.fetched]
    assert all(found)
    return [data for data in found if data is not None]


def undisturbed(info: RuntimeInfo, program: Program) -> SegmentResult:
    with Client(info) as client:
        return client.run(program)


def test_training_moves_aside_again_and_again_and_ends_as_if_it_had_not(pool: RuntimeInfo) -> None:
    program, _ = training(STEPS, size=128)
    expected = undisturbed(pool, program)
    short, _ = training(2, seed=1)
    with Client(pool) as ann, Client(pool) as bob:
        job = ann.submit(program)
        for _ in range(5):
            ann.until(job, "RUNNING")
            waiting = bob.submit(short)
            bob.until(waiting, "QUEUED")
            assert preempt(pool, job) == 200
            assert bob.result(waiting).outcome == "done"
        result = ann.result(job)
        assert any(update.state == "PREEMPTED" for update in ann.updates)
    assert weights(result) == weights(expected)
    assert result.rng_state == expected.rng_state
    assert result.executed == expected.executed == len(program.nodes)
    assert result.stages["preempted"] > 0
    assert sum(result.stages.values()) == pytest.approx(result.pool_s, rel=0.01)
    events = [line["event"] for line in rest(pool).job(job)["events"]]
    assert events.count("SegmentPreempted") == 5
