"""Send what a recorder of either kind has recorded since the last program."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import torch

from djinn_lab.capture.host.forked import check_process
from djinn_lab.capture.host.interrupts import Stopped, later
from djinn_lab.capture.host.random_stream import RandomStream
from djinn_lab.capture.sending.backend import Backend, Cut, RunResult
from djinn_lab.capture.sending.pacing import CutRhythm, PartLength
from djinn_lab.capture.sending.resending import naming_lost, with_bytes
from djinn_lab.errors import DjinnError, PoolLost
from djinn_lab.srg.program import EncodedProgram, TensorMeta

STREAM_NODES_MAX = 50_000
"""With so many pending, the cell waits for a busy pool."""
WHOLE_NODES_MAX = 200_000
"""So much of a cell that is to be sent whole is gathered; a pool looks for branches in a little more."""

POOL_LOST = "this value was on a device, session or pool that went away"
RESENDS_MAX = 8
"""So often is a program sent again with values that are gone: each time, another worker has died."""


class AssembledPart(NamedTuple):
    """A part of a cell, ready to be sent; ``program`` is None when nothing pending is needed. ``release``:
    ids that the pool may forget. ``flight``: what :meth:`Nodes.settle` wants to know again."""

    program: EncodedProgram | None
    release: Sequence[int]
    flight: Any


class Nodes(Protocol):
    """The nodes of one recorder that were recorded and not sent."""

    look_at: int
    """With so many pending, the recorder calls :meth:`Segment.stream` when a root module's call begins."""
    patience: int
    """With so many more, it calls it anywhere."""

    @property
    def pending(self) -> int: ...

    @property
    def calls(self) -> int:
        """Return how many calls of root modules are among them."""
        ...

    @property
    def begins_call(self) -> bool:
        """Return whether the next op is the first of a root module's call."""
        ...

    @property
    def goes_ahead(self) -> bool:
        """Return whether :meth:`assemble` may be called again before what it gave last has settled."""
        ...

    def line(self) -> int:
        """Return the line of the cell that runs now, 0 outside of one."""
        ...

    def assemble(self, fetch: Sequence[int], rng_state: bytes | None) -> AssembledPart:
        """Take what is pending and needed; a new segment begins."""
        ...

    def settle(self, flight: Any, executed: int, arrived: bool, reason: str) -> None:
        """Note that a program ran ``executed`` of its nodes; what the others would have made is lost, for
        ``reason``. ``arrived``: its sources are on the pool."""
        ...

    def position(self, flight: Any, executed: int) -> int:
        """Return how many nodes of its part had been recorded when the first was that a program did not run;
        more than all of them where it ran all."""
        ...

    def lose_pending(self, reason: str) -> None:
        """Give up what was recorded since."""
        ...

    def lose_pool(self, flight: Any, reason: str) -> None:
        """Record that every pool copy is gone. What the host has can be sent again."""
        ...

    def bytes_of(self, flight: Any, source: int) -> torch.UntypedStorage | None:
        """Return memory with the bytes of a source as the program of ``flight`` is to read it; None where the
        host lacks them."""
        ...

    def lose_held(self, values: Sequence[int], reason: str) -> None:
        """Record that these pool copies are gone. What the host has is sent again when it is needed."""
        ...


class CutPart(NamedTuple):
    """A part of a cell, and why it was cut there."""

    assembled: AssembledPart
    cut: Cut


class FollowerOutcomes(NamedTuple):
    """Outcomes of the parts that were sent behind a part that failed. ``unreleased``: values that they were
    to release. ``stop``: the exception that arrived while their answers were awaited."""

    unreleased: Sequence[int]
    pool_lost: bool
    stop: BaseException | None = None


Place = tuple[int, int]
"""The number of a part of what is recorded, and how many of its nodes had been."""


class PartFollower(Protocol):
    """Keeps what a cell changed in the notebook, by :attr:`Segment.place`, until its part has run."""

    def sent(self) -> None:
        """Note that what was recorded so far is a part of the cell, and goes to the pool."""
        ...

    def computed(self, part: int) -> None:
        """Note that the pool has computed a part."""
        ...

    def failed(self, place: Place) -> None:
        """Take back what the cell did behind a place: the pool has computed none of it, and nothing is under
        way or pending any more."""
        ...


class Launched(Protocol):
    """A cell that ended before the pool had computed it: its parts are under way."""

    def settle(self) -> None:
        """Wait for it, by :meth:`Segment.finish_launched`. Raises its error, once."""
        ...

    def lose(self) -> None:
        """Note how it ended, now that its pool is gone; raises nothing."""
        ...


def _allow(cut: Cut) -> None:
    pass


