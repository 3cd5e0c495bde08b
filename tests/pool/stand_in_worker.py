"""A small worker process that speaks the pool's protocol and runs ops as no-ops, for tests of the pool alone.

An op's scope says in ``module`` what it does: ``sleep S``, ``crash``, ``wear`` (out), ``fail TEXT``, or
nothing.
Values are counted by their metas; fetched ones are zeros, or the uploaded bytes. It also listens while it
sleeps.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import struct
import time
import uuid
from pathlib import Path

from djinn_lab.protocol import worker as wire
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.program import Program, decode_program

INLINE_BYTES_MAX = 64 * 2**10
LACKS_VARIABLE = "PYTHON_STAND_IN_LACKS"
"""Environment variable: ops that its torch does not have."""
TORCH_VERSION = "0"


class Cancelled(Exception):
    pass


class Failed(Exception):
    def __init__(self, family: str, type_name: str, message: str) -> None:
        super().__init__(message)
        self.failure = wire.RemoteFailure(family, type_name, message, None, None, ["frame"])


class StandIn:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.connection = socket.socket(fileno=arguments.fd)
        self.values: dict[str, dict[int, int]] = {}
        self.waiting: list[wire.ToWorker] = []
        self.executed = 0
        self.worn_out = False

    def run(self) -> None:
        arguments = self.arguments
        self.send(
            wire.WorkerReady(
                arguments.device,
                "cpu",
                "stand-in",
                arguments.memory_bytes,
                arguments.threads,
                TORCH_VERSION,
                lacking_ops=tuple(os.environ.get(LACKS_VARIABLE, "").split()),
            )
        )
        while True:
            message = self.waiting.pop(0) if self.waiting else self.receive()
            match message:
                case wire.RunSegment():
                    self.run_segment(message)
                case wire.Release():
                    for value in message.values:
                        self.values.get(message.session, {}).pop(value, None)
                    self.send(wire.Released(message.session, self.memory()))
                case wire.Close():
                    self.values.pop(message.session, None)
                    self.send(wire.Closed(message.session, self.memory()))
                case wire.Calibrate():
                    self.send(wire.DeviceMeasured(DeviceCurves.of_rates(1e9, 1e9, 1e-6)))
                case wire.Lease():
                    self.send(wire.Leased(message.limit_bytes))
                case wire.Shutdown():
                    return

    def run_segment(self, run: wire.RunSegment) -> None:
        program = decode_program(run.program)
        self.executed = 0
        self.send(wire.SegmentStarted(run.job, run.segment, len(program.nodes)))
        try:
            done = self.execute(run, program)
        except Failed as failed:
            self.send(wire.SegmentFailed(run.job, run.segment, failed.failure, self.executed, self.memory()))
        except Cancelled:
            self.send(wire.SegmentCancelled(run.job, run.segment, self.executed, self.memory()))
        else:
            self.send(done)
            if self.worn_out:
                self.send(wire.WornOut(2**30, 2**30))

    def execute(self, run: wire.RunSegment, program: Program) -> wire.SegmentDone:
        held = self.values.setdefault(run.session, {})
        for value in program.release:
            held.pop(value, None)
        loaded: dict[int, bytes] = {}
        for source in program.sources:
            if source.blob is not None:
                loaded[source.value] = self.blob(run.blobs[source.blob])
                held[source.value] = len(loaded[source.value])
            elif source.value not in held:
                raise Failed("pool", "ValueLost", f"value {source.value} is not held")
        starts, ends = [], []
        metas = {source.value: program.metas[source.meta] for source in program.sources}
        began = time.perf_counter()
        for node in program.nodes:
            starts.append(time.perf_counter() - began)
            self.act(run, program.scopes[node.scope].module, len(program.nodes))
            for output, meta in zip(node.outputs, node.output_metas, strict=True):
                if output is not None and meta is not None:
                    metas[output] = program.metas[meta]
                    if output in program.keep:
                        held[output] = program.metas[meta].nbytes
            self.executed += 1
            ends.append(time.perf_counter() - began)
        fetched = []
        for value in program.fetch:
            data = loaded.get(value, bytes(metas[value].nbytes))
            name = None
            if len(data) > INLINE_BYTES_MAX:
                name = f"result-{uuid.uuid4()}"
                (Path(self.arguments.result_directory) / name).write_bytes(data)
            fetched.append(wire.FetchedTensor(value, metas[value], None if name else data, name))
        run_s = time.perf_counter() - began
        return wire.SegmentDone(
            run.job,
            run.segment,
            fetched,
            [],
            None,
            0.0,
            run_s,
            0.0,
            self.memory(),
            node_times=wire.pack_times(starts, ends),
        )

    def blob(self, name: str) -> bytes:
        return (Path(self.arguments.store_directory) / name).read_bytes()

    def act(self, run: wire.RunSegment, what: str, total: int) -> None:
        verb, _, rest = what.partition(" ")
        if verb == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if verb == "wear":
            self.worn_out = True
        if verb == "fail":
            raise Failed("user", "RuntimeError", rest)
        if verb == "sleep":
            until = time.perf_counter() + float(rest)
            while time.perf_counter() < until:
                self.listen(until - time.perf_counter(), run.job)
                self.send(wire.SegmentProgress(run.job, run.segment, self.executed, total))

    def listen(self, timeout_s: float, job: str) -> None:
        readable, _, _ = select.select([self.connection], [], [], max(0.0, timeout_s))
        if readable:
            message = self.receive()
            if isinstance(message, wire.Cancel) and message.job == job:
                raise Cancelled
            if isinstance(message, wire.Shutdown):
                raise SystemExit
            self.waiting.append(message)

    def memory(self) -> wire.WorkerMemory:
        sessions = {session: sum(held.values()) for session, held in self.values.items()}
        used = sum(sessions.values())
        return wire.WorkerMemory(used, used, sessions)

    def send(self, message: wire.FromWorker) -> None:
        body = wire.encode(message)
        self.connection.sendall(struct.pack(">I", len(body)) + body)

    def receive(self) -> wire.ToWorker:
        length = struct.unpack(">I", self.read(4))[0]
        message: wire.ToWorker = wire.decode_to_worker(self.read(length))
        if isinstance(message, wire.Ping):
            self.send(wire.Pong())
        return message

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.connection.recv(count - len(data))
            if not more:
                raise SystemExit
            data += more
        return data


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--store-directory", required=True)
    parser.add_argument("--result-directory", required=True)
    StandIn(parser.parse_known_args()[0]).run()


if __name__ == "__main__":
    main()
