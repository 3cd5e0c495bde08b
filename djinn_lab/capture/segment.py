"""The nodes recorded since the last program went out, and sending them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from djinn_lab.capture.arguments import Arguments
from djinn_lab.capture.assembly import Assembled, PendingNode, assemble
from djinn_lab.capture.backend import Backend, Cut, RunResult
from djinn_lab.capture.inference import Plan, ShapeInference
from djinn_lab.capture.ledger import Ledger
from djinn_lab.capture.random_stream import RandomStream
from djinn_lab.capture.scope import ScopeTracker
from djinn_lab.capture.signature import Signature
from djinn_lab.srg.program import TensorMeta


class Segment:
    """Holds ``plans_made`` and the plan cache too, which outlive the segments."""

    def __init__(self, backend: Backend, dead: list[int]) -> None:
        self.backend = backend
        self.ledger = Ledger(dead)
        self.scopes = ScopeTracker()
        self.random = RandomStream()
        self.plans_made = 0
        self._inference = ShapeInference()
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._nodes: list[PendingNode] = []

    def plan(
        self, signature: Signature, call: Arguments, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Plan:
        """What the op will return. Raises what eager torch would raise for these shapes."""
        plan = self._plans.get(call.key)
        if plan is None:
            plan = self._inference.plan(signature, args, kwargs, call.values)
            self._plans[call.key] = plan
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
            self.flush(Cut("a random seed was set", self.scopes.line()))
        self.random.draw()

    def flush(self, cut: Cut, fetch: Sequence[int] = ()) -> list[torch.Tensor]:
        """Send what is pending and reachable, wait, and return the fetched tensors. Raises what went
        wrong."""
        return self.run(cut, fetch)[0]

    def run(
        self, cut: Cut, fetch: Sequence[int] = ()
    ) -> tuple[list[torch.Tensor], Sequence[TensorMeta | None]]:
        """Like :meth:`flush`, with the layouts that a last, dynamic node turned out to have."""
        with paused():
            dead, release = self.ledger.take_dead()
            assembled = self._assemble(fetch, release)
            nodes = [self._nodes[position] for position in assembled.positions]
            self._nodes = []
            self.scopes.clear()
            if not (nodes or fetch):
                if release:
                    self.backend.release(release)
                self.ledger.settle((), (), dead)
                return [], ()
            result = self.backend.run(assembled.program, cut)
            self._settle(assembled, nodes, result, dead)
        if result.error is not None:
            raise result.error
        return list(result.fetched), result.dynamic_metas

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

    def _settle(
        self, assembled: Assembled, nodes: Sequence[PendingNode], result: RunResult, dead: Sequence[int]
    ) -> None:
        ledger = self.ledger
        self.random.finish(result.rng_state)
        if result.pool_lost:
            ledger.lose(nodes, "this value was on a device or pool that went away")
            ledger.lose_pool()
            return
        ledger.settle(assembled.sent, nodes[: result.executed], dead)
        first_line = f"{result.error or 'its cell was stopped'}".split("\n", 1)[0]
        ledger.lose(nodes[result.executed :], f"this value was not computed: {first_line}")


@contextmanager
def paused() -> Iterator[None]:
    """Torch calls inside are ordinary ones on plain tensors, even while a cell is captured."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield
