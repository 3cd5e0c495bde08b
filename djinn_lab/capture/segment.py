"""The nodes recorded since the last program went out, and sending them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from djinn_lab.capture.arguments import Arguments
from djinn_lab.capture.assembly import Assembled, PendingNode, assemble
from djinn_lab.capture.backend import Backend, Cut, RunResult
from djinn_lab.capture.forked import check_process
from djinn_lab.capture.inference import Plan, ShapeInference
from djinn_lab.capture.ledger import Ledger
from djinn_lab.capture.pace import STREAM_NODES_MAX, STREAM_NODES_MIN, WHOLE_NODES_MAX, Pace
from djinn_lab.capture.random_stream import RandomStream
from djinn_lab.capture.scope import ScopeTracker
from djinn_lab.capture.signature import Signature
from djinn_lab.srg.program import TensorMeta


class Flight(NamedTuple):
    """A program under way: the sources and nodes in it, and the ids that died before it."""

    sent: Collection[int]
    nodes: Sequence[PendingNode]
    dead: Sequence[int]


def _allow(cut: Cut) -> None:
    pass


class Segment:
    """Holds ``plans_made`` and the plan cache too, which outlive the segments. ``before_cut`` is asked
    before anything is changed and may raise to forbid the cut."""

    def __init__(self, backend: Backend, dead: list[int], stream_nodes: int | None = None) -> None:
        self.backend = backend
        self.ledger = Ledger(dead)
        self._process = os.getpid()
        self.scopes = ScopeTracker()
        self.random = RandomStream()
        self.before_cut: Callable[[Cut], None] = _allow
        self.plans_made = 0
        self._pace = Pace(stream_nodes)
        self._inference = ShapeInference()
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._nodes: list[PendingNode] = []
        self.gather(False)
        self._flight: Flight | None = None

    def plan(
        self, signature: Signature, call: Arguments, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Plan:
        """What the op will return. Raises what eager torch would raise for these shapes."""
        key = call.key
        if signature.written and len(call.values) > 1 and (aliasing := call.aliasing()):
            key = (*key, aliasing)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._inference.plan(signature, args, kwargs, call.values, call.key)
            self._plans[key] = plan
            self.plans_made += 1
        return plan

    def push(
        self,
        plan: Plan,
        call: Arguments,
        outputs: tuple[int | None, ...],
        storages: tuple[int | None, ...],
        written: tuple[int, ...],
        random: bool,
    ) -> None:
        """Record a node. ``written``: storages whose memory it changes."""
        self._nodes.append(
            PendingNode(
                plan,
                tuple([value.id for value in call.values]),
                outputs,
                storages,
                tuple([value.storage.id for value in call.values]),
                written,
                self.scopes.current(),
                tuple(call.scalars),
                random,
            )
        )

    def draw(self) -> None:
        """A random op is about to be recorded; what was recorded before a new seed goes out first."""
        if self.random.reseeded():
            self.finish_draws("a random seed was set")
        self.random.draw()

    def finish_draws(self, cause: str) -> None:
        """Make the draws recorded so far, so that the host's generator stands behind them."""
        if self.random.drawn:
            self.flush(Cut(cause, self.scopes.line()))

    def gather(self, whole: bool) -> None:
        """``whole``: nothing is sent ahead from now on, so that the pool sees all branches of what is
        recorded until the next cut, and can run them side by side."""
        self._whole = whole
        self._look_at = WHOLE_NODES_MAX if whole else self._pace.nodes

    @property
    def is_long(self) -> bool:
        """Time to see whether the pool could already begin with what is pending."""
        return len(self._nodes) >= self._look_at

    def stream(self) -> None:
        """Send what is pending without waiting for it, so that the pool computes while the cell records; or
        go on recording while the pool is busy with the part before, or (in a loop of module calls, for as
        many nodes again at most) until the next call begins. Raises what went wrong with that."""
        scopes = self.scopes
        waits = scopes.calls > 1 and not scopes.begins_call
        if waits and len(self._nodes) < self._look_at + self._pace.nodes:
            return  # equal iterations make equal parts, which need not be sent again
        with paused():
            busy = self._flight is not None and not self.backend.is_done()
            if busy and not self._whole and len(self._nodes) < STREAM_NODES_MAX:
                self._look_at = len(self._nodes) + min(self._pace.nodes, STREAM_NODES_MIN)
                return
            self._reap()
            self._send(Cut("streamed", self.scopes.line()), ())

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
            self._send(cut, fetch)
            result = self._reap()
        return list(result.fetched), result.dynamic_metas

    def stop(self) -> None:
        """Cancel what is under way; what is pending stays recorded."""
        with paused():
            flight, self._flight = self._flight, None
            if flight is not None:
                self._settle(flight, self.backend.result(cancel=True))

    def _send(self, cut: Cut, fetch: Sequence[int]) -> None:
        dead, release = self.ledger.take_dead()
        assembled = self._assemble(fetch, release)
        nodes = [self._nodes[position] for position in assembled.positions]
        self._nodes = []
        self.gather(self._whole)
        self.scopes.clear()
        if not (nodes or fetch):
            if release:
                self.backend.release(release)
            self.ledger.settle((), (), dead)
            return
        self.random.sent()
        self.backend.submit(assembled.program, cut)
        self._flight = Flight(assembled.sent, nodes, dead)

    def _reap(self) -> RunResult:
        """Wait for what is under way and learn what became of it. Raises what went wrong with it; what was
        recorded meanwhile builds on it and is given up then."""
        flight, self._flight = self._flight, None
        if flight is None:
            return RunResult(0)
        result = self.backend.result()
        self._settle(flight, result)
        if result.error is not None:
            raise result.error
        return result

    def _assemble(self, fetch: Sequence[int], release: Sequence[int]) -> Assembled:
        ledger = self.ledger
        writes = any(node.written for node in self._nodes)
        return assemble(
            self._nodes,
            ledger.held,
            self.scopes.scopes,
            ledger.live.keys(),
            ledger.live_storages() if writes else (),
            fetch,
            release,
            self.random.start_state(),
        )

    def _settle(self, flight: Flight, result: RunResult) -> None:
        ledger = self.ledger
        if result.pool_lost:
            ledger.lose(flight.nodes, "this value was on a device or pool that went away")
            ledger.lose_pool()
        else:
            ledger.settle(flight.sent if result.arrived else (), flight.nodes[: result.executed], flight.dead)
            if not result.arrived:
                ledger.keep_back(flight.sent)
            self._pace.learn(result.executed, result.run_s)
            ledger.lose(flight.nodes[result.executed :], _not_computed(result))
        if result.error is None:
            self.random.finish(result.rng_state)
            return
        ledger.lose(self._nodes, _not_computed(result))
        self._nodes = []
        self.gather(self._whole)
        self.random.forget()


def _not_computed(result: RunResult) -> str:
    return f"this value was not computed: {result.error or 'its cell was stopped'}".split("\n", 1)[0]


@contextmanager
def paused() -> Iterator[None]:
    """Torch calls inside are ordinary ones on plain tensors, even while a cell is captured."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield
