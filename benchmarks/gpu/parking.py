"""How fast a worker parks a session on the host and restores it, beside pinned copies of its bytes."""

from __future__ import annotations

import queue
import tempfile
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.gpu.bench import GIB, GpuBench
from djinn_lab.protocol import worker as messages
from djinn_lab.srg.program import Program, Source, TensorMeta, encode_program
from djinn_lab.worker.accelerator.link import AcceleratorLink
from djinn_lab.worker.host_arena import HostArena
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.outcome import StopSignal
from djinn_lab.worker.pieces import PieceStore
from djinn_lab.worker.process import memory_report
from djinn_lab.worker.tier_service import Answer, Message, TierService
from djinn_lab.worker.tiers import Tiers

NAME = "gpu-parking"
GOAL = Goal(1 / 0.7, baseline="pinned copy")
VALUES = 16


def measure(bench: GpuBench) -> list[Figure]:
    value_bytes = bench.size(256, 4) * 2**20
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="djinn-bench-") as made:
        directory = Path(made)
        arena = HostArena(2 * VALUES * value_bytes, directory, "bench", registered_with=bench.device)
        link = AcceleratorLink(bench.device)
        tiers = Tiers(PieceStore(arena))
        interpreter = Interpreter(bench.device, 4 * VALUES * value_bytes + GIB, directory, tiers, link=link)
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        service = TierService(
            interpreter.copies, interpreter.values_of, lambda: memory_report(interpreter), answers.put
        )

        def ask(message: Message) -> float:
            began_s = perf_counter()
            service.handle(message)
            answer = answers.get()
            assert isinstance(answer, messages.CopyDone), answer
            return perf_counter() - began_s

        out, back = list[float](), list[float]()
        for turn in range(bench.size(5, 2)):
            _fill(interpreter, directory, value_bytes, turn)
            out.append(ask(messages.StoreState(3 * turn + 1, "bench")))
            ask(messages.Evict(3 * turn + 2, "bench"))
            back.append(ask(messages.Restore(3 * turn + 3, "bench")))
        service.stop()
        interpreter.close("bench")
    total = VALUES * value_bytes
    pinned = _pinned_s(bench, value_bytes, len(out))
    return [
        figure(NAME, name, "s", {OURS: taken, "pinned copy": pinned[name]}, [GOAL], nbytes=total)
        for name, taken in (("park", out), ("restore", back))
    ]


def _fill(interpreter: Interpreter, directory: Path, value_bytes: int, turn: int) -> None:
    """Load values of random bytes, other ones each time, in place of those before."""
    meta = TensorMeta("uint8", (value_bytes,), (1,))
    made = torch.Generator().manual_seed(turn)
    numbers = torch.randint(0, 256, (value_bytes,), dtype=torch.uint8, generator=made)
    blobs, sources = {}, []
    for number in range(VALUES):
        name = f"value{number}"
        (directory / name).write_bytes((numbers + number * 7).numpy().tobytes())
        blobs[name] = str(directory / name)
        sources.append(Source(turn * VALUES + number, turn * VALUES + number, 0, "input", name, None))
    keep = tuple(source.value for source in sources)
    gone = tuple(range((turn - 1) * VALUES, turn * VALUES)) if turn else ()
    program = Program((meta,), (), (), tuple(sources), [], keep, (), gone, None)
    outcome = interpreter.run("bench", encode_program(program), blobs, StopSignal(), lambda done, total: None)
    assert outcome.failure is None, outcome.failure
    for name in blobs:
        (directory / name).unlink()


def _pinned_s(bench: GpuBench, value_bytes: int, rounds: int) -> dict[str, list[float]]:
    on_device = torch.zeros(value_bytes, dtype=torch.uint8, device=bench.device)
    pinned = torch.zeros(value_bytes, dtype=torch.uint8, pin_memory=True)

    def copied(into: torch.Tensor, of: torch.Tensor) -> float:
        return bench.timed(lambda: [into.copy_(of, non_blocking=True) for _ in range(VALUES)])

    return {
        "park": [copied(pinned, on_device) for _ in range(rounds + 1)][1:],
        "restore": [copied(on_device, pinned) for _ in range(rounds + 1)][1:],
    }
