"""How soon another cell has a device that is in the middle of a long one, and what that costs the long one: a
real worker process and its messages, without a pool."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import TypeVar

import torch

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.samples import Summary
from djinn_lab.protocol import worker as messages
from djinn_lab.srg.program import (
    NodeRecord,
    Program,
    ScalarHole,
    Scope,
    Source,
    Template,
    TensorHole,
    TensorMeta,
    encode_program,
)
from djinn_lab.worker.framing import FrameReader, send_frame

NAME = "preemption"
MEMORY_BYTES = 2**30
STEPS = 40
SIZE = 192
PARKED_BYTES = 32 * 2**20
HOLE = TensorHole()
Kind = TypeVar("Kind", bound=messages.FromWorker)


def dropout_chain(steps: int, ballast_bytes: int = 0) -> Program:
    """Matrix products with random masks, four ops a step; ``ballast_bytes`` are held all the time. The last
    result is fetched."""
    square = TensorMeta("float32", (SIZE, SIZE), (SIZE, 1))
    flat = TensorMeta("float32", (ballast_bytes // 4,), (1,))
    weight = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1)) / SIZE**0.5
    inline = weight.view(-1).view(torch.uint8).numpy().tobytes()
    templates = [
        Template("aten.mm.default", [HOLE, HOLE], {}),
        Template("aten.relu.default", [HOLE], {}),
        Template("aten.bernoulli.p", [HOLE, 0.5], {}),
        Template("aten.mul.Tensor", [HOLE, HOLE], {}),
        Template("aten.zeros.default", [[ballast_bytes // 4]], {}),
        Template("aten.add_.Tensor", [HOLE, ScalarHole()], {}),
    ]
    nodes = [NodeRecord(4, (), (2,), (1,), (2,), 0), NodeRecord(5, (2,), (2,), (1,), (2,), 0, (1.0,))]
    last = 1
    for step in range(steps):
        first = 3 + 4 * step
        made = [(0, (last, 1)), (1, (first,)), (2, (first + 1,)), (3, (first + 1, first + 2))]
        nodes += [
            NodeRecord(template, inputs, (first + place,), (0,), (first + place,), 0)
            for place, (template, inputs) in enumerate(made)
        ]
        last = first + 3
    nodes.append(NodeRecord(5, (2,), (2,), (1,), (2,), 0, (1.0,)))
    state = torch.Generator().manual_seed(2).get_state().numpy().tobytes()
    source = Source(1, 1, 0, "weight", None, inline)
    scope = Scope("", 0, "", 0, "other")
    return Program((square, flat), templates, (scope,), (source,), nodes, fetch=(last,), rng_state=state)


class Worker:
    """A CPU device's process, with one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "djinn_lab.worker", "--fd", str(theirs.fileno())]
        command += ["--device", "cpu:0", "--memory-bytes", str(MEMORY_BYTES), "--threads", "1"]
        command += ["--store-directory", str(directory), "--result-directory", str(directory)]
        command += ["--host-directory", str(directory)]
        command += ["--host-bytes", str(MEMORY_BYTES)]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self._connection, self._frames = ours, FrameReader(ours)
        self.wait_for(messages.WorkerReady)

    def send(self, message: messages.ToWorker) -> None:
        send_frame(self._connection, messages.encode(message))

    def wait_for(self, *kinds: type[Kind]) -> Kind:
        while True:
            frame = self._frames.next()
            assert frame is not None, "the worker is gone"
            message = messages.decode_from_worker(frame)
            if isinstance(message, kinds):
                return message

    def result(self) -> tuple[messages.SegmentDone, bytes]:
        """The answer, and the bytes that were fetched."""
        done = self.wait_for(messages.SegmentDone)
        item = done.fetched[0]
        if item.data is not None:
            return done, item.data
        assert item.blob is not None
        result = self._directory / item.blob
        content = result.read_bytes()
        result.unlink()
        return done, content

    def stop(self) -> None:
        self.send(messages.Shutdown())
        self._process.wait()
        self._connection.close()


@contextmanager
def worker() -> Iterator[Worker]:
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None, prefix="djinn-bench-") as made:
        started = Worker(Path(made))
        try:
            yield started
        finally:
            started.stop()


