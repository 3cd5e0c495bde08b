"""Any order of events: the accounts keep their invariants, and a bad event changes nothing."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from djinn_lab.events import Rebuild
from djinn_lab.memory import (
    AdmitSegment,
    AnswerPhase,
    Command,
    Connection,
    CopyWanted,
    DeviceAdded,
    Event,
    FreeSession,
    HeartbeatChanged,
    IllegalEvent,
    MemoryReported,
    PhaseSignalled,
    RejectSegment,
    SegmentProposed,
    SessionBound,
    SessionClosed,
    SessionDetached,
    SessionOpened,
    SessionResumed,
    SessionReturned,
    ValuesLost,
    WorkerDied,
)
from djinn_lab.memory.machine.accounts import MemoryAccounts

DEVICES = st.sampled_from(["cpu:0", "cpu:1"])
SESSIONS = st.sampled_from(["s0", "s1", "s2"])
BYTES = st.integers(-1, 2000)
SIZES = st.integers(0, 2000)


class AccountsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.accounts = MemoryAccounts()
        self.replayed = MemoryAccounts()
        self.now_s = 0.0

    @rule(device=DEVICES, nbytes=BYTES)
    def add_device(self, device: str, nbytes: int) -> None:
        self.feed(DeviceAdded(self.tick(), device, nbytes))

    @rule(device=DEVICES, rebuilds=st.dictionaries(SESSIONS, st.builds(Rebuild, SIZES, SIZES)))
    def lose_device(self, device: str, rebuilds: dict[str, Rebuild]) -> None:
        here = {s for s in rebuilds if self.accounts.home_of(s) == device}
        commands = self.feed(WorkerDied(self.tick(), device, rebuilds))
        assert not any(isinstance(one, ValuesLost) and one.session in here for one in commands or ())
        assert self.accounts.device(device) is None

    @rule(device=DEVICES, heard=st.booleans())
    def hear(self, device: str, heard: bool) -> None:
        leaving = self.accounts.can_leave(device)
        if self.feed(HeartbeatChanged(self.tick(), device, heard)) is not None and not heard:
            assert all(self.accounts.home_of(session) is None for session in leaving)

    @rule(device=DEVICES, sessions=st.sets(SESSIONS))
    def lose_worker(self, device: str, sessions: set[str]) -> None:
        before = self.accounts.device(device)
        self.feed(WorkerDied(self.tick(), device, sessions=tuple(sorted(sessions))))
        after = self.accounts.device(device)
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            assert after.session_bytes.keys() == before.session_bytes.keys() - sessions

    @rule(session=SESSIONS)
    def open(self, session: str) -> None:
        self.feed(SessionOpened(self.tick(), session, "ann"))
        assert self.accounts.session(session) is not None

    @rule(session=SESSIONS, connected=st.booleans(), device=DEVICES, sizes=st.tuples(*[BYTES] * 4))
    def return_session(
        self, session: str, connected: bool, device: str, sizes: tuple[int, int, int, int]
    ) -> None:
        event = SessionReturned(self.tick(), session, "ann", connected, device, *sizes)
        if self.feed(event) is not None:
            account = self.accounts.session(session)
            assert account is not None
            assert account.device is None
            assert account.total_bytes == event.copy_bytes

    @rule(session=SESSIONS)
    def detach(self, session: str) -> None:
        held = self.accounts.session_bytes(session)
        self.feed(SessionDetached(self.tick(), session))
        assert self.accounts.session_bytes(session) == held

    @rule(session=SESSIONS)
    def resume(self, session: str) -> None:
        if self.feed(SessionResumed(self.tick(), session)) is not None:
            account = self.accounts.session(session)
            assert account is not None
            assert account.connection is Connection.CONNECTED

    @rule(session=SESSIONS)
    def close(self, session: str) -> None:
        holding = {d.device for d in self.accounts.snapshot().devices if session in d.session_bytes}
        commands = self.feed(SessionClosed(self.tick(), session))
        if commands is not None:
            assert holding <= {c.device for c in commands if isinstance(c, FreeSession)}
        assert self.accounts.session(session) is None

    @rule(session=SESSIONS, device=DEVICES)
    def bind(self, session: str, device: str) -> None:
        self.feed(SessionBound(self.tick(), session, device))

    @rule(session=SESSIONS, peak=BYTES)
    def propose(self, session: str, peak: int) -> None:
        commands = self.feed(SegmentProposed(self.tick(), "job", 0, session, peak))
        if commands is None:
            return
        (verdict,) = commands
        limits = [device.memory_bytes for device in self.accounts.snapshot().devices]
        if isinstance(verdict, RejectSegment):
            assert peak > min(limits)
            assert verdict.advice
        else:
            assert isinstance(verdict, AdmitSegment)
            assert not limits or peak <= max(limits)

    @rule(device=DEVICES, used=BYTES, peak=BYTES, held=st.dictionaries(SESSIONS, BYTES))
    def report(self, device: str, used: int, peak: int, held: dict[str, int]) -> None:
        self.feed(MemoryReported(self.tick(), device, used, peak, held))

    @rule(
        session=SESSIONS,
        phase=st.sampled_from(["COMPUTE", "IO_WAIT", "SOON", "NAP"]),
        wait_s=st.none() | st.floats(),
    )
    def signal(self, session: str, phase: str, wait_s: float | None) -> None:
        before = self.accounts.session(session)
        commands = self.feed(PhaseSignalled(self.tick(), session, phase, wait_s))
        after = self.accounts.session(session)
        if commands is not None:
            (answer,) = commands
            assert isinstance(answer, AnswerPhase)
            assert before is not None
            assert after is not None
            assert answer.answer in ("accepted", "clipped") or after.phase == before.phase

    @rule(session=SESSIONS, holds=st.booleans())
    def want_copy(self, session: str, holds: bool) -> None:
        self.feed(CopyWanted(self.tick(), session, holds))

    @invariant()
    def valid(self) -> None:
        self.accounts.validate()

    def tick(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def feed(self, event: Event) -> list[Command] | None:
        """Give the accounts an event. None when it was illegal, and then nothing has changed."""
        before = self.accounts.snapshot()
        try:
            commands = self.accounts.handle(event)
        except IllegalEvent:
            assert self.accounts.snapshot() == before
            return None
        assert self.replayed.handle(event) == commands
        return commands


AccountsMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestAccounts = AccountsMachine.TestCase
