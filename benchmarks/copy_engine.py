"""Measure a worker's copy engine without a pool: how fast it parks and restores memory, and how much that
delays a program that runs meanwhile."""

from __future__ import annotations

import queue
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.bench import Bench
from benchmarks.decode_programs import Decoder
from benchmarks.figures import OURS, Figure, Goal, figure
from djinn_lab.protocol import worker as messages
from djinn_lab.protocol.worker import CopyDone
from djinn_lab.srg.program import Program, encode_program
from djinn_lab.worker.copying import Copies
from djinn_lab.worker.host_arena import HostArena
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.link import CpuLink
from djinn_lab.worker.pieces import PieceStore
from djinn_lab.worker.process import memory_report
from djinn_lab.worker.tier_service import Answer, Message, TierService
from djinn_lab.worker.tiers import Tiers

NAME = "copy-engine"
LINK_BYTES_PER_S = 200 * 10**6
"""Of the throttle that stands for a link on CPU devices, as the pool's default and the memory benchmarks
have it."""
MEMORY_BYTES = 2**30
DECODED_TOKENS = 64
STORE_EVERY_TOKENS = 16
PROMPT_TOKENS = 2048


class Engine:
    """A CPU device's interpreter with its tiers and lanes, in this process."""

    def __init__(self, directory: Path, link_bytes_per_s: float) -> None:
        store = PieceStore(HostArena(MEMORY_BYTES, directory, "cpu:0"))
        tiers, device = Tiers(store), torch.device("cpu")
        self.interpreter = Interpreter(device, MEMORY_BYTES, directory, tiers)
        link = CpuLink(link_bytes_per_s)
        copies = Copies(tiers, link, self.interpreter.memory, device, self.interpreter.sessions)
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._service = TierService(
            copies, self.interpreter.values_of, lambda: memory_report(self.interpreter), self._answers.put
        )
        self._sent = 0

    def stop(self) -> None:
        self._service.stop()

    def run(self, session: str, program: Program) -> None:
        encoded = encode_program(program)
        outcome = self.interpreter.run(session, encoded, {}, lambda: None, lambda done, total: None)
        assert outcome.failure is None, outcome.failure

    def send(self, message: Message) -> None:
        self._sent += 1
        self._service.handle(message)

    def answer(self) -> CopyDone:
        answer = self._answers.get()
        assert isinstance(answer, CopyDone), answer
        self._sent -= 1
        return answer

    def ask(self, message: Message) -> CopyDone:
        self.send(message)
        return self.answer()

    def settle(self) -> None:
        """Wait for the answers to all messages."""
        while self._sent:
            self.answer()


@contextmanager
def engine(link_bytes_per_s: float = 0.0) -> Iterator[Engine]:
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None, prefix="djinn-bench-") as made:
        started = Engine(Path(made), link_bytes_per_s)
        try:
            yield started
        finally:
            started.stop()


def measure(bench: Bench) -> list[Figure]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_release(bench), _restore(bench), _beside(bench, 0.0), _beside(bench, LINK_BYTES_PER_S)]
    finally:
        torch.set_num_threads(before)


def _release(bench: Bench) -> Figure:
    """From the order to evict to its answer, of a session that is stored, beside one that is stored first."""
    with engine() as running:
        decoder = Decoder()
        running.run("llm", decoder.prefill(PROMPT_TOKENS, more_values=600))
        held = memory_report(running.interpreter).used_bytes

        def sample() -> float:
            running.ask(messages.StoreState(1, "llm"))
            started = perf_counter()
            running.ask(messages.Evict(2, "llm"))
            elapsed_s = perf_counter() - started
            running.ask(messages.Restore(3, "llm"))
            return elapsed_s * 1e3

        def copied_first() -> float:
            running.ask(messages.Forget(4, "llm"))
            started = perf_counter()
            running.ask(messages.StoreState(5, "llm"))
            running.ask(messages.Evict(6, "llm"))
            elapsed_s = perf_counter() - started
            running.ask(messages.Restore(7, "llm"))
            return elapsed_s * 1e3

        taken = bench.alternate({OURS: sample, "copied first": copied_first}, 100)
        return figure(NAME, "release", "ms", taken, [Goal(2.0)], bytes=held, values=decoder.values)


def _restore(bench: Bench) -> Figure:
    """Bytes of a session over the time of their copy, with every piece checked, beside the link's rate."""
    with engine(LINK_BYTES_PER_S) as throttled, engine() as free:
        decoder = Decoder()
        program = decoder.prefill(PROMPT_TOKENS)
        for one in (throttled, free):
            one.run("llm", program)
        held = memory_report(free.interpreter).used_bytes
        source, target = torch.ones(held, dtype=torch.uint8), torch.empty(held, dtype=torch.uint8)

        def restored(one: Engine) -> float:
            one.ask(messages.StoreState(1, "llm"))
            one.ask(messages.Evict(2, "llm"))
            done = one.ask(messages.Restore(3, "llm"))
            return done.copied_bytes / done.copy_s / 1e9

        def memcpy() -> float:
            started = perf_counter()
            target.copy_(source)
            return held / (perf_counter() - started) / 1e9

        taken = bench.alternate(
            {
                OURS: lambda: restored(throttled),
                "link": lambda: LINK_BYTES_PER_S / 1e9,
                "unthrottled": lambda: restored(free),
                "memcpy": memcpy,
            },
            9,
        )
        return figure(NAME, "restore, checked", "GB/s", taken, bytes=held)


def _beside(bench: Bench, link_bytes_per_s: float) -> Figure:
    """A token of a decoding session while its prompt's pieces are stored (``djinn``), while another session
    is, and with nothing besides."""
    with engine(link_bytes_per_s) as running:

        def decode(stored: str | None) -> float:
            decoder, idle = Decoder(), Decoder()
            running.run("idle", idle.prefill(PROMPT_TOKENS))
            running.run("llm", decoder.prefill(PROMPT_TOKENS))
            started = perf_counter()
            for token in range(DECODED_TOKENS):
                if stored is not None and token % STORE_EVERY_TOKENS == 0:
                    running.send(messages.StoreState(1, stored))
                running.run("llm", decoder.decode())
            elapsed_s = perf_counter() - started
            running.settle()
            for session in ("llm", "idle"):
                running.interpreter.close(session)
            return elapsed_s / DECODED_TOKENS * 1e3

        taken = bench.alternate(
            {
                OURS: lambda: decode("llm"),
                "nothing besides": lambda: decode(None),
                "another session stored": lambda: decode("idle"),
            },
            25,
        )
        link = f"{link_bytes_per_s / 1e6:.0f} MB/s link" if link_bytes_per_s else "no throttle"
        goals = [Goal(1.03, baseline="nothing besides")]
        return figure(NAME, f"token with write-through, {link}", "ms", taken, goals)
