"""The nodes that the Python recorder has recorded and not sent, with the plans they were made from."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch

from djinn_lab.capture.arguments import Arguments
from djinn_lab.capture.python.assembly import PendingNode, assemble
from djinn_lab.capture.python.scope import ScopeTracker
from djinn_lab.capture.python.value_table import ValueTable
from djinn_lab.capture.sending.segment import AssembledPart
from djinn_lab.capture.shapes.inference import OpPlan, ShapeInference
from djinn_lab.capture.shapes.signature import Signature
from djinn_lab.srg.program import EncodedProgram, NumericSettings


class _Flight(NamedTuple):
    """The sources and nodes of a program under way, which of those recorded they are, and the ids that died
    before it."""

    sent: Collection[int]
    nodes: Sequence[PendingNode]
    positions: Sequence[int]
    dead: Sequence[int]


class PythonNodes:
    """``plans_made`` counts what the plan cache did not know."""

    goes_ahead = False

    def __init__(self, dead: list[int]) -> None:
        self.table = ValueTable(dead)
        self.scopes = ScopeTracker()
        self.plans_made = 0
        self.look_at = 0
        self.patience = 0
        self._inference = ShapeInference()
        self._plans: defaultdict[NumericSettings, dict[tuple[Any, ...], OpPlan]] = defaultdict(dict)
        self.settings = NumericSettings()
        """What the pending nodes were recorded under."""
        self._nodes: list[PendingNode] = []

    @property
    def pending(self) -> int:
        return len(self._nodes)

    @property
    def calls(self) -> int:
        return self.scopes.calls

    @property
    def begins_call(self) -> bool:
        return self.scopes.begins_call

    def line(self) -> int:
        return self.scopes.line()

    def plan(
        self, signature: Signature, call: Arguments, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> OpPlan:
        """Return what the op will return. Raises what eager torch would raise for these shapes."""
        key = call.key
        if signature.written and len(call.values) > 1 and (aliasing := call.aliasing()):
            key = (*key, aliasing)
        plans = self._plans[self.settings]
        plan = plans.get(key)
        if plan is None:
            plan = plans[key] = self._inference.plan(signature, args, kwargs, call.values)
            self.plans_made += 1
        return plan

    def push(
        self,
        plan: OpPlan,
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

    def assemble(self, fetch: Sequence[int], rng_state: bytes | None) -> AssembledPart:
        table = self.table
        dead, release = table.take_dead()
        writes = any(node.written for node in self._nodes)
        assembled = assemble(
            self._nodes,
            table.held,
            self.scopes.scopes,
            table.live.keys(),
            table.live_storages() if writes else (),
            fetch,
            release,
            rng_state,
            self.settings,
        )
        nodes = [self._nodes[position] for position in assembled.positions]
        self._nodes = []
        self.scopes.clear()
        if not (nodes or fetch):
            table.settle((), (), dead)
            return AssembledPart(None, release, _Flight(assembled.sent, nodes, (), dead))
        flight = _Flight(assembled.sent, nodes, assembled.positions, dead)
        return AssembledPart(EncodedProgram.of(assembled.program), release, flight)

    def settle(self, flight: _Flight, executed: int, arrived: bool, reason: str) -> None:
        table = self.table
        table.settle(flight.sent if arrived else (), flight.nodes[:executed], flight.dead)
        if not arrived:
            table.keep_back(flight.sent)
        table.lose(flight.nodes[executed:], reason)

    def position(self, flight: _Flight, executed: int) -> int:
        return flight.positions[executed] if executed < len(flight.positions) else sys.maxsize

    def lose_pending(self, reason: str) -> None:
        self.table.lose(self._nodes, reason)
        self._nodes = []

    def lose_pool(self, flight: _Flight, reason: str) -> None:
        self.table.lose(flight.nodes, reason)
        self.table.lose_pool()

    def bytes_of(self, _flight: _Flight, source: int) -> torch.UntypedStorage | None:
        return self.table.bytes_of(source)

    def lose_held(self, values: Sequence[int], reason: str) -> None:
        self.table.lose_held(values, reason)
