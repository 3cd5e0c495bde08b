"""The worker process: a reader thread takes messages (so that a cancel is seen in mid-run), the main
thread runs them."""

from __future__ import annotations

import os
import queue
import resource
import socket
import threading
from pathlib import Path
from time import perf_counter

import torch

from djinn_lab.worker import messages
from djinn_lab.worker.calibration import measure
from djinn_lab.worker.framing import receive_frame, send_frame
from djinn_lab.worker.interpreter import Interpreter, Outcome

PROGRESS_INTERVAL_S = 0.2
ADDRESS_SLACK_BYTES = 2**30


class WorkerProcess:
    def __init__(self, connection: socket.socket, device: str, memory_bytes: int, directory: Path) -> None:
        self._connection = connection
        self._name = device
        self._device = torch.device("cpu" if device.startswith("cpu") else device)
        self._interpreter = Interpreter(self._device, memory_bytes, directory)
        self._memory_bytes = memory_bytes
        self._inbox: queue.SimpleQueue[messages.ToWorker | None] = queue.SimpleQueue()
        self._cancelled: set[str] = set()
        self._sent_at = 0.0

    def serve(self) -> None:
        """Until the pool closes the connection or says shutdown."""
        threading.Thread(target=self._read, daemon=True).start()
        self._send(self._ready())
        while True:
            message = self._inbox.get()
            if message is None or isinstance(message, messages.Shutdown):
                return
            if isinstance(message, messages.RunSegment):
                self._run(message)
            elif isinstance(message, messages.CloseSession):
                self._interpreter.close(message.session)
                self._send(messages.SessionClosed(message.session, self._memory()))
            elif isinstance(message, messages.Calibrate):
                self._send(measure(self._device))

    def _read(self) -> None:
        while True:
            frame = receive_frame(self._connection)
            if frame is None:
                self._inbox.put(None)
                return
            message = messages.decode_to_worker(frame)
            if isinstance(message, messages.CancelSegment):
                self._cancelled.add(message.job)
            else:
                self._inbox.put(message)

    def _run(self, message: messages.RunSegment) -> None:
        job, cancelled = message.job, self._cancelled

        def report(done: int, total: int) -> None:
            now = perf_counter()
            if done == 0:
                self._sent_at = now
                self._send(messages.SegmentStarted(job, message.segment, total))
            elif now - self._sent_at > PROGRESS_INTERVAL_S:
                self._sent_at = now
                self._send(messages.SegmentProgress(job, message.segment, done, total))

        outcome = self._interpreter.run(
            message.session, message.program, message.blobs, lambda: job in cancelled, report, message.key
        )
        cancelled.discard(job)
        self._send(self._answer(message, outcome))

    def _answer(self, message: messages.RunSegment, outcome: Outcome) -> messages.FromWorker:
        memory = self._memory()
        if outcome.failure is not None:
            return messages.SegmentFailed(
                message.job, message.segment, outcome.failure, outcome.executed, memory
            )
        if outcome.stopped:
            return messages.SegmentCancelled(message.job, message.segment, outcome.executed, memory)
        return messages.SegmentDone(
            job=message.job,
            segment=message.segment,
            fetched=outcome.fetched,
            dynamic_metas=outcome.dynamic_metas,
            rng_state=outcome.rng_state,
            node_start_s=outcome.node_start_s,
            node_end_s=outcome.node_end_s,
            load_s=outcome.load_s,
            run_s=outcome.run_s,
            fetch_s=outcome.fetch_s,
            memory=memory,
        )

    def _memory(self) -> messages.WorkerMemory:
        account = self._interpreter.memory
        by_session = {name: values.nbytes for name, values in self._interpreter.sessions.items()}
        return messages.WorkerMemory(account.used_bytes, account.peak_bytes, by_session)

    def _ready(self) -> messages.WorkerReady:
        kind = self._device.type
        name = torch.cuda.get_device_name(self._device) if kind == "cuda" else _processor_name()
        return messages.WorkerReady(
            device=self._name,
            kind=kind,
            name=name,
            memory_bytes=self._memory_bytes,
            threads=torch.get_num_threads(),
            torch_version=str(torch.__version__),
            pid=os.getpid(),
        )

    def _send(self, message: messages.FromWorker) -> None:
        send_frame(self._connection, messages.encode(message))


def _processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "CPU"


def limit_address_space(memory_bytes: int) -> None:
    """A backstop behind the account: memory that ops take inside (workspaces) is bounded by the kernel."""
    status = Path("/proc/self/status").read_text()
    data = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))
    limit = data + memory_bytes + memory_bytes // 4 + ADDRESS_SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
