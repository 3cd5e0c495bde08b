"""Programs in one thread and all kinds of copies in others, with as many switches as Python can be made to
do: values and counts stay right."""

from __future__ import annotations

import queue
import random
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from audit import audit
from test_any_order import AnyOrder
from worker_kit import Device

from djinn_lab.protocol import worker as messages
from djinn_lab.worker import cuts, storages

ROUNDS = 25
HELD_MAX = 40
"""Values of the session that runs; on a slow machine it runs for long, and shall not fill the device."""


@pytest.fixture
def many_switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(storages, "PIECE_BYTES", 64)
    monkeypatch.setattr(cuts, "TOKENS_PER_PIECE", 4)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Policy(threading.Thread):
    """Store running sessions; park, demote and restore sessions from ``lent``, then return them restored."""

    def __init__(self, device: Device, seed: int) -> None:
        super().__init__()
        self.lent: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.given_back: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.problems: list[object] = []
        self._device = device
        self._random = random.Random(seed)

    def run(self) -> None:
        try:
            while (session := self.lent.get()) is not None:
                self.move(session)
                self.given_back.put(session)
        except BaseException as error:  # noqa: BLE001 - the test's own thread looks at it
            self.problems.append(error)
            self.given_back.put("")

    def move(self, session: str) -> None:
        device, chance = self._device, self._random
        for other in ("ann", "bob"):
            device.ask(messages.StoreState(device.number(), other))
        for _ in range(chance.randrange(1, 4)):
            device.park(session)
            if chance.random() < 0.4:
                device.ask(messages.Demote(device.number(), session))
            device.ask(messages.Restore(device.number(), session, expedited=chance.random() < 0.5))
            if chance.random() < 0.3:
                device.ask(messages.Forget(device.number(), session))


@pytest.mark.usefixtures("many_switches")
@pytest.mark.parametrize("seed", range(4))
def test_copies_beside_programs(make_device: Callable[..., Device], seed: int) -> None:
    device = make_device(memory_bytes=2**20, host_bytes=2**20, disk_bytes=2**20)
    work = AnyOrder(device, seed)
    steps = [work.compute, work.look, work.write, work.prefill, work.decode, work.decode, work.load_weight]
    policy = Policy(device, seed)
    policy.start()
    try:
        for _ in range(ROUNDS):
            runs, idle = work.random.sample(["ann", "bob"], 2)
            policy.lent.put(idle)
            while policy.given_back.empty():
                work.random.choice(steps)(runs)
                while work.held(runs) > HELD_MAX:
                    work.release(runs)
                if work.random.random() < 0.3:
                    work.release(idle)  # its client lets go of values at any time
                memory = device.memory()
                assert memory.used_bytes <= device.interpreter.memory.limit_bytes
                assert sum(memory.session_bytes.values()) + memory.shared_bytes <= memory.used_bytes
            policy.given_back.get()
            assert not policy.problems, policy.problems
            audit(device)
            for session in ("ann", "bob"):
                work.compare(session)
                if len(work.owner(session).matrices) > 20:
                    work.close(session)
    finally:
        policy.lent.put(None)
        policy.join()
