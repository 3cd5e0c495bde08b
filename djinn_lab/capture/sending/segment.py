"""Sends what a recorder of either kind has recorded since the last program."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from msgspec.structs import replace

from djinn_lab.capture.host.forked import check_process
from djinn_lab.capture.host.interrupts import held
from djinn_lab.capture.host.memory_bytes import bytes_of, bytes_of_storage, travelling
from djinn_lab.capture.host.random_stream import RandomStream
from djinn_lab.capture.sending.backend import INLINE_SOURCE_BYTES_MAX, Backend, Cut, RunResult
from djinn_lab.capture.values import Layout
from djinn_lab.srg.program import EncodedProgram, Source, TensorMeta

STREAM_NODES = 2048
"""The first part, while nothing is known of the pool's speed; and the longest that is waited for."""
STREAM_NODES_MIN = 128
STREAM_NODES_MAX = 50_000
"""With so many pending, the cell waits for a busy pool."""
WHOLE_NODES_MAX = 200_000
"""So much of a cell that is to be sent whole is gathered; a pool looks for branches in a little more."""
PART_S = 0.05
"""Seconds that the device should be busy with a part. Many times as long as it then waits for the next."""

KEPT_RATIO = 3
"""A length stays as it is while it is too long by less."""
POOL_LOST = "this value was on a device, session or pool that went away"
RESENDS_MAX = 8
"""So often is a program sent again with values that are gone: each time, another worker has died."""


class PartLength:
    """``nodes``: how many pending nodes are worth a message, from what the device took for those before; in
    powers of two, and changed rarely, so that equal cells are mostly cut into equal parts, which need not be
    sent again."""

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed is not None
        self.nodes = STREAM_NODES if fixed is None else fixed

    def learn(self, executed: int, run_s: float) -> None:
        """``executed`` nodes took the device ``run_s`` seconds."""
        if self._fixed or executed < STREAM_NODES_MIN or run_s <= 0:
            return
        wanted = PART_S * executed / run_s
        if self.nodes / KEPT_RATIO < wanted <= self.nodes:
            return
        self.nodes = STREAM_NODES_MIN
        while self.nodes < min(wanted, STREAM_NODES):
            self.nodes *= 2


class AssembledPart(NamedTuple):
    """``program`` is None when nothing pending is needed. ``release``: ids that the pool may forget.
    ``flight``: what :meth:`Nodes.settle` wants to know again."""

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
        """Calls of root modules among them."""
        ...

    @property
    def begins_call(self) -> bool:
        """Return whether the next op is the first of a root module's call."""
        ...

    @property
    def goes_ahead(self) -> bool:
        """May :meth:`assemble` be called again before what it gave last has settled?"""
        ...

    def line(self) -> int:
        """The line of the cell that runs now, 0 outside of one."""
        ...

    def assemble(self, fetch: Sequence[int], rng_state: bytes | None) -> AssembledPart:
        """Take what is pending and needed; a new segment begins."""
        ...

    def settle(self, flight: Any, executed: int, arrived: bool, reason: str) -> None:
        """A program ran ``executed`` of its nodes; what the others would have made is lost, for ``reason``.
        ``arrived``: its sources are on the pool."""
        ...

    def lose_pending(self, reason: str) -> None:
        """Give up what was recorded since."""
        ...

    def lose_pool(self, flight: Any, reason: str) -> None:
        """Every pool copy is gone. What the host has can be sent again."""
        ...

    def bytes_of(self, flight: Any, source: int) -> torch.UntypedStorage | None:
        """Memory with the bytes of a source as the program of ``flight`` is to read it; None where the host
        has them not."""
        ...

    def lose_held(self, values: Sequence[int], reason: str) -> None:
        """Record that these pool copies are gone. What the host has is sent again when it is needed."""
        ...


class Waiting(NamedTuple):
    """A program that was assembled while the one before was under way."""

    assembled: AssembledPart
    cut: Cut


def _allow(cut: Cut) -> None:
    pass


