"""The memory of a worker's process over many turns, and where the system refuses some. In processes of their
own: a heap is a process's, and so are its limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from djinn_lab.native import why_missing
from djinn_lab.worker.executor import find_executor

FOLDERS = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
BEGIN = f"import sys; sys.path[:0] = {FOLDERS!r}\n"

TURNS = """
import random, torch
from djinn_lab.worker.executor import find_executor
from djinn_lab.worker import heap as heaps
from djinn_lab.worker.heap import KEPT_BYTES_MIN, Heap

heaps.LOOK_EVERY_S = -1.0
LIMIT = 64 * 2**20
heap = Heap(find_executor(), torch.device("cpu"), LIMIT)
chance = random.Random(0)
sessions, most = {}, []
for turn in range(3000):
    kind = chance.randrange(3)
    small = tuple(chance.randrange(64, 40_000) for _ in range(50))
    sizes = [(5 * 2**20,), (3 * 2**20 - 64, 70_000), small][kind]
    sessions[chance.randrange(8)] = [torch.ones(size, dtype=torch.uint8) for size in sizes]
    live = sum(one.untyped_storage().nbytes() for kept in sessions.values() for one in kept)
    most.append(heap.held_bytes() - live)
early, late = max(most[:300]), max(most[-300:])
assert late <= early + 2**22, (early, late)
assert max(most) <= KEPT_BYTES_MIN + 2**23, max(most)
del live
sessions.clear()
heap.trim()
assert heap.held_bytes() < 2**23, heap.held_bytes()
"""

REFUSED = """
import resource, tempfile, torch
from pathlib import Path
from programs import HOLE, Script
from worker_kit import MIB, Device
from djinn_lab.worker.executor import find_executor
from djinn_lab.worker.heap import Heap

torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as directory:
    device = Device(Path(directory), memory_bytes=2048 * MIB, host_bytes=0, native={native})
    device.interpreter.memory.heap = heap = Heap(find_executor(), torch.device("cpu"), 2048 * MIB)
    script = Script()
    kept = script.load(torch.arange(8.0))
    device.run("s", script.program(keep=(kept,)))
    data = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + 64 * MIB, resource.RLIM_INFINITY))
    large = script.op("aten.repeat.default", kept, shape=(128 * MIB,), args=[HOLE, [16 * MIB]])
    outcome = device.try_run("s", script.program(fetch=(large,)))
    assert outcome.failure is not None
    assert outcome.failure.family == "memory", outcome.failure
    assert "more memory for its own use than the worker can have" in outcome.failure.message, outcome.failure
    assert "and its process holds" in outcome.failure.message, outcome.failure
    again = script.op("aten.neg.default", kept)
    assert device.fetch("s", script.program(fetch=(again,)))[0].tolist() == [-float(i) for i in range(8)]
    device.close()
"""


def run(program: str) -> None:
    command = [sys.executable, "-c", BEGIN + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(find_executor() is None, reason=why_missing("executor") or "no extension")
def test_heap_of_sessions_that_take_turns_stays_as_large_as_at_first() -> None:
    run(TURNS)


@pytest.mark.parametrize("native", [True, False])
def test_op_that_the_system_refuses_memory_is_a_memory_error_with_numbers(native: bool) -> None:
    run(REFUSED.replace("{native}", str(native)))