def _nothing_to_say(reason: str) -> str:
    return ""


class Segment:
    """Collect what is recorded, and send it in parts; ``before_cut`` is asked before anything is changed and
    may raise to forbid the cut. Its callers hold (:mod:`djinn_lab.capture.host.interrupts`)."""

    def __init__(self, backend: Backend, nodes: Nodes, stream_nodes: int | None = None) -> None:
        self.backend = backend
        self.random = RandomStream()
        self.before_cut: Callable[[Cut], None] = _allow
        self.followers: Sequence[PartFollower] = ()
        self._parts_sent = self._parts_settled = 0
        self.on_not_computed: Callable[[str], str] = _nothing_to_say
        """Given why values do not exist, takes back what points to them; returns a sentence for the user."""
        self._process = os.getpid()
        self._pace = PartLength(stream_nodes)
        self._rhythm = CutRhythm()
        self._nodes = nodes
        self._sent: deque[CutPart] = deque()
        """Not answered yet, in order."""
        self._waiting: deque[CutPart] = deque()
        """Assembled while earlier ones were under way, and not sent."""
        self.launched: Launched | None = None
        """Settled before anything else is recorded, sent or fetched."""
        self.gather(False)

    def draw(self) -> None:
        """Prepare for a random op that is about to be recorded; what was recorded before a new seed goes out
        first."""
        if self.random.reseeded():
            self.finish_draws("a random seed was set")
        self.random.draw()

    def finish_draws(self, cause: str) -> None:
        """Make the draws recorded so far, so that the host's generator stands behind them."""
        if self.random.drawn:
            self.settle_launched()
        if self.random.drawn:
            self.flush(Cut(cause, self._nodes.line()))

    def gather(self, whole: bool) -> None:
        """Begin a cell, or end it. ``whole``: nothing is sent ahead from now on, so that the pool sees all
        branches of what is recorded until the next cut, and can run them side by side."""
        self._whole = whole
        self._taken = 0
        self._rhythm.begin(perf_counter())
        self._look_again()

    @property
    def place(self) -> Place:
        """Return where the recording is."""
        return self._parts_sent + 1, self._nodes.pending

    @property
    def recorded(self) -> int:
        """Return how many ops of this cell were recorded so far, sent or not."""
        return self._taken + self._nodes.pending

    def stream(self) -> None:
        """Send what is pending without waiting for it, so that the pool computes while the cell records.

        While the pool is busy with earlier parts, this one is assembled, and sent behind them where the
        pool takes it, or waits. So a loop is always cut into equal parts, which the pool knows. Raises what
        went wrong with an earlier part."""
        nodes = self._nodes
        if self.launched is not None:
            self.settle_launched()
            self._look_again()
            return
        if not nodes.begins_call and nodes.calls > 1 and nodes.pending < nodes.look_at + nodes.patience:
            return  # equal iterations make equal parts
        with paused():
            while self._sent and self.backend.is_done():
                self._reap()
            self._send_waiting()
            if self._rhythm.early is not None and self.random.drawn:
                self._rhythm.skip()  # what comes behind it would have to wait for the draws
                self._look_again()
                return
            if self._sent and not self._goes_ahead():
                if not self._whole and nodes.pending < STREAM_NODES_MAX:
                    nodes.look_at = 2 * nodes.look_at
                    return
                began = perf_counter()
                self._finish()
                self._rhythm.waited(perf_counter() - began)
            self._add(Cut("streamed", nodes.line()), ())

    def flush(self, cut: Cut, fetch: Sequence[int] = ()) -> list[torch.Tensor]:
        """Send what is pending and reachable, wait, and return the fetched tensors. Raises what went
        wrong."""
        return self.run(cut, fetch)[0]

    def run(
        self, cut: Cut, fetch: Sequence[int] = ()
    ) -> tuple[list[torch.Tensor], Sequence[TensorMeta | None]]:
        """Like :meth:`flush`, with the layouts that a last, dynamic node turned out to have."""
        check_process(self._process)
        self.before_cut(cut)
        self.settle_launched()
        with paused():
            began = perf_counter()
            if not self._goes_ahead():
                self._finish()
            part = self._add(cut, fetch)
            result = self._finish()
            self._rhythm.cut(began, perf_counter())
            self._look_again()
        if part.assembled.program is None:
            return [], ()
        return list(result.fetched), result.dynamic_metas

    def launch(self, cut: Cut, launched: Launched) -> bool:
        """Send what is pending and reachable without waiting for it, and return whether anything is under
        way; then ``launched`` stands for it. Raises what went wrong with an earlier part."""
        check_process(self._process)
        self.before_cut(cut)
        self.settle_launched()
        with paused():
            if not self._goes_ahead():
                self._finish()
            self._add(cut, ())
            while self._waiting:  # the pool takes so many at a time
                self._reap()
                self._send_waiting()
        if self._sent:
            self.launched = launched
            self.random.leave()
            self._look_again()
        return bool(self._sent)

    def settle_launched(self) -> None:
        """Wait for a cell that ended before the pool had computed it. Raises its error, once."""
        launched, self.launched = self.launched, None
        if launched is not None:
            launched.settle()

    def finish_launched(self) -> None:
        """Wait for everything under way. Raises the first failure."""
        check_process(self._process)
        with paused():
            self._finish()

    def release_dropped(self) -> None:
        """Release what tensors held that are gone, unless something is pending or under way."""
        if self._sent or self._waiting or self.launched is not None or self._nodes.pending:
            return
        with paused():
            assembled = self._take(())
            if assembled.release:
                self.backend.release(assembled.release)

    def stop(self) -> None:
        """Cancel what is under way; what is pending stays recorded, and so does a launched cell's work.
        Raises what arrives meanwhile, unless it is one more Ctrl-C."""
        if self.launched is not None:
            return
        error: BaseException | None = None
        with paused():
            while self._sent:
                part = self._sent.popleft()
                error = self._settle(part.assembled, self.backend.result(cancel=True)) or error
        if error is not None and not isinstance(error, KeyboardInterrupt | DjinnError):
            raise error

    def lose_pool(self) -> None:
        """Record that every pool copy is gone. Only between cells, when nothing is under way but a launched
        cell, whose backend knows that it is lost."""
        launched, self.launched = self.launched, None
        if launched is not None:
            launched.lose()
        with paused():
            self._nodes.lose_pool(self._take(()).flight, POOL_LOST)
            self.random.forget()

    def _look_again(self) -> None:
        """Set how much has to be pending for the recorder to ask whether it is sent ahead."""
        nodes, early = self._nodes, self._rhythm.early
        if self.launched is not None:
            nodes.look_at = nodes.patience = 0  # the next op settles it
            return
        if self._whole or not nodes.goes_ahead or not self.backend.follow_max:
            early = None
        nodes.look_at = early or (WHOLE_NODES_MAX if self._whole else self._pace.nodes)
        nodes.patience = 0 if early else self._pace.nodes

    def _goes_ahead(self) -> bool:
        """Return whether what is pending may be assembled before what was assembled last has settled."""
        programs = (part.assembled.program for part in self._waiting)
        waiting = sum(program.nodes for program in programs if program is not None)
        return self._nodes.goes_ahead and not self.random.drawn and waiting < STREAM_NODES_MAX

    def _take(self, fetch: Sequence[int]) -> AssembledPart:
        self._rhythm.took(self._nodes.pending)
        assembled = self._nodes.assemble(fetch, self.random.start_state())
        if assembled.program is not None:
            self.random.sent()
            self._parts_sent += 1
            for follower in self.followers:
                follower.sent()
            self._taken += assembled.program.nodes
        self._look_again()
        return assembled

    def _add(self, cut: Cut, fetch: Sequence[int]) -> CutPart:
        """Assemble what is pending, and send it as soon as the pool takes it."""
        part = CutPart(self._take(fetch), cut)
        self._waiting.append(part)
        self._send_waiting()
        return part

    def _send_waiting(self) -> None:
        """Send as many parts as the pool takes at a time. Values are released alone only while nothing is
        under way that may read them."""
        while self._waiting:
            assembled, cut = self._waiting[0]
            if len(self._sent) > (0 if assembled.program is None else self.backend.follow_max):
                return
            part = self._waiting.popleft()
            if assembled.program is not None:
                self.backend.submit(assembled.program, cut)
                self._sent.append(part)
            elif assembled.release:
                self.backend.release(assembled.release)

    def _finish(self) -> RunResult:
        """Wait for everything that was assembled, and return the last program's result. Raises the first
        failure."""
        result = RunResult(0)
        while self._sent or self._waiting:
            self._send_waiting()
            if self._sent:
                result = self._reap()
        return result

    def _reap(self) -> RunResult:
        """Wait for the oldest part under way, and apply its outcome. Raises its failure; what was
        recorded meanwhile builds on it and is given up then."""
        part = self._sent.popleft()
        result = self._result(part)
        error = self._settle(part.assembled, result)
        if error is not None:
            raise error
        return result

    def _result(self, part: CutPart) -> RunResult:
        """Return the result of a program. Where values are gone that it reads, as with a worker that died,
        and the host has them all, they are sent to it again."""
        result = self.backend.result()
        program = part.assembled.program
        for _ in range(RESENDS_MAX):
            if not result.missing or program is None:
                break
            stop = self._take_back()
            if stop is not None:
                return RunResult(0, error=stop, arrived=False, missing=result.missing)
            held = part.assembled.flight
            memories = {source: self._nodes.bytes_of(held, source) for source in result.missing}
            if None in memories.values():
                return naming_lost(result, program, memories)
            try:
                program = with_bytes(program, memories, self.backend.stage)
            except (DjinnError, Stopped) as failure:
                error = failure.error if isinstance(failure, Stopped) else failure
                lost = isinstance(error, PoolLost)
                return RunResult(0, error=error, pool_lost=lost, arrived=False, missing=result.missing)
            self.backend.submit(program, part.cut)
            result = self.backend.result()
        return result

    def _take_back(self) -> BaseException | None:
        """Let parts wait again that were sent behind the oldest one, which did not run. Returns the exception
        that arrived meanwhile."""
        skipped, self._sent = list(self._sent), deque()
        stop = _last_stop([self.backend.result() for _ in skipped])
        self._waiting.extendleft(reversed(skipped))
        return stop

    def _settle(self, assembled: AssembledPart, result: RunResult) -> BaseException | None:
        """Apply the outcome of a part, and return what to raise for it, if anything."""
        reason = POOL_LOST if result.pool_lost else _not_computed(result)
        behind = FollowerOutcomes((), False) if result.error is None else self._give_up(reason)
        if result.pool_lost or behind.pool_lost:
            self._nodes.lose_pool(assembled.flight, reason)
        else:
            self._nodes.settle(assembled.flight, result.executed, result.arrived, reason)
            self._nodes.lose_held(result.missing, POOL_LOST)
            self._pace.learn(result.executed, result.run_s)
            self._rhythm.ran(result.run_s)
        if result.error is None:
            self.random.finish(result.rng_state)
            self._parts_settled += 1
            for follower in self.followers:
                follower.computed(self._parts_settled)
            return None
        unreleased = [*behind.unreleased, *(() if result.arrived else assembled.release)]
        if unreleased and not (result.pool_lost or behind.pool_lost):
            self.backend.release(unreleased)
        not_computed = _not_computed(result)
        self._nodes.lose_pending(not_computed)
        place = self._parts_settled + 1, self._nodes.position(assembled.flight, result.executed)
        self._parts_settled = self._parts_sent
        for follower in self.followers:
            follower.failed(place)
        self._look_again()
        self.random.fail(result.rng_state)
        taken_back = self.on_not_computed(not_computed)
        if taken_back:
            result.error.add_note(taken_back)
        return later(result.error, behind.stop)

    def _give_up(self, reason: str) -> FollowerOutcomes:
        """Settle all that came behind a part that failed: what was sent is answered too, mostly that it did
        not run."""
        behind = [(part.assembled, self.backend.result()) for part in self._sent]
        behind += [(part.assembled, RunResult(0, arrived=False)) for part in self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for assembled, result in reversed(behind):
            self._nodes.settle(assembled.flight, result.executed, result.arrived, reason)
        return FollowerOutcomes(
            [value for assembled, result in behind if not result.arrived for value in assembled.release],
            any(result.pool_lost for _, result in behind),
            _last_stop([result for _, result in behind]),
        )


def _last_stop(results: Sequence[RunResult]) -> BaseException | None:
    """Return the exception that arrived while these results were awaited."""
    stop: BaseException | None = None
    for result in results:
        if result.stop is not None:
            stop = result.stop if stop is None else later(stop, result.stop)
    return stop


def _not_computed(result: RunResult) -> str:
    return f"this value was not computed: {result.error or 'its cell was stopped'}".split("\n", 1)[0]


_BINDING: Any = torch._C


class _Untraced:
    """Let ``torch.jit.trace`` see nothing inside."""

    def __enter__(self) -> None:
        self._state = _BINDING._get_tracing_state()
        if self._state is not None:
            _BINDING._set_tracing_state(None)

    def __exit__(self, *failure: object) -> None:
        if self._state is not None:
            _BINDING._set_tracing_state(self._state)


pauses: list[Callable[[], Any]] = [
    torch._C._DisableTorchDispatch,
    torch._C.DisableTorchFunction,
    _Untraced,
]
"""Makers of what switches recording off for a while; each recorder adds its own."""


@contextmanager
def paused() -> Iterator[None]:
    """Let torch calls inside be ordinary ones on plain tensors, even while a cell is captured."""
    entered = [make() for make in pauses]
    for pause in entered:
        pause.__enter__()
    try:
        yield
    finally:
        for pause in reversed(entered):
            pause.__exit__(None, None, None)