class Segment:
    """``before_cut`` is asked before anything is changed and may raise to forbid the cut."""

    def __init__(self, backend: Backend, nodes: Nodes, stream_nodes: int | None = None) -> None:
        self.backend = backend
        self.random = RandomStream()
        self.before_cut: Callable[[Cut], None] = _allow
        self._process = os.getpid()
        self._pace = PartLength(stream_nodes)
        self._nodes = nodes
        self.gather(False)
        self._flight: AssembledPart | None = None
        self._cut = Cut("", 0)
        self._waiting: deque[Waiting] = deque()

    def draw(self) -> None:
        """A random op is about to be recorded; what was recorded before a new seed goes out first."""
        if self.random.reseeded():
            self.finish_draws("a random seed was set")
        self.random.draw()

    def finish_draws(self, cause: str) -> None:
        """Make the draws recorded so far, so that the host's generator stands behind them."""
        if self.random.drawn:
            self.flush(Cut(cause, self._nodes.line()))

    def gather(self, whole: bool) -> None:
        """``whole``: nothing is sent ahead from now on, so that the pool sees all branches of what is
        recorded until the next cut, and can run them side by side."""
        self._whole = whole
        self._nodes.look_at = WHOLE_NODES_MAX if whole else self._pace.nodes
        self._nodes.patience = self._pace.nodes

    def stream(self) -> None:
        """Send what is pending without waiting for it, so that the pool computes while the cell records.

        While the pool is busy with an earlier part, this one is assembled and waits. So a loop is always cut
        into equal parts, which the pool knows. Raises what went wrong with an earlier part."""
        nodes = self._nodes
        if not nodes.begins_call and nodes.calls > 1 and nodes.pending < nodes.look_at + self._pace.nodes:
            return  # equal iterations make equal parts
        with paused():
            busy = self._flight is not None and not self.backend.is_done()
            ahead = nodes.goes_ahead and not self.random.drawn and self._recorded_ahead() < STREAM_NODES_MAX
            if busy and not ahead and not self._whole and nodes.pending < STREAM_NODES_MAX:
                nodes.look_at = 2 * nodes.look_at
                return
            cut = Cut("streamed", nodes.line())
            if busy and ahead:
                self._waiting.append(Waiting(self._take(()), cut))
                return
            self._reap()
            if self._waiting:
                if not self.random.drawn:
                    self._waiting.append(Waiting(self._take(()), cut))
                self._submit(*self._waiting.popleft())
            else:
                self._send(cut, ())

    def _recorded_ahead(self) -> int:
        programs = (part.assembled.program for part in self._waiting)
        return sum(program.nodes for program in programs if program is not None)

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
        with paused():
            self._reap()
            while self._waiting:
                self._submit(*self._waiting.popleft())
                self._reap()
            self._send(cut, fetch)
            result = self._reap()
        return list(result.fetched), result.dynamic_metas

    @held()
    def stop(self) -> None:
        """Cancel what is under way; what is pending stays recorded."""
        with paused():
            flight, self._flight = self._flight, None
            if flight is not None:
                self._settle(flight, self.backend.result(cancel=True))

    @held()
    def lose_pool(self) -> None:
        """Record that every pool copy is gone. Only between cells, when nothing is under way."""
        with paused():
            self._nodes.lose_pool(self._take(()).flight, POOL_LOST)

    def _take(self, fetch: Sequence[int]) -> AssembledPart:
        assembled = self._nodes.assemble(fetch, self.random.start_state())
        self.gather(self._whole)
        return assembled

    def _send(self, cut: Cut, fetch: Sequence[int]) -> None:
        assembled = self._take(fetch)
        if assembled.program is not None:
            self.random.sent()
        self._submit(assembled, cut)

    @held()
    def _submit(self, assembled: AssembledPart, cut: Cut) -> None:
        if assembled.program is None:
            if assembled.release:
                self.backend.release(assembled.release)
            return
        self.backend.submit(assembled.program, cut)
        self._flight, self._cut = assembled, cut

    @held()
    def _reap(self) -> RunResult:
        """Wait for the segment under way, and apply its outcome. Raises its failure; what was
        recorded meanwhile builds on it and is given up then."""
        flight, self._flight = self._flight, None
        if flight is None:
            return RunResult(0)
        result = self._result(flight)
        self._settle(flight, result)
        if result.error is not None:
            raise result.error
        return result

    def _result(self, flight: AssembledPart) -> RunResult:
        """Return the result of a program. Where values are gone that it reads, as with a worker that died,
        and the host has them all, they are sent to it again."""
        result = self.backend.result()
        program = flight.program
        for _ in range(RESENDS_MAX):
            if not result.missing or program is None:
                break
            program = with_bytes(
                program,
                {source: self._nodes.bytes_of(flight.flight, source) for source in result.missing},
                self.backend.stage,
            )
            if program is not None:
                self.backend.submit(program, self._cut)
                result = self.backend.result()
        return result

    def _settle(self, assembled: AssembledPart, result: RunResult) -> None:
        reason = POOL_LOST if result.pool_lost else _not_computed(result)
        if result.error is not None:
            while self._waiting:
                self._nodes.settle(self._waiting.pop().assembled.flight, 0, False, reason)
        if result.pool_lost:
            self._nodes.lose_pool(assembled.flight, reason)
        else:
            self._nodes.settle(assembled.flight, result.executed, result.arrived, reason)
            self._nodes.lose_held(result.missing, POOL_LOST)
            self._pace.learn(result.executed, result.run_s)
        if result.error is None:
            self.random.finish(result.rng_state)
            return
        self._nodes.lose_pending(_not_computed(result))
        self.gather(self._whole)
        self.random.fail(result.rng_state)


