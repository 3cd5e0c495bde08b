"""A real worker process and its messages: copies beside a running program, and the state after a kill."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from programs import Script
from worker_kit import MIB, WorkerUnderTest, read_fetched, start_worker

from djinn_lab.protocol import worker as messages
from djinn_lab.srg.program import Program, encode_program

pytestmark = pytest.mark.processes

Start = Callable[[], WorkerUnderTest]
OwnWorker = Callable[[float], WorkerUnderTest]


@pytest.fixture
def own_worker(shared_memory: Path) -> Iterator[OwnWorker]:
    """Give a call that starts a worker with a link of so many bytes a second, used by no other test."""
    started: list[WorkerUnderTest] = []

    def begin(link_bytes_per_second: float) -> WorkerUnderTest:
        started.append(start_worker(shared_memory, link_bytes_per_second))
        return started[-1]

    yield begin
    for worker in started:
        if worker.process.poll() is None:
            worker.stop()


def ask(worker: WorkerUnderTest, message: messages.ToWorker) -> messages.CopyDone:
    worker.send(message)
    while True:
        answer = worker.receive()
        assert not isinstance(answer, messages.CopyFailed), answer
        if isinstance(answer, messages.CopyDone):
            return answer


def fetched(worker: WorkerUnderTest, session: str, program: Program) -> list[torch.Tensor]:
    return [read_fetched(item, worker.directory) for item in worker.run(session, program).fetched]


def test_ready_says_what_the_tiers_hold(start: Start, own_worker: OwnWorker) -> None:
    worker = own_worker(200e6)
    assert worker.ready.host_bytes == worker.ready.disk_bytes == 64 * MIB
    assert worker.ready.link_bytes_per_s == 200e6
    assert start().ready.link_bytes_per_s is None


def test_a_worker_ends_with_a_pool_that_dies_before_it_has_read_its_answers(
    own_worker: OwnWorker,
) -> None:
    worker = own_worker(0.0)
    worker.send(messages.Close("unknown"))
    assert select.select([worker.connection], [], [], 30)[0]
    worker.connection.close()
    assert worker.process.wait(30) == 0


def test_copies_of_one_session_while_another_runs(start: Start) -> None:
    worker = start()
    script, busy = Script(), Script()
    tensor = torch.randn(4 * MIB)
    value = script.load(tensor)
    worker.run("idle", script.program(keep=(value,)))
    matrix = busy.load(torch.randn(512, 512))
    for _ in range(3000):  # many seconds: all that follows happens meanwhile
        busy.op("aten.mm.default", matrix, matrix)
    worker.send(messages.RunSegment("long", 0, "busy", encode_program(busy.program())))
    worker.wait_for(messages.SegmentStarted)
    waiting: list[messages.ToWorker] = [
        messages.StoreState(1, "idle"),
        messages.Evict(2, "idle"),
        messages.Demote(3, "idle"),
        messages.Restore(4, "idle", expedited=True),
        messages.Forget(5, "idle"),
        messages.StoreState(6, "idle"),
        messages.Evict(7, "idle"),
    ]
    for message in waiting:
        worker.send(message)
        answer = worker.receive()
        while isinstance(answer, messages.SegmentProgress):
            answer = worker.receive()
        assert isinstance(answer, messages.CopyDone), answer
    worker.send(messages.Cancel("long"))
    worker.wait_for(messages.SegmentCancelled)
    ask(worker, messages.Restore(8, "idle"))
    assert torch.equal(fetched(worker, "idle", script.program(fetch=(value,)))[0], tensor)


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_sessions_of_a_killed_worker_are_restored_in_another(start: Start, tier: str) -> None:
    first = start()
    script = Script()
    tensor = torch.randn(MIB)
    value = script.load(tensor)
    view = script.op("aten.view.default", value, meta=script.metas[value], args=_view(MIB), view=True)
    first.run("ann", script.program(keep=(value, view)))
    answer = ask(first, messages.StoreState(1, "ann"))
    if tier == "disk":
        ask(first, messages.Evict(2, "ann"))
        answer = ask(first, messages.Demote(3, "ann"))
    assert answer.manifest is not None
    first.kill()
    second = start()
    restored = ask(second, messages.Restore(1, "ann", manifest=answer.manifest))
    assert (restored.checked_pieces, restored.copied_bytes) == (4, tensor.nbytes)
    script.write("aten.add_.Tensor", view, scalars=(1,))
    found = fetched(second, "ann", script.program(fetch=(value,)))
    assert torch.equal(found[0], tensor + 1)
    assert second.run("ann", script.program()).memory.unstored_bytes == {"ann": tensor.nbytes}


def _view(size: int) -> list[object]:
    from djinn_lab.srg.program import TensorHole

    return [TensorHole(), [size]]


def test_close_while_a_slow_copy_is_under_way(own_worker: OwnWorker) -> None:
    worker = own_worker(1e6)  # seconds for the tensor
    script = Script()
    value = script.load(torch.randn(4 * MIB))
    worker.run("ann", script.program(keep=(value,)))
    worker.send(messages.StoreState(1, "ann"))
    worker.send(messages.Close("ann"))
    assert worker.wait_for(messages.Closed).memory.used_bytes == 0
    other = Script()
    kept = other.load(torch.randn(10))
    memory = worker.run("bob", other.program(keep=(kept,))).memory
    assert (memory.used_bytes, memory.host_bytes) == (40, 0)
    assert ask(worker, messages.StoreState(2, "bob")).transfer == 2  # none for the closed session's


def test_a_release_reaches_a_session_that_is_parked(start: Start) -> None:
    worker = start()
    script = Script()
    kept, gone = script.load(torch.ones(1000)), script.load(torch.randn(1000))
    worker.run("ann", script.program(keep=(kept, gone)))
    ask(worker, messages.StoreState(1, "ann"))
    ask(worker, messages.Evict(2, "ann"))
    assert worker.run("ann", script.program(release=(gone,))).memory.host_bytes < 5000
    assert ask(worker, messages.Restore(3, "ann")).copied_bytes == 4000
    assert fetched(worker, "ann", script.program(fetch=(kept,)))[0].sum() == 1000


def test_an_op_whose_memory_is_filled_does_not_load_torchs_compiler() -> None:
    """That takes seconds, in each process of a device, at its first LSTM."""
    program = (
        "import sys, torch\n"
        "from djinn_lab.worker.guards.table import find_guard\n"
        "bag = torch.ops.aten._embedding_bag.default\n"
        "guard = find_guard('aten._embedding_bag.default', bag._schema)\n"
        "guard(bag, (torch.randn(9, 3), torch.tensor([1, 2, 4]), torch.tensor([0, 2])), {})\n"
        "print('torch._inductor' in sys.modules, torch.are_deterministic_algorithms_enabled())\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "False"]
