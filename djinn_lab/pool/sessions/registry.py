"""Sessions, connected and detached, and what each has in flight."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from djinn_lab.errors import Refused
from djinn_lab.pool.authentication import User
from djinn_lab.pool.database.durability import Committed
from djinn_lab.pool.gangs.plans import GangDecision
from djinn_lab.pool.sessions.admission import InspectedProgram
from djinn_lab.pool.sessions.pacing import SessionPace
from djinn_lab.protocol.messages import (
    CODE_CHARS_MAX,
    CODES_MAX,
    FOLLOWERS_MAX,
    NAME_CHARS_MAX,
    PROTOCOL_VERSION,
    SKIPPED,
    FromPool,
    JobUpdate,
    SegmentResult,
    SubmitSegment,
)
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.srg.wire import ProgramReceiver, WireError
from djinn_lab.system.liveness import process_is_alive

UPDATES_QUEUED_MAX = 100
"""A client that does not read loses updates above this, never results."""
OUTGOING_MAX = 1000
"""A client that does not read is not read from any more above this."""
ANSWERS_KEPT = FOLLOWERS_MAX + 2
"""Of a session: as many as may be on their way when its connection breaks."""
SAY_AFTER_S = 1.0
"""A client is told why its messages cannot be committed, as often."""
DELTA_INLINE_BYTES_MAX = 256 * 2**10
"""Programs with more bytes are read in a thread."""


KeepAnswer = Callable[["ClientSession", SegmentResult], None]


class Outgoing(NamedTuple):
    """``after``: it leaves once that is done."""

    message: FromPool
    after: Committed | None


def _never_delayed() -> str:
    return ""


class ClientLink:
    """Queue messages for one connected client, without waiting. ``latest_only``: as the
    client asked (:class:`djinn_lab.protocol.messages.Hello`). ``delayed``: why nothing can be committed now,
    empty where it can."""

    def __init__(
        self,
        protocol_version: int = PROTOCOL_VERSION,
        latest_only: bool = False,
        token: str = "",
        delayed: Callable[[], str] = _never_delayed,
    ) -> None:
        self.protocol_version = protocol_version
        self._delayed = delayed
        self.token = token
        self._latest_only = latest_only
        self._outgoing: deque[Outgoing | None] = deque()
        self._queued = asyncio.Event()
        self._below_limit = asyncio.Event()
        self._below_limit.set()
        self.decoder = SubmissionDecoder()
        self.close_code = 1000
        self.close_reason = ""

    def send(self, message: FromPool, after: Committed | None = None) -> None:
        """``after``: what must be committed before it leaves; those behind it wait, too."""
        if isinstance(message, SegmentResult):
            if message.rng_state is not None:
                self.decoder.saw_state(message.rng_state)
            if self._latest_only:
                self._drop_updates(message.job)
        if isinstance(message, JobUpdate):
            if self._latest_only:
                self._drop_updates(message.job, after)
            if len(self._outgoing) > UPDATES_QUEUED_MAX:
                return
        self._outgoing.append(Outgoing(message, after))
        self._queued.set()
        if len(self._outgoing) > OUTGOING_MAX:
            self._below_limit.clear()

    async def wait_below_limit(self) -> None:
        """Wait until no more than OUTGOING_MAX messages wait to leave, or none will any more."""
        await self._below_limit.wait()

    def stopped(self) -> None:
        """Note that no message leaves any more."""
        self._below_limit.set()

    def close(self, code: int = 1000, why: str = "") -> None:
        """End the connection after what is queued. ``code``, ``why``: of the first call that gives a code;
        what its client is told."""
        if self.close_code == 1000:
            self.close_code, self.close_reason = code, why
        self._outgoing.append(None)
        self._queued.set()

    async def next(self) -> FromPool | None:
        """Wait for the next message that may leave, or for one that says why the next may not yet; None: the
        end. Raises SQLAlchemyError when it may never leave."""
        while True:
            if not self._outgoing:
                self._queued.clear()
                await self._queued.wait()
                continue
            first = self._outgoing[0]
            if first is None:
                return None
            if first.after is None or first.after.done():
                self._outgoing.popleft()
                if len(self._outgoing) <= OUTGOING_MAX:
                    self._below_limit.set()
                if first.after is not None:
                    first.after.result()
                return first.message
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAY_AFTER_S):
                    await asyncio.shield(first.after)
            reason = "" if first.after.done() else self._delayed()
            if reason and isinstance(first.message, JobUpdate | SegmentResult):
                return JobUpdate(first.message.job, "QUEUED", reason)

    def _drop_updates(self, job: str, after: Committed | None = None) -> None:
        """Drop the updates of a job that a newer message replaces. ``after``: what that one waits for. The
        first in the queue stays when it waits for another commit: else one update after the other would
        begin to wait anew, and none would leave while the job's state keeps changing."""
        while self._outgoing:
            last = self._outgoing[-1]
            if last is None or not isinstance(last.message, JobUpdate) or last.message.job != job:
                return
            if after is not None and len(self._outgoing) == 1 and last.after not in (None, after):
                return
            self._outgoing.pop()


class Arrival(NamedTuple):
    """A submitted segment that was inspected, or why it may not run. ``due_s``: when it came, or when the
    segment that it follows was done. ``pins``: its blobs, pinned until then. ``ended``: jobs that it depends
    on, from the database."""

    submit: SubmitSegment
    received_s: float
    due_s: float
    inspected: InspectedProgram | Refused
    gang: GangDecision
    pins: list[str] = []  # noqa: RUF012 - never changed
    ended: Sequence[JobView] = ()