def _not_computed(result: RunResult) -> str:
    return f"this value was not computed: {result.error or 'its cell was stopped'}".split("\n", 1)[0]


pauses: list[Callable[[], Any]] = [torch._C._DisableTorchDispatch, torch._C.DisableTorchFunction]
"""Makers of what switches recording off for a while; each recorder adds its own."""


@contextmanager
def paused() -> Iterator[None]:
    """Torch calls inside are ordinary ones on plain tensors, even while a cell is captured."""
    entered = [make() for make in pauses]
    for pause in entered:
        pause.__enter__()
    try:
        yield
    finally:
        for pause in reversed(entered):
            pause.__exit__(None, None, None)


def with_bytes(
    encoded: EncodedProgram,
    memories: Mapping[int, torch.UntypedStorage | None],
    stage: Callable[[memoryview], str],
) -> EncodedProgram | None:
    """The same program with the bytes of these sources, which lie at the beginning of the host's memory. None
    where one has none. ``stage``: as :meth:`~djinn_lab.capture.sending.backend.Backend.stage`."""
    if None in memories.values():
        return None
    program = encoded.program
    released = set(program.release)

    def brought(source: Source) -> Source:
        memory = memories.get(source.value)
        return source if memory is None else _brought(source, program.metas[source.meta], memory, stage)

    kept = [value for value in memories if value not in released]
    changed = replace(program, sources=[*map(brought, program.sources)], keep=[*kept, *program.keep])
    return EncodedProgram.of(changed)


def _brought(
    source: Source, meta: TensorMeta, memory: torch.UntypedStorage, stage: Callable[[memoryview], str]
) -> Source:
    if meta.blob_bytes == meta.span_bytes:
        data = bytes_of_storage(memory)[: meta.blob_bytes]
    else:
        layout = Layout.of_meta(meta)
        tensor = torch.empty(0, dtype=layout.dtype).set_(memory, 0, layout.shape, layout.stride)
        held = travelling(tensor, layout)
        data = bytes_of(held, layout)
    if data.nbytes <= INLINE_SOURCE_BYTES_MAX:
        return replace(source, inline=bytes(data))
    return replace(source, blob=stage(data))
