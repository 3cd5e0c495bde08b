"""FLOPs, bytes and charges of each node, worked out once for equal calls of all programs. And the work of
whole programs: what run time is predicted from before a program ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.estimates import estimate_flops
from djinn_lab.srg.families import UNKNOWN, VIEW, FamilyWork, Sizes, charge
from djinn_lab.srg.flops import COUNTED, OpCall, fill_template
from djinn_lab.srg.ops import base_name, written_holes
from djinn_lab.srg.plan_key import TEMPLATE_BYTES_MAX
from djinn_lab.srg.program import Program, TensorMeta, decode_template, encode_templates
from djinn_lab.srg.wiring import Call, Wiring, is_view, trace_wiring

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
PRICED_MAX = 8192
"""So many different calls are remembered with their costs."""
PRICED_TENSORS_MAX, PRICED_RANK_MAX = 16, 8
"""Calls with more tensors, or of more dimensions, are priced anew: what is remembered stays small."""
VIEW_CHARGE = FamilyWork(VIEW, "", 1.0)
"""What every node costs that only looks at its inputs' memory."""


class NodeCost(msgspec.Struct, frozen=True, gc=False):
    """FLOPs and bytes of a node. ``name``: the op's base name. ``counted``: torch's FLOP counter knows the
    op; otherwise ``flops`` is an estimate, and 0 where the op's arithmetic is not ``known``."""

    name: str
    flops: int = 0
    counted: bool = False
    bytes_read: int = 0
    bytes_written: int = 0
    charge: FamilyWork = VIEW_CHARGE
    known: bool = True


_Metas = tuple[TensorMeta | None, ...]


def _priced(template: bytes, inputs: _Metas, outputs: _Metas, shared: tuple[bool | None, ...]) -> NodeCost:
    """Return the cost of a call. ``template``: in MessagePack. ``inputs``, ``outputs``: with None where there
    is no tensor, or its sizes depend on data. ``shared``: of each output, whether it lies in an input's
    memory."""
    filled = decode_template(template)
    name, holes = base_name(filled.op), written_holes(filled)
    if is_view(shared, holes):
        return NodeCost(name)
    written = [meta for hole in holes if (meta := inputs[hole]) is not None]
    call = fill_template(filled, inputs, outputs, written)
    flops, counted, known = _flops(name, call)
    read = _bytes_read(name, call)
    pairs = zip(shared, outputs, strict=False)
    fresh = sum(meta.nbytes for inside, meta in pairs if meta is not None and not inside)
    made = (0 if name in _ALLOCATIONS else fresh) + sum(meta.blob_bytes for meta in written)
    charged = charge(name, call, Sizes(flops, read + made))
    return NodeCost(name, flops, counted, read, made, charged, known)


_known_price = lru_cache(PRICED_MAX)(_priced)
"""Equal calls of all programs are priced once."""


class PriceUse(NamedTuple):
    """``priced``: different calls that were priced; ``known``: how often one of them came again, in another
    program. Since the process began, or :func:`forget_prices`."""

    priced: int
    known: int


def price_use() -> PriceUse:
    """Return how often prices were known."""
    found = _known_price.cache_info()
    return PriceUse(found.misses, found.hits)


def forget_prices() -> None:
    """Price every call anew."""
    _known_price.cache_clear()


def _flops(name: str, call: OpCall) -> tuple[int, bool, bool]:
    if (formula := COUNTED.get(name)) is not None:
        return formula(call), True, True
    estimate = estimate_flops(name, call)
    return estimate or 0, False, estimate is not None


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


class CallCosts(NamedTuple):
    """The costs of a program's different calls, in their order. ``first``: those whose first node is the
    first of its op. ``unknown``: ops whose arithmetic is not known; ``unpriced``: of no family."""

    costs: list[NodeCost]
    first: list[int]
    unknown: tuple[str, ...]
    unpriced: tuple[str, ...]


