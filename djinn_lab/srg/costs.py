"""FLOPs and bytes of each node, worked out once per op and layout, and of whole programs: what run time is
guessed from before a program ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from djinn_lab.srg.estimates import estimate_flops
from djinn_lab.srg.flops import COUNTED, OpCall, fill_template
from djinn_lab.srg.program import NodeRecord, Program, TensorMeta
from djinn_lab.srg.wiring import Wiring, trace_wiring

_SPARSE_READS = frozenset(("embedding", "index_select", "index", "gather", "take", "_unsafe_index"))
"""Ops that touch only the rows they return."""
_OVERWRITES = frozenset(
    ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "exponential_", "random_")
)
"""In-place ops that do not read what they replace."""
_ALLOCATIONS = frozenset(
    ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)
"""Ops that reserve memory without writing to it."""


@dataclass(frozen=True)
class NodeCost:
    """FLOPs and bytes of a node. ``counted``: torch's FLOP counter knows the op; otherwise ``flops`` is an
    estimate."""

    flops: int
    counted: bool
    bytes_read: int
    bytes_written: int


class CostBook:
    """Costs of a program's nodes. ``unknown`` fills up with the ops whose arithmetic is not known."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._known: dict[tuple[object, ...], NodeCost] = {}
        self._unknown: dict[str, None] = {}

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(self._unknown)

    def cost(self, index: int, record: NodeRecord) -> NodeCost:
        """Return the cost of the ``index``-th node."""
        metas = tuple(map(self._wiring.metas.get, record.inputs))  # type: ignore[arg-type]
        key = (record.template, metas, record.output_metas)
        cost = self._known.get(key)
        if cost is None:
            cost = self._known[key] = self._work_out(index, record, metas)
        return cost

    def _work_out(self, index: int, record: NodeRecord, metas: Sequence[TensorMeta | None]) -> NodeCost:
        wiring = self._wiring
        if wiring.views[index]:
            return NodeCost(0, False, 0, 0)
        name, template = wiring.names[record.template], wiring.program.templates[record.template]
        table = wiring.program.metas
        outputs = [None if meta is None else table[meta] for meta in record.output_metas]
        written = [meta for value in wiring.writes[index] if (meta := wiring.metas[value]) is not None]
        call = fill_template(template, metas, outputs, written)
        flops, counted = self._flops(name, call)
        fresh = self._fresh_bytes(record, outputs)
        return NodeCost(
            flops=flops,
            counted=counted,
            bytes_read=_bytes_read(name, call),
            bytes_written=(0 if name in _ALLOCATIONS else fresh) + sum(meta.blob_bytes for meta in written),
        )

    def _flops(self, name: str, call: OpCall) -> tuple[int, bool]:
        if (formula := COUNTED.get(name)) is not None:
            return formula(call), True
        estimate = estimate_flops(name, call)
        if estimate is None:
            self._unknown.setdefault(name)
        return estimate or 0, False

    def _fresh_bytes(self, record: NodeRecord, outputs: Sequence[TensorMeta | None]) -> int:
        """Bytes of the results that are not an input's memory."""
        storages = self._wiring.storages
        given = {storages[value] for value in record.inputs if value is not None}
        pairs = zip(record.storages, outputs, strict=False)
        return sum(meta.nbytes for storage, meta in pairs if meta is not None and storage not in given)


def _bytes_read(name: str, call: OpCall) -> int:
    metas = list(call.tensors)
    if name in _SPARSE_READS and metas:
        rows = sum(meta.nbytes for meta in call.outputs)
        return min(metas[0].blob_bytes, rows) + sum(meta.nbytes for meta in metas[1:])
    if name in _OVERWRITES and call.written:
        metas.remove(call.written[0])
    if name in _ALLOCATIONS or name.startswith(("zeros_like", "ones_like", "full_like", "new_")):
        return 0
    return sum(meta.blob_bytes for meta in metas)


def roofline_s(flops: int, moved_bytes: int, flops_per_s: float, memory_bytes_per_s: float) -> float:
    """Bound run time by arithmetic or by memory, the slower of both, in seconds (Williams, Waterman,
    Patterson, "Roofline", CACM 2009)."""
    return max(flops / flops_per_s, moved_bytes / memory_bytes_per_s)


class Work(msgspec.Struct, frozen=True):
    """Sums over all ops. ``moved_bytes``: read and written on the device."""

    ops: int
    flops: int
    moved_bytes: int

    def seconds(self, flops_per_s: float, memory_bytes_per_s: float, op_overhead_s: float) -> float:
        """Predict the run time by the roofline of the whole, plus the fixed cost of every op."""
        busy_s = roofline_s(self.flops, self.moved_bytes, flops_per_s, memory_bytes_per_s)
        return busy_s + self.ops * op_overhead_s


def work_of(program: Program) -> Work:
    """Sum the work of all ops of a valid program."""
    book = CostBook(trace_wiring(program))
    flops = moved_bytes = 0
    for index, record in enumerate(program.nodes):
        cost = book.cost(index, record)
        flops += cost.flops
        moved_bytes += cost.bytes_read + cost.bytes_written
    return Work(len(program.nodes), flops, moved_bytes)
