"""A copy of what a run made is not known before the run's answer: killed between the two, the pool would run
the segment again on a state that has it already."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.processes
CHILD = "import test_answers_before_copies as test; print(test.order_of_messages())"
"""In a process of its own: a worker gives its process another allocator."""


def order_of_messages() -> list[str]:
    """Run a segment on a worker that takes long to answer it, with a copy under way meanwhile."""
    from programs import Script

    from djinn_lab.protocol import worker as messages
    from djinn_lab.srg.program import encode_program
    from djinn_lab.worker.framing import FrameReader, send_frame
    from djinn_lab.worker.outcome import Outcome
    from djinn_lab.worker.process import WorkerProcess
    from djinn_lab.worker.tiers import TierLimits

    pool, theirs = socket.socketpair()
    frames = FrameReader(pool)
    said: list[messages.FromWorker] = []
    copied, over = threading.Event(), threading.Event()

    class SlowToAnswer(WorkerProcess):
        def _answer(self, message: messages.RunSegment, outcome: Outcome) -> messages.FromWorker:
            order = messages.StoreState(1, "ann")
            send_frame(pool, messages.encode(order))
            copied.wait(1.0)
            return super()._answer(message, outcome)

    def no_libraries(path: str) -> Any:
        raise AssertionError(path)

    def listen() -> None:
        while len({type(one) for one in said} & {messages.SegmentDone, messages.CopyDone}) < 2:
            frame = frames.next()
            assert frame is not None
            said.append(messages.decode_from_worker(frame))
            if isinstance(said[-1], messages.CopyDone):
                copied.set()
        over.set()

    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        place = Path(made)
        limits = TierLimits(2**24, place)
        worker = SlowToAnswer(theirs, "cpu:0", 2**24, place, place, limits, loader=no_libraries)
        threading.Thread(target=worker.serve, daemon=True).start()
        threading.Thread(target=listen, daemon=True).start()
        script = Script()
        value = script.load(torch.ones(4))
        run = messages.RunSegment("job", 0, "ann", encode_program(script.program(keep=(value,))), serial=1)
        send_frame(pool, messages.encode(run))
        assert over.wait(60)
    ends = (messages.SegmentDone, messages.CopyDone)
    return [type(one).__name__ for one in said if isinstance(one, ends)]


def test_a_copy_of_what_a_run_made_comes_after_its_answer() -> None:
    paths = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    code = f"import sys; sys.path[:0] = {paths!r}; {CHILD}"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert child.stdout.strip().splitlines()[-1:] == ["['SegmentDone', 'CopyDone']"], child.stderr[-2000:]
