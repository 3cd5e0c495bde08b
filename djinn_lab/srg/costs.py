"""FLOPs, bytes and charges of each node, worked out once per op and layout, and the work of whole programs:
what run time is predicted from before a program ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.estimates import estimate_flops
from djinn_lab.srg.families import UNKNOWN, VIEW, FamilyWork, Sizes, charge
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


VIEW_CHARGE = FamilyWork(VIEW, "", 1.0)
"""What every node costs that only looks at its inputs' memory."""


@dataclass(frozen=True)
class NodeCost:
    """FLOPs and bytes of a node. ``counted``: torch's FLOP counter knows the op; otherwise ``flops`` is an
    estimate."""

    flops: int
    counted: bool
    bytes_read: int
    bytes_written: int
    charge: FamilyWork = VIEW_CHARGE


class CostBook:
    """Costs of a program's nodes. ``unknown`` fills up with the ops whose arithmetic is not known,
    ``unpriced`` with those of no family."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._known: dict[tuple[object, ...], NodeCost] = {}
        self._unknown: dict[str, None] = {}
        self._unpriced: dict[str, None] = {}
        self._met: set[str] = set()

    @property
    def unpriced(self) -> tuple[str, ...]:
        return tuple(self._unpriced)

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
        name = self._wiring.names[record.template]
        if name in self._met:
            return cost
        self._met.add(name)
        return replace(cost, charge=msgspec.structs.replace(cost.charge, first=True))

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
        read = _bytes_read(name, call)
        made = (0 if name in _ALLOCATIONS else fresh) + sum(meta.blob_bytes for meta in written)
        charged = charge(name, call, Sizes(flops, read + made))
        if charged.family == UNKNOWN:
            self._unpriced.setdefault(name)
        return NodeCost(flops, counted, read, made, charged)

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


class Work(msgspec.Struct, frozen=True):
    """What a program charges a device: each different charge with how often it comes. ``unpriced``: ops of no
    family, priced by their bytes."""

    ops: int
    charges: tuple[tuple[FamilyWork, int], ...]
    unpriced: tuple[str, ...] = ()

    def seconds(self, curves: DeviceCurves) -> float:
        """Predict the run time on a device."""
        return sum(count * curves.seconds(charged) for charged, count in self.charges)


def node_charges(program: Program) -> tuple[list[FamilyWork], tuple[str, ...]]:
    """Return what each node of a valid program charges, and the names of ops without a family."""
    book = CostBook(trace_wiring(program))
    charges = [book.cost(index, record).charge for index, record in enumerate(program.nodes)]
    return charges, book.unpriced


def work_of(program: Program) -> Work:
    """Sum the work of all ops of a valid program."""
    charges, unpriced = node_charges(program)
    return Work(len(charges), tuple(Counter(charges).items()), unpriced)
