"""Any order of events against a fake engine: limits hold, nothing is lost, every wait has a cause."""

from __future__ import annotations

from collections import Counter

from fake_engine import FakeEngine, Held
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from djinn_lab.memory import (
    POLICIES,
    CellEnded,
    ClockTicked,
    Command,
    Connection,
    CopyWanted,
    DeviceAdded,
    Event,
    GrantSegment,
    PhaseSignalled,
    QueueOrdered,
    RejectMove,
    RejectSegment,
    RestoreSession,
    SegmentPlaced,
    SegmentWithdrawn,
    SessionBound,
    SessionClosed,
    SessionDetached,
    SessionOpened,
    SessionResumed,
    ValuesLost,
    WorkerDied,
)
from djinn_lab.memory.machine.accounts import MemoryAccounts

NAMES = [f"s{number}" for number in range(5)]
SESSIONS = st.sampled_from(NAMES)
DEVICE_BYTES = 1000
ANY = st.integers(0, 2**16)


class PolicyMachine(RuleBasedStateMachine):
    """Two devices in any order of events. A session has one job at a time, of the session's name."""

    policy = "default"
    rebuilding = False

    def __init__(self) -> None:
        super().__init__()
        self.accounts = MemoryAccounts(POLICIES[self.policy])
        self.replayed = MemoryAccounts(POLICIES[self.policy])
        self.now_s = 0.0
        self.engines: dict[str, FakeEngine] = {}
        self.open: dict[str, str | None] = {}
        self.detached: set[str] = set()
        self.running: dict[str, tuple[str, int]] = {}
        self.may_lose: set[str] = set()
        self.seen: Counter[str] = Counter()

    @initialize(host=st.sampled_from([0, 600, 2000]), disk=st.sampled_from([0, 3000]))
    def start(self, host: int, disk: int) -> None:
        for name in ("cpu:0", "cpu:1"):
            self.engines[name] = FakeEngine(name, DEVICE_BYTES, host, disk if host else 0, peers=self.engines)
            self.add(name)

    def add(self, name: str) -> None:
        engine = self.engines[name]
        self.feed(
            DeviceAdded(self.now_s, name, engine.memory_bytes, engine.host_bytes, engine.disk_bytes, 10_000.0)
        )
        self.feed(engine.report(self.now_s))

    @rule(session=SESSIONS, second=st.booleans())
    def open_session(self, session: str, second: bool) -> None:
        if session in self.open:
            return
        self.open[session] = None
        self.feed(SessionOpened(self.now_s, session, f"user{session[-1]}"))
        self.bind(session, f"cpu:{int(second)}")

    def bind(self, session: str, device: str) -> None:
        self.open[session] = device
        self.engines[device].sessions.setdefault(session, Held())
        self.feed(SessionBound(self.now_s, session, device))

    @rule(session=SESSIONS, second=st.booleans())
    def move_session(self, session: str, second: bool) -> None:
        """Bind a session to the other device, or back."""
        device, target = self.open.get(session), f"cpu:{int(second)}"
        if device is None or any(session in engine.granted for engine in self.engines.values()):
            return
        if session in self.running:
            self.running[session] = (target, self.running[session][1])
        self.bind(session, target)

    @rule(second=st.booleans(), line=st.permutations(NAMES), count=st.integers(0, 5))
    def order_line(self, second: bool, line: list[str], count: int) -> None:
        self.feed(QueueOrdered(self.now_s, f"cpu:{int(second)}", tuple(line[:count])))

    @rule(session=SESSIONS)
    def close_session(self, session: str) -> None:
        if session not in self.open:
            return
        device = self.open.pop(session)
        self.detached.discard(session)
        self.running.pop(session, None)
        for engine in self.engines.values():
            engine.held.pop(session, None)
            engine.granted.discard(session)
        commands = self.feed(SessionClosed(self.now_s, session))
        for engine in self.engines.values():
            if session in engine.orphans:
                engine.orphans.discard(session)
                engine.sessions.pop(session, None)
            assert engine.sessions.pop(session, Held()) == Held(), (device, commands)
            self.feed(engine.report(self.now_s))

    @rule(
        session=SESSIONS,
        peak=st.integers(0, 700),
        rank=st.integers(0, 1),
        kept_share=st.none() | st.integers(0, 100),
    )
    def place(self, session: str, peak: int, rank: int, kept_share: int | None) -> None:
        """Place a segment that will keep a share of its peak, as its graph says, or unknown."""
        device = self.open.get(session)
        if device is None or session in self.running or session in self.detached:
            return
        self.running[session] = (device, peak)
        kept = None if kept_share is None else peak * kept_share // 100
        self.feed(SegmentPlaced(self.now_s, session, 0, session, peak, rank, kept_bytes=kept))

    @rule(which=ANY, share=st.integers(0, 100), whole_cell=st.booleans())
    def finish_segment(self, which: int, share: int, whole_cell: bool) -> None:
        """End a segment, which keeps a share of its peak; its writes are not stored yet."""
        ready = sorted(
            name
            for name, (device, _) in self.running.items()
            if name in self.engines[device].granted and not self.engines[device].is_open(name)
        )
        if not ready:
            return
        session = ready[which % len(ready)]
        device, peak = self.running.pop(session)
        engine = self.engines[device]
        engine.granted.discard(session)
        assert self.where(session) == device
        held = engine.sessions[session]
        free_bytes = engine.memory_bytes - engine.used_bytes
        held.device += min(peak * share // 100, free_bytes)
        held.host = min(held.host, held.device // 2)
        self.feed(engine.report(self.now_s, job=session))
        if whole_cell:
            self.feed(CellEnded(self.now_s, session))

    @rule(session=SESSIONS)
    def withdraw(self, session: str) -> None:
        if session in self.running:
            self.running.pop(session)
            for engine in self.engines.values():
                engine.held.pop(session, None)
                engine.granted.discard(session)
        self.feed(SegmentWithdrawn(self.now_s, session))

    @rule(session=SESSIONS, smaller=st.integers(0, 100))
    def shrink(self, session: str, smaller: int) -> None:
        """Release a part of a session's values."""
        if session not in self.open:
            return
        device = self.where(session)
        held = self.engines[device].sessions[session]
        busy = any(c.session == session for c in self.engines[device].under_way.values())
        if held.device and not busy:
            held.device = held.device * smaller // 100
            held.host = min(held.host, held.device)
            self.feed(self.engines[device].report(self.now_s))

    @precondition(lambda self: any(engine.under_way for engine in self.engines.values()))
    @rule(which=ANY, how=st.sampled_from(["done", "done", "done", "fail", "mismatch"]))
    def transfer_ends(self, which: int, how: str) -> None:
        number, engine = self.some_transfer(which)
        command = engine.under_way[number]
        session, stopped = command.session, False
        if how != "done" and engine.is_open(session) and session in engine.granted:
            engine.granted.discard(session)
            stopped = True
        if how == "mismatch" and isinstance(command, RestoreSession):
            self.may_lose.add(command.session)
            result = engine.failed(command, self.now_s, "a piece differs", None, mismatch=True)
        elif how == "done":
            result = engine.finish(number, self.now_s)
        else:
            result = engine.failed(command, self.now_s, "the engine says no", None)
        self.feed(engine.report(self.now_s))
        self.feed(result)
        self.feed(result)
        if stopped:
            peak = self.running.pop(session)[1]
            self.feed(engine.report(self.now_s, job=session))
            self.place(session, peak, 0, None)

    @precondition(lambda self: any(engine.under_way for engine in self.engines.values()))
    @rule(which=ANY)
    def first_values_arrive(self, which: int) -> None:
        number, engine = self.some_transfer(which)
        first = engine.open(number, self.now_s) if number in engine.jobs else None
        if first is not None:
            self.feed(engine.report(self.now_s))
            self.feed(first)
            self.seen["early"] += first.session in engine.granted

    def some_transfer(self, which: int) -> tuple[int, FakeEngine]:
        pairs = [(n, engine) for _, engine in sorted(self.engines.items()) for n in sorted(engine.under_way)]
        return pairs[which % len(pairs)]

    @rule(
        session=SESSIONS,
        phase=st.sampled_from(["COMPUTE", "IO_WAIT", "SOON", "NAP"]),
        wait=st.none() | st.floats(),
    )
    def signal(self, session: str, phase: str, wait: float | None) -> None:
        if session in self.open:
            rebuild_s = 0.5 if self.rebuilding else None
            self.feed(PhaseSignalled(self.now_s, session, phase, wait, rebuild_s))

    @rule(session=SESSIONS)
    def end_cell(self, session: str) -> None:
        if session in self.open:
            self.feed(CellEnded(self.now_s, session))

    @rule(session=SESSIONS)
    def detach_or_resume(self, session: str) -> None:
        if session not in self.open:
            return
        if session in self.detached:
            self.detached.discard(session)
            self.feed(SessionResumed(self.now_s, session))
        else:
            self.detached.add(session)
            self.feed(SessionDetached(self.now_s, session))

    @rule(second=st.booleans())
    def device_dies(self, second: bool) -> None:
        name = f"cpu:{int(second)}"
        engine = self.engines[name]
        running = {s for s, (device, _) in self.running.items() if device == name and s in engine.granted}
        in_doubt = {c.session for c in engine.under_way.values()}
        may_lose = engine.die() | running | in_doubt
        self.may_lose |= may_lose
        commands = self.feed(WorkerDied(self.now_s, name))
        lost = {command.session for command in commands if isinstance(command, ValuesLost)}
        assert lost <= may_lose
        self.running = {s: at for s, at in self.running.items() if at[0] != name}
        self.add(name)
        for session, device in list(self.open.items()):
            if device == name:
                if session in lost:
                    engine.sessions[session] = Held()
                self.bind(session, name)
        self.feed(engine.report(self.now_s))

    @rule(session=st.integers(0, 5), holds=st.booleans())
    def want_copy(self, session: int, holds: bool) -> None:
        if self.accounts.knows(f"s{session}"):
            self.feed(CopyWanted(self.now_s, f"s{session}", holds))

    @rule(seconds=st.sampled_from([0.001, 0.1, 1.0, 60.0, 10_000.0]))
    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.feed(ClockTicked(self.now_s))

    @invariant()
    def valid(self) -> None:
        self.accounts.validate()

    @invariant()
    def limits_hold(self) -> None:
        for engine in self.engines.values():
            assert engine.used_bytes <= engine.memory_bytes
            assert engine.used_below("host") <= engine.host_bytes
            assert engine.used_below("disk") <= engine.disk_bytes

    @invariant()
    def where_they_are(self) -> None:
        for session, device in self.open.items():
            if device is None:
                continue
            account = self.accounts.session(session)
            assert account is not None
            assert (account.target or account.device) == device
            held = self.engines[self.where(session)].sessions.setdefault(session, Held())
            if account.tier in ("host", "disk"):
                held = self.engines[self.where(session)].parked(session)[1]
            assert (account.connection is Connection.DETACHED) == (session in self.detached)
            assert account.tier != "device" or held.device > 0 or account.moving, (account, held)
            assert account.tier not in ("host", "disk") or getattr(held, account.tier), (account, held)
            assert account.tier != "none" or held == Held() or not self.policy_keeps(held), (account, held)
            if any(session in engine.granted for engine in self.engines.values()):
                assert account.tier in ("device", "none") or self.engines[device].is_open(session)
                assert account.target is None
            devices = [engine for engine in self.engines.values() if self.on_device(engine, session)]
            assert len(devices) <= 1, "it is on two devices"

    def on_device(self, engine: FakeEngine, session: str) -> bool:
        return engine.sessions.get(session, Held()).device > 0

    def where(self, session: str) -> str:
        account = self.accounts.session(session)
        assert account is not None
        assert account.device is not None
        return account.device

    def policy_keeps(self, held: Held) -> bool:
        return held.device > 0

    @invariant()
    def every_wait_has_a_cause(self) -> None:
        """A segment that is deferred while nothing is under way waits for a session to close, for a retry or
        the end of a lease, or behind a segment that does."""
        self.now_s += 0.3
        self.feed(ClockTicked(self.now_s))
        held = self.accounts.snapshot().deferred
        for one in held:
            engine = self.engines[one.device]
            said = any(one.session in other.held for other in self.engines.values())
            assert said, "held without a word"
            if engine.under_way or engine.granted:
                continue
            reasons = [other.reason for other in held if other.device == one.device]
            first = [r for r in reasons if "tried again" in r or "just finished" in r]
            assert (
                one.release.of_other_sessions or one.reason in first or ("before it" in one.reason and first)
            ), one

    def feed(self, event: Event) -> list[Command]:
        commands = self.accounts.handle(event)
        if commands or not isinstance(event, ClockTicked):
            assert self.replayed.handle(event) == commands, "a journal without idle ticks replays otherwise"
        for command in commands:
            self.seen[type(command).__name__] += 1
            if isinstance(command, ValuesLost):
                assert command.session in self.may_lose
            engine = self.engine_of(command)
            engine.obey(command)
            if isinstance(command, (GrantSegment, RestoreSession)):
                self.check_promises(engine, command)
            if isinstance(command, RejectSegment):
                self.running.pop(command.job, None)
            if isinstance(command, RejectMove):
                self.open[command.session] = command.device
                self.running[command.session] = (command.device, self.running[command.session][1])
        return commands

    def check_promises(self, engine: FakeEngine, latest: GrantSegment | RestoreSession) -> None:
        """What is used, granted and being restored fits the device, except for the only session there. A
        granted session offloads what is more than the device has beside it."""
        under_way = [c for n, c in engine.under_way.items() if n not in engine.opened]
        coming = [c for c in under_way if isinstance(c, RestoreSession)]
        stored = [engine.parked(command.session)[1] for command in coming]
        promised = engine.used_bytes + sum(held.host or held.disk for held in stored)
        for job in engine.granted & self.running.keys():
            beside = engine.memory_bytes - engine.sessions[job].device
            promised += min(self.running[job][1], beside) if engine.host_bytes else self.running[job][1]
        if promised <= engine.memory_bytes:
            return
        mine = latest.job if isinstance(latest, GrantSegment) else latest.session
        others = {name for name, held in engine.sessions.items() if held.device and name != mine}
        assert not (others and engine.host_bytes), "more is promised than there is"
        assert engine.granted <= {mine}
        assert len(coming) <= isinstance(latest, RestoreSession)

    def engine_of(self, command: Command) -> FakeEngine:
        device = getattr(command, "device", None)
        if device is None:
            job = getattr(command, "job", None)
            device = self.where(job) if job in self.open else None
        return self.engines[device or "cpu:0"]


class KeepAllMachine(PolicyMachine):
    policy = "keep_all"


class RecomputeMachine(PolicyMachine):
    policy = "default_recompute"
    rebuilding = True


class WriteBackMachine(PolicyMachine):
    policy = "lru_write_back"


class EagerMachine(PolicyMachine):
    policy = "eager_jit"


for machine in (PolicyMachine, KeepAllMachine, WriteBackMachine, EagerMachine, RecomputeMachine):
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)

TestOurs = PolicyMachine.TestCase
TestKeepAll = KeepAllMachine.TestCase
TestWriteBack = WriteBackMachine.TestCase
TestEager = EagerMachine.TestCase
TestRecompute = RecomputeMachine.TestCase