class Contest:
    """A long program of ``ann`` runs when another session's is wanted. ``ops_ms``: the op that ran then;
    ``out_s``, ``back_s``: what moving its state took; ``cost_ms``: by contender, what the long program took
    of the device in all."""

    def __init__(self, running: Worker, ballast_bytes: int, parks: bool) -> None:
        self._worker = running
        self._long = encode_program(dropout_chain(STEPS, ballast_bytes))
        self._short = encode_program(dropout_chain(1))
        self._parks = parks
        self._random = random.Random(1)
        self.ops_ms: list[float] = []
        self.cost_ms: dict[str, list[float]] = {}
        self.out_s: list[float] = []
        self.back_s: list[float] = []
        undisturbed = [self._undisturbed() for _ in range(5)]
        self._expected = undisturbed[0][1]
        self._run_s = min(done.run_s for done, _ in undisturbed)
        self.equal = True

    def preempted(self) -> float:
        """Until the other's first op begins, in ms; the op that ran has to end first."""
        while True:
            self._begin()
            decided_s = perf_counter()
            self._worker.send(messages.Preempt("long", 0))
            stopped = self._worker.wait_for(messages.RunPreempted, messages.SegmentDone)
            if isinstance(stopped, messages.RunPreempted):
                break  # else it ended before it saw the request
        if self._parks:
            self.out_s.append(self._moved(messages.StoreState(1, "ann"), messages.Evict(2, "ann")))
        free_s = self._other_began() - decided_s
        if self._parks:
            self.back_s.append(self._moved(messages.Restore(3, "ann")))
        self._send_long(messages.Resume(stopped.executed, stopped.rng_state))
        done, content = self._worker.result()
        self.equal &= content == self._expected
        op_s = stopped.node_end_s[-1] - stopped.node_start_s[-1] if stopped.node_end_s else 0.0
        self.ops_ms.append(op_s * 1e3)
        self._cost(OURS, stopped.load_s + stopped.run_s + done.load_s + done.run_s)
        return free_s * 1e3

    def waited(self) -> float:
        self._begin()
        decided_s = perf_counter()
        done, content = self._worker.result()
        free_s = self._other_began() - decided_s
        self.equal &= content == self._expected
        self._cost("waiting for its end", done.load_s + done.run_s)
        return free_s * 1e3

    def cancelled(self) -> float:
        """Cancel the long program for the other one, and run it again from the start."""
        began_s = self._begin()
        decided_s = perf_counter()
        self._worker.send(messages.Cancel("long"))
        self._worker.wait_for(messages.SegmentCancelled, messages.SegmentDone)
        ended_s = perf_counter()
        free_s = self._other_began() - decided_s
        done, _ = self._undisturbed()
        self._cost("cancel and run again", ended_s - began_s + done.load_s + done.run_s)
        return free_s * 1e3

    def _moved(self, *orders: messages.ToWorker) -> float:
        """Send transfers one after the other, and return how long they took in all."""
        started_s = perf_counter()
        for order in orders:
            self._worker.send(order)
            self._worker.wait_for(messages.CopyDone)
        return perf_counter() - started_s

    def _cost(self, contender: str, seconds: float) -> None:
        self.cost_ms.setdefault(contender, []).append(seconds * 1e3)

    def _begin(self) -> float:
        """Start the long program, wait until some of it has run, and return when it started."""
        self._send_long(None)
        self._worker.wait_for(messages.SegmentStarted)
        began_s = perf_counter()
        sleep(self._random.uniform(0.1, 0.6) * self._run_s)
        return began_s

    def _undisturbed(self) -> tuple[messages.SegmentDone, bytes]:
        self._send_long(None)
        return self._worker.result()

    def _send_long(self, resume: messages.Resume | None) -> None:
        self._worker.send(messages.RunSegment("long", 0, "ann", self._long, resume=resume))

    def _other_began(self) -> float:
        """Run the other session's program, and return when it began."""
        self._worker.send(messages.RunSegment("short", 0, "bob", self._short))
        self._worker.wait_for(messages.SegmentStarted)
        began_s = perf_counter()
        self._worker.result()
        return began_s


def parking_bytes_per_s(rounds: int) -> tuple[float, float]:
    """Return how fast a real worker parks the state of a preempted cell on the host and frees its memory, and
    how fast it restores the state; medians."""
    with worker() as running:
        contest = Contest(running, PARKED_BYTES, parks=True)
        for _ in range(rounds):
            contest.preempted()
    assert contest.equal
    return PARKED_BYTES / Summary.of(contest.out_s).median, PARKED_BYTES / Summary.of(contest.back_s).median


def measure(bench: Bench) -> list[Figure]:
    with worker() as running:
        stays = Contest(running, 0, parks=False)
        parks = Contest(running, PARKED_BYTES, parks=True)
        return [*_nothing_moved(bench, stays), _parked(bench, parks)]


def _nothing_moved(bench: Bench, contest: Contest) -> list[Figure]:
    contenders = {
        OURS: contest.preempted,
        "waiting for its end": contest.waited,
        "cancel and run again": contest.cancelled,
    }
    taken = bench.alternate(contenders, 200)
    kept = {name: samples[-len(taken[name]) :] for name, samples in contest.cost_ms.items()}
    op = Summary.of(contest.ops_ms)
    facts = {"equal": contest.equal, "op_median_ms": op.median, "op_p99_ms": op.p99}
    return [
        figure(NAME, "device free for another, both fit", "ms", taken, [_goal(op)], **facts),
        figure(NAME, "device time of the long cell", "ms", kept, equal=contest.equal),
    ]


def _parked(bench: Bench, contest: Contest) -> Figure:
    contenders = {OURS: contest.preempted, "waiting for its end": contest.waited}
    taken = bench.alternate(contenders, 200)
    op = Summary.of(contest.ops_ms)
    return figure(
        NAME,
        "device free for another, its state parked first",
        "ms",
        taken,
        [_goal(op)],
        equal=contest.equal,
        parked_bytes=PARKED_BYTES,
        op_median_ms=op.median,
        op_p99_ms=op.p99,
    )


def _goal(op: Summary) -> Goal:
    """Return the goal of a preemption: 50 ms and one op."""
    return Goal(round(50.0 + op.p99, 2), "p99")