def _keep_no_answer(session: ClientSession, answer: SegmentResult) -> None:
    """Keep it in memory only."""


@dataclass(slots=True)
class ClientSession:
    """``account``: pays for its cells. ``pins``: blobs held for the next submit. ``verifying``: uploads under
    way, by name. ``rejected``: why an upload did not count. ``lost``: how the device with its values died,
    until it runs again. ``notebook``: the batch notebook whose kernel opened it, empty for none. ``pace``:
    how often it may ask. ``followers``: segments that came while the one before them ran. ``done``: the last
    segment that was answered, where it ended well. ``process``: as in
    :class:`djinn_lab.protocol.messages.Hello`. ``awaited``: its connection broke, and its client may come
    back. ``answers``: the last ones, for that case, of ``answered`` in all. ``torch_version``: of the
    client."""

    session: str
    user: str
    account: str
    name: str
    same_host: bool
    connected_at: float
    last_seen: float
    link: ClientLink | None
    jobs: int = 0
    pins: list[str] = field(default_factory=list)
    verifying: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    lost: str | None = None
    notebook: str = ""
    pace: SessionPace = field(default_factory=SessionPace)
    followers: deque[Arrival] = field(default_factory=deque)
    done: tuple[str, int] | None = None
    process: int | None = None
    awaited: bool = False
    answers: deque[Outgoing] = field(default_factory=lambda: deque(maxlen=ANSWERS_KEPT))
    answered: int = 0
    keep_answer: KeepAnswer = _keep_no_answer
    torch_version: str = ""

    def send(self, message: FromPool, after: Committed | None = None) -> None:
        """Send a message to the client, if one is connected. ``after``: as for :meth:`ClientLink.send`."""
        if isinstance(message, SegmentResult) and message.outcome != SKIPPED:
            self.answers.append(Outgoing(message, after))
            self.answered += 1
            self.keep_answer(self, message)
        if self.link is not None:
            self.link.send(message, after)

    def send_again(self, job: str, segment: int) -> bool:
        """Send an earlier answer again; return whether it is still here."""
        for message, after in self.answers:
            if isinstance(message, SegmentResult) and (message.job, message.segment) == (job, segment):
                if self.link is not None:
                    self.link.send(message, after)
                return True
        return False

    @property
    def client_ended(self) -> bool:
        """Return whether its client was a process on this host, and is none any more."""
        return self.same_host and self.process is not None and not process_is_alive(self.process)


class SessionRegistry:
    """Keep all sessions of the pool by id. ``keep_answer``: called with each answer that a session may have
    to send again."""

    def __init__(self) -> None:
        self._sessions: dict[str, ClientSession] = {}
        self.keep_answer: KeepAnswer = _keep_no_answer

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(list(self._sessions.values()))

    def get(self, session: str) -> ClientSession | None:
        return self._sessions.get(session)

    def add(self, user: User, name: str, same_host: bool, at_s: float, link: ClientLink) -> ClientSession:
        session = ClientSession(
            uuid.uuid4().hex,
            user.name,
            user.account,
            name,
            same_host,
            at_s,
            at_s,
            link,
            notebook=user.notebook,
            keep_answer=self.keep_answer,
        )
        self._sessions[session.session] = session
        return session

    def return_session(self, session: ClientSession) -> None:
        """Add a session of an earlier run of the pool."""
        session.keep_answer = self.keep_answer
        self._sessions[session.session] = session

    def remove(self, session: str) -> None:
        del self._sessions[session]

    def __len__(self) -> int:
        return len(self._sessions)


class SubmissionDecoder:
    """Decode one connection's submissions. Every submit must pass through :meth:`complete`, in the order they
    came."""

    def __init__(self) -> None:
        self._programs = ProgramReceiver()
        self._codes: dict[int, str] = {}

    def saw_state(self, state: bytes) -> None:
        """Note a random state that goes to the client."""
        self._programs.saw_state(state)

    async def complete(self, submit: SubmitSegment) -> SubmitSegment:
        """Complete a submit with its whole program and code. Raises Refused when it refers to what never
        came."""
        code = self._code(submit)[:CODE_CHARS_MAX]
        submit = msgspec.structs.replace(
            submit, cell=submit.cell[:NAME_CHARS_MAX], cut=submit.cut[:NAME_CHARS_MAX]
        )
        if not submit.delta:
            return msgspec.structs.replace(submit, code=code)
        large = self._programs.weight(submit.program) > DELTA_INLINE_BYTES_MAX
        whole = await asyncio.to_thread(self._whole, submit) if large else self._whole(submit)
        return msgspec.structs.replace(submit, program=whole, delta=False, code=code)

    def _whole(self, submit: SubmitSegment) -> bytes:
        try:
            return self._programs.decode(submit.program)
        except WireError as error:
            raise Refused(
                f"The submitted graph cannot be reassembled: {error}.",
                "Run the cell again; it is then sent whole.",
            ) from None

    def _code(self, submit: SubmitSegment) -> str:
        number = submit.code_number
        if number is None:
            return submit.code
        if not 0 <= number < CODES_MAX:
            raise Refused(f"Code number {number} is outside 0 to {CODES_MAX - 1}.")
        if submit.code:
            self._codes[number] = submit.code
        elif number not in self._codes:
            raise Refused(f"No code came under number {number}.")
        return self._codes[number]
