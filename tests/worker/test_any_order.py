"""Random programs of several sessions with copies in between in any order: values are equal to a run without
copies, the counts stay true, and no piece is lost or kept too long."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from time import sleep

import pytest
import torch
from audit import audit
from programs import Script
from sampled import sampled
from worker_kit import Answer, Device, Message, read_fetched, run_undisturbed

from djinn_lab.protocol import worker as messages
from djinn_lab.srg.program import Program, TensorMeta
from djinn_lab.worker import cuts, storages
from djinn_lab.worker.interpreter import Interpreter, Outcome
from djinn_lab.worker.link import CpuLink
from djinn_lab.worker.loading import WantedValues
from djinn_lab.worker.outcome import StopSignal
from djinn_lab.worker.restoring import Copied, SessionGone, TransferProblem

STEPS = 150
SIZE = 12


class LinkBroken(Exception):
    pass


def _broken(*arguments: object) -> list[bytes]:
    raise LinkBroken


class Owner:
    """One session's values, as its client knows them."""

    def __init__(self) -> None:
        self.script = Script()
        self.matrices: list[int] = []
        self.caches: list[int] = []


class AnyOrder:
    """Random steps of programs and copies on a device. ``done``: how often each special case was reached."""

    def __init__(self, device: Device, seed: int, sessions: Sequence[str] = ("ann", "bob")) -> None:
        self.sessions = sessions
        self.random = random.Random(seed)
        self.commits = random.Random(seed)
        self.device = device
        self.undisturbed = Interpreter(torch.device("cpu"), 2**20, device.directory, native=False)
        made = torch.Generator().manual_seed(seed)
        self.blobs = [
            device.blob(torch.randn(SIZE, SIZE, generator=made), f"blob{index}") for index in range(2)
        ]
        self.owners: dict[str, Owner] = {}
        self.copies: dict[str, Iterator[int]] = {}
        self.open: dict[str, tuple[Iterator[int], WantedValues]] = {}
        self.log: list[str] = []
        self.done: Counter[str] = Counter()

    def take(self, steps: int) -> None:
        programs: list[Callable[[str], None]] = [
            self.load_weight,
            self.compute,
            self.look,
            self.write,
            self.write,
            self.prefill,
            self.decode,
            self.decode,
            self.decode,
        ]
        copies: list[Callable[[str], None]] = [
            self.store_a_little,
            self.store_a_little,
            self.park,
            self.park,
            self.evict,
            self.demote,
            self.forget,
            self.restore_with_releases,
            self.release,
            self.compare,
        ]
        for _ in range(steps):
            session = self.random.choice(self.sessions)
            step = self.random.choice(programs if self.random.random() < 0.6 else copies)
            if self.random.random() < 0.03:
                step = self.random.choice([self.close, *[self.close_in_mid_restore] * 3])
            self.log.append(f"{step.__name__} {session}")
            step(session)
            if session in self.open:  # nothing ran
                self.finish_restore(session)
            audit(self.device)

    # --- programs

    def load_weight(self, session: str) -> None:
        owner = self.awake(session)
        value = owner.script.load(torch.empty(SIZE, SIZE), self.random.choice(self.blobs))
        owner.matrices.append(value)
        self.run(session, owner.script.program(keep=(value,)))

    def compute(self, session: str) -> None:
        owner = self.awake(session)
        if owner.matrices:
            value = owner.script.op("aten.mul.Tensor", self.random.choice(owner.matrices), scalars=(1.5,))
        else:
            value = owner.script.load(torch.full((SIZE, SIZE), float(self.random.randrange(3))))
        owner.matrices.append(value)
        self.run(session, owner.script.program(keep=(value,)))

    def look(self, session: str) -> None:
        owner = self.awake(session)
        if owner.matrices:
            source = self.random.choice(owner.matrices)
            meta = owner.script.metas[source]
            turned = TensorMeta(meta.dtype, meta.shape[::-1], meta.stride[::-1])
            value = owner.script.op("aten.t.default", source, meta=turned, view=True)
            owner.matrices.append(value)
            self.run(session, owner.script.program(keep=(value,)))

    def write(self, session: str) -> None:
        owner = self.awake(session)
        values = [*owner.matrices, *owner.caches]
        if values:
            value = self.random.choice(values)
            owner.script.write("aten.add_.Tensor", value, scalars=(self.random.randrange(1, 5),))
            shared = self.device.memory().shared_bytes
            self.run(session, owner.script.program())
            self.done["shared"] += shared > 0
            self.done["own copy"] += self.device.memory().shared_bytes < shared

    def prefill(self, session: str) -> None:
        owner = self.awake(session)
        tokens = self.random.randrange(1, 10)
        made = torch.arange(8.0 * tokens).view(1, tokens, 2, 4).transpose(1, 2).contiguous()
        past = owner.script.load(torch.empty(0))
        cache = owner.script.append(past, owner.script.load(made))
        owner.caches.append(cache)
        self.run(session, owner.script.program(keep=(cache,)))

    def decode(self, session: str) -> None:
        """Append tokens to a cache, and release the cache before them most of the time."""
        owner = self.awake(session)
        caches = [cache for cache in owner.caches if owner.script.metas[cache].shape[2] < 40]
        if not caches:
            return
        past = self.random.choice(caches)
        tokens = torch.full((1, 2, self.random.randrange(1, 7), 4), float(self.random.randrange(2)))
        grown = owner.script.append(past, owner.script.load(tokens))
        owner.caches.append(grown)
        released = () if self.random.random() < 0.3 else (past,)
        for value in released:
            owner.caches.remove(value)
        self.run(session, owner.script.program(keep=(grown,), release=released))

    def release(self, session: str) -> None:
        """Release a value, whether its session is on the device or parked."""
        owner = self.owner(session)
        for values in (owner.matrices, owner.caches):
            if values:
                value = values.pop(self.random.randrange(len(values)))
                self.run(session, owner.script.program(release=(value,)))

    # --- copies

    def store_a_little(self, session: str) -> None:
        """Copy some pieces; the copy is left between two pieces and continues another time."""
        values = self.device.interpreter.values_of(session)
        copy = self.copies.pop(session, None) or self.device.copies.store(
            session, values, Copied(self.device.number())
        )
        try:
            for _ in range(self.random.randrange(12)):
                next(copy)
            self.copies[session] = copy
            self.done["stored in parts"] += 1
        except (StopIteration, SessionGone):
            return
        except TransferProblem as problem:
            if problem.full != "host":
                raise

    def evict(self, session: str) -> None:
        values = self.device.interpreter.values_of(session)
        expected = values.state == "resident" and not values.unstored_bytes
        answer = self.ask(messages.Evict(self.device.number(), session))
        assert isinstance(answer, messages.CopyDone) == expected

    def park(self, session: str) -> None:
        values = self.device.interpreter.values_of(session)
        answer = self.ask(messages.StoreState(self.device.number(), session))
        if isinstance(answer, messages.CopyFailed):
            assert answer.full == "host"
        elif values.state == "resident":
            assert answer.whole
            assert answer.manifest is not None
            if self.commits.random() < 0.7:
                self.device.send(messages.CopyKept(answer.transfer, session))
            self.ask(messages.Evict(self.device.number(), session))

    def demote(self, session: str) -> None:
        parked = self.device.interpreter.values_of(session).state == "parked"
        answer = self.ask(messages.Demote(self.device.number(), session))
        if isinstance(answer, messages.CopyFailed):
            assert answer.full == "disk" or not parked

    def forget(self, session: str) -> None:
        on_device = self.device.interpreter.values_of(session).state == "resident"
        answer = self.ask(messages.Forget(self.device.number(), session))
        assert isinstance(answer, messages.CopyDone) == on_device

    def restore_with_releases(self, session: str) -> None:
        """Release values while their session is being restored."""
        copy = self.begin_restore(session)
        if copy is not None:
            self.release(session)
            for _ in copy:
                used = self.device.memory().used_bytes
                assert used <= self.device.interpreter.memory.limit_bytes
            self.done["restored with releases"] += 1

    def close_in_mid_restore(self, session: str) -> None:
        copy = self.begin_restore(session)
        if copy is None:
            return
        self.close(session)
        with pytest.raises(SessionGone):
            list(copy)
        self.done["closed while restored"] += 1

    def begin_restore(self, session: str) -> Iterator[int] | None:
        """Begin a restore and copy its first piece. None if there is none to copy."""
        values = self.device.interpreter.values_of(session)
        if values.state != "parked":
            return None
        copy = self.device.copies.restore(values, Copied())
        return None if next(copy, None) is None else copy

    def restore_early(self, session: str) -> None:
        """Restore until a program that reads some of the values first may start."""
        owner, ready = self.owner(session), list[messages.Reads]()
        order = [*owner.matrices, *owner.caches]
        self.random.shuffle(order)
        reads = messages.Reads("job", tuple(order), self.random.randrange(len(order) + 1))
        wanted = WantedValues(reads, ready.append)
        values = self.device.interpreter.values_of(session)
        copy = self.device.copies.restore(values, Copied(), wanted)
        while not ready:
            if next(copy, None) is None:
                self.device.copies.restore_ended(values, wanted)
                return
        self.open[session] = copy, wanted
        audit(self.device)

    def finish_restore(self, session: str) -> None:
        copy, wanted = self.open.pop(session)
        try:
            for _ in copy:
                sleep(0.0)
        except LinkBroken:
            self.done["undone"] += 1
        self.device.copies.restore_ended(self.device.interpreter.values_of(session), wanted)

    def execute(self, session: str, program: Program) -> Outcome:
        """Run a program, while the rest of an open session is copied; some of those copies fail."""
        self.done["offloaded"] += bool(self.device.interpreter.values_of(session).offloaded.values)
        if session not in self.open:
            return self.device.run(session, program)
        self.done["ran early"] += 1
        link = self.device.copies.link
        if self.random.random() < 0.3:
            link.copy_in = _broken  # type: ignore[method-assign]
        copying = threading.Thread(target=self.finish_restore, args=(session,))
        copying.start()
        outcome = self.device.try_run(session, program, StopSignal())
        copying.join(timeout=30)
        if isinstance(link, CpuLink) and "copy_in" in vars(link):
            del link.copy_in
        assert outcome.failure is None, outcome.failure
        if outcome.stopped is None:
            return outcome
        assert (outcome.stopped, outcome.executed) == ("preempted", 0)
        audit(self.device)
        assert isinstance(self.ask(messages.Restore(self.device.number(), session)), messages.CopyDone)
        again = self.device.try_run(session, program, resume=messages.Resume(0, outcome.rng_state))
        assert again.failure is None, again.failure
        return again

    def close(self, session: str) -> None:
        self.owners.pop(session, None)
        self.device.interpreter.close(session)
        self.undisturbed.close(session)

    def compare(self, session: str) -> None:
        owner = self.awake(session)
        values = (*owner.matrices, *owner.caches)
        if not values:
            return
        program = owner.script.program(fetch=values)
        found = [read_fetched(item, self.device.results) for item in self.execute(session, program).fetched]
        expected = run_undisturbed(self.undisturbed, session, program)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))

    # --- the rest

    def ask(self, message: Message) -> Answer:
        answer = self.device.ask(message)
        full = answer.full if isinstance(answer, messages.CopyFailed) else None
        self.done[answer.kind if full is None else f"{full} full"] += 1
        return answer

    def owner(self, session: str) -> Owner:
        return self.owners.setdefault(session, Owner())

    def held(self, session: str) -> int:
        """Count the values that the session's client holds."""
        owner = self.owner(session)
        return len(owner.matrices) + len(owner.caches)

    def awake(self, session: str) -> Owner:
        parked = self.device.interpreter.values_of(session).state == "parked"
        if parked and self.random.random() < 0.5:
            self.restore_early(session)
        elif parked:
            answer = self.ask(messages.Restore(self.device.number(), session))
            assert isinstance(answer, messages.CopyDone)
        return self.owner(session)

    def run(self, session: str, program: Program) -> None:
        self.execute(session, program)
        run_undisturbed(self.undisturbed, session, program, self.device.directory)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut memory into small pieces, so that small tensors have several."""
    monkeypatch.setattr(storages, "PIECE_BYTES", 64)
    monkeypatch.setattr(cuts, "TOKENS_PER_PIECE", 4)


def explore(device: Device, seed: int, sessions: Sequence[str] = ("ann", "bob")) -> AnyOrder:
    any_order = AnyOrder(device, seed, sessions)
    try:
        any_order.take(STEPS)
        for session in sessions:
            any_order.compare(session)
    except BaseException:
        print("\n".join(any_order.log))
        raise
    return any_order


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", range(sampled(20, 7)))
def test_values_are_what_they_are_without_copies(make_device: Callable[..., Device], seed: int) -> None:
    explore(make_device(memory_bytes=2**20, host_bytes=24 * 2**10, disk_bytes=12 * 2**10), seed)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("first", range(0, sampled(20, 8), 4))
def test_a_session_larger_than_its_device_has_the_same_values(
    make_device: Callable[..., Device], first: int
) -> None:
    done: Counter[str] = Counter()
    for seed in range(first, first + 4):
        device = make_device(memory_bytes=5 * 2**10, host_bytes=2**20, disk_bytes=2**20)
        done += explore(device, seed, ("ann",)).done
    assert done["offloaded"] > 4


@pytest.mark.usefixtures("small_pieces")
def test_the_random_steps_reach_all_that_they_are_for(make_device: Callable[..., Device]) -> None:
    done: Counter[str] = Counter()
    for seed in range(20, 40):
        host_kib, disk_kib = 4 + seed % 10, 1 + seed % 4
        device = make_device(memory_bytes=2**20, host_bytes=host_kib * 2**10, disk_bytes=disk_kib * 2**10)
        done += explore(device, seed).done
    expected = {"store", "evict", "restore", "demote", "forget", "host full", "disk full", "own copy"}
    expected |= {"closed while restored", "restored with releases", "stored in parts", "shared"}
    expected |= {"ran early", "undone"}
    assert expected <= set(done), expected - set(done)