def call_costs(calls: Sequence[Call], templates: Sequence[bytes], metas: Sequence[TensorMeta]) -> CallCosts:
    """Price the different calls of a valid program. ``calls``: by first use. ``templates``: encoded."""
    flat = {None, *(place for place, meta in enumerate(metas) if len(meta.shape) <= PRICED_RANK_MAX)}
    costs: list[NodeCost] = []
    for call, content in zip(calls, _contents(calls, templates, metas), strict=True):
        tensors = call.inputs + call.outputs
        small = len(tensors) <= PRICED_TENSORS_MAX and len(content.template) <= TEMPLATE_BYTES_MAX
        price = _known_price if small and flat.issuperset(tensors) else _priced
        costs.append(price(*content))
    first: dict[str, int] = {}
    for number, cost in enumerate(costs):
        first.setdefault(cost.name, number)
    return CallCosts(
        costs,
        list(first.values()),
        tuple(dict.fromkeys(cost.name for cost in costs if not cost.known)),
        tuple(dict.fromkeys(cost.name for cost in costs if cost.charge.family == UNKNOWN)),
    )


class _Content(NamedTuple):
    """A call as :func:`_priced` takes it, whatever tables it came from."""

    template: bytes
    inputs: _Metas
    outputs: _Metas
    shared: tuple[bool | None, ...]


def _contents(
    calls: Sequence[Call], templates: Sequence[bytes], metas: Sequence[TensorMeta]
) -> Iterator[_Content]:
    layout_of = dict[int | None, TensorMeta | None](enumerate(metas)).get
    for call in calls:
        inputs, outputs = tuple(map(layout_of, call.inputs)), tuple(map(layout_of, call.outputs))
        yield _Content(templates[call.template], inputs, outputs, call.shared)


def number_calls(wiring: Wiring) -> tuple[int, ...]:
    """Return a number for each node, equal where the op, its arguments and the layouts of its tensors are."""
    numbers: dict[_Content, int] = {}
    contents = _contents(wiring.calls, encode_templates(wiring.program), wiring.program.metas)
    number_of = [numbers.setdefault(content, len(numbers)) for content in contents]
    return tuple(map(number_of.__getitem__, wiring.call_of))


class NodeCosts(NamedTuple):
    """``nodes``: by node; ``unknown`` and ``unpriced`` as of :class:`CallCosts`."""

    nodes: list[NodeCost]
    unknown: tuple[str, ...]
    unpriced: tuple[str, ...]


def node_costs(wiring: Wiring) -> NodeCosts:
    """Return the cost of each node of a valid program."""
    program = wiring.program
    priced = call_costs(wiring.calls, encode_templates(program), program.metas)
    nodes = list(map(priced.costs.__getitem__, wiring.call_of))
    first_use = dict(zip(reversed(wiring.call_of), range(len(nodes) - 1, -1, -1), strict=True))
    for call in priced.first:
        cost = priced.costs[call]
        nodes[first_use[call]] = replace(cost, charge=replace(cost.charge, first=True))
    return NodeCosts(nodes, priced.unknown, priced.unpriced)


def node_charges(program: Program) -> tuple[list[FamilyWork], tuple[str, ...]]:
    """Return what each node of a valid program charges, and the names of ops without a family."""
    costs = node_costs(trace_wiring(program))
    return [cost.charge for cost in costs.nodes], costs.unpriced


def sum_work(
    calls: Sequence[Call],
    counts: Sequence[int],
    templates: Sequence[bytes],
    metas: Sequence[TensorMeta],
) -> Work:
    """Sum the work of a valid program from its different calls, and how many nodes make each of them.
    ``templates``: encoded."""
    priced = call_costs(calls, templates, metas)
    charges: Counter[FamilyWork] = Counter()
    for number in priced.first:
        charges[replace(priced.costs[number].charge, first=True)] += 1
    first = set(priced.first)
    for number, (cost, count) in enumerate(zip(priced.costs, counts, strict=True)):
        if count > (number in first):
            charges[cost.charge] += count - (number in first)
    return Work(sum(counts), tuple(charges.items()), priced.unpriced)


def work_of(program: Program) -> Work:
    """Sum the work of all ops of a valid program."""
    wiring = trace_wiring(program)
    return sum_work(wiring.calls, wiring.counts, encode_templates(program), program.metas)
