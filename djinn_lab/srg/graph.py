"""The semantically rich graph (SRG): each node of a program with its module, phase and cost.

Built in one linear pass from a validated :class:`~djinn_lab.srg.program.Program` and never changed. Node
ids are positions in program order; value ids are the session's. ``docs/srg.md`` says where each field comes
from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from djinn_lab.srg.attention import find_attention, refine_phases
from djinn_lab.srg.costs import NodeCost, node_costs, number_calls
from djinn_lab.srg.families import FamilyWork
from djinn_lab.srg.identity import structural_hash
from djinn_lab.srg.modality import assign_modality
from djinn_lab.srg.program import Modality, Phase, Program, Residency, TensorMeta
from djinn_lab.srg.residency import assign_residency
from djinn_lab.srg.wiring import Wiring, present, trace_wiring


class Value(msgspec.Struct, frozen=True, gc=False):
    """A tensor. ``producer``: the node that made it, None for a source. ``shape`` and ``dtype`` are None
    while they depend on data, and ``nbytes`` (of its elements) is then 0. ``span_bytes``: from its first to
    its last element in memory. ``upload_bytes``: what a source sends from the client, 0 for a value that
    the session already holds."""

    id: int
    storage: int
    producer: int | None
    residency: Residency
    shape: tuple[int, ...] | None
    dtype: str | None
    nbytes: int
    span_bytes: int
    upload_bytes: int


class Node(msgspec.Struct, frozen=True, gc=False):
    """One op. ``flops`` equals ``torch.utils.flop_counter`` where that counts the op (``flops_counted``),
    else it is an estimate. ``writes`` are the inputs changed in place. ``is_view``: the results alias the
    inputs and nothing runs. ``charge``: what it costs a device."""

    id: int
    op: str
    module: str
    call: int
    cell: str
    line: int
    phase: Phase
    modality: Modality
    residency: Residency
    flops: int
    flops_counted: bool
    bytes_read: int
    bytes_written: int
    shape: tuple[int, ...] | None
    dtype: str | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    writes: tuple[int, ...]
    is_view: bool
    charge: FamilyWork

    def module_at(self, depth: int) -> str:
        """Return the first ``depth`` names of the module's path; empty outside modules."""
        return ".".join(self.module.split(".")[:depth])


class Edge(msgspec.Struct, frozen=True, gc=False):
    """``target`` needs ``value`` as ``source`` left it: the node that produced the value, or that last
    wrote to its memory (both, when they differ). ``source`` None: it existed before the first node.
    ``nbytes``: of the value's elements."""

    source: int | None
    target: int
    value: int
    nbytes: int


@dataclass(frozen=True)
class SRG:
    """The semantically rich graph of a program. ``unknown_flops``: names of ops that count 0 because nothing
    is known about their arithmetic. ``unpriced``: of no family, so that their time is a guess from their
    bytes. ``calls``: by node, from :func:`~djinn_lab.srg.costs.number_calls`; empty where not known."""

    nodes: tuple[Node, ...]
    values: Mapping[int, Value]
    keep: tuple[int, ...]
    fetch: tuple[int, ...]
    structural_hash: str
    unknown_flops: tuple[str, ...]
    unpriced: tuple[str, ...] = ()
    calls: tuple[int, ...] = ()

    @classmethod
    def from_program(cls, program: Program) -> SRG:
        """Annotate a program that :func:`~djinn_lab.srg.validation.validate_program` accepts."""
        wiring = trace_wiring(program)
        attentions = find_attention(wiring)
        values = _values(wiring, assign_residency(wiring, attentions))
        costs = node_costs(wiring)
        phases = refine_phases(program, attentions)
        return cls(
            nodes=tuple(_nodes(wiring, values, phases, assign_modality(wiring), costs.nodes)),
            values=values,
            keep=tuple(program.keep),
            fetch=tuple(program.fetch),
            structural_hash=structural_hash(program),
            unknown_flops=costs.unknown,
            unpriced=costs.unpriced,
            calls=number_calls(wiring),
        )

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """By target. Found at the first look."""
        return tuple(_edges(self.nodes, self.values))

    @property
    def counted_flops(self) -> int:
        """FLOPs of the ops that torch's counter knows: equal to ``FlopCounterMode.get_total_flops()``."""
        return sum(node.flops for node in self.nodes if node.flops_counted)

    @property
    def flops(self) -> int:
        """Counted and estimated FLOPs together."""
        return sum(node.flops for node in self.nodes)


def _values(wiring: Wiring, residency: Mapping[int, Residency]) -> dict[int, Value]:
    program = wiring.program
    producers: dict[int, int] = {}
    for index, node in enumerate(program.nodes):
        for output in node.outputs:
            if output is not None and output not in wiring.sources:
                producers.setdefault(output, index)
    uploads = {
        source.value: program.metas[source.meta].blob_bytes for source in program.sources if not source.held
    }
    layouts = dict[int | None, _Layout](enumerate(map(_layout, program.metas)))
    layouts[None] = (None, None, 0, 0)
    storages, values = wiring.storages, dict[int, Value]()
    for value, place in wiring.layouts.items():
        shape, dtype, nbytes, span_bytes = layouts[place]
        values[value] = Value(  # by position: with names it takes ten times as long
            value,
            storages[value],
            producers.get(value),
            residency[value],
            shape,
            dtype,
            nbytes,
            span_bytes,
            uploads.get(value, 0),
        )
    return values


_Layout = tuple[tuple[int, ...] | None, str | None, int, int]


def _layout(meta: TensorMeta) -> _Layout:
    return meta.shape, meta.dtype, meta.nbytes, meta.span_bytes


def _edges(nodes: Sequence[Node], values: Mapping[int, Value]) -> Iterator[Edge]:
    written_by: dict[int, int] = {}
    for node in nodes:
        for needed in dict.fromkeys(node.inputs):
            value = values[needed]
            maker, writer = value.producer, written_by.get(value.storage)
            yield Edge(maker, node.id, needed, value.nbytes)
            if writer is not None and (maker is None or writer > maker):
                yield Edge(writer, node.id, needed, value.nbytes)
        for changed in node.writes:
            written_by[values[changed].storage] = node.id


def _nodes(
    wiring: Wiring,
    values: Mapping[int, Value],
    phases: Sequence[Phase],
    modalities: Sequence[Modality],
    costs: Sequence[NodeCost],
) -> list[Node]:
    scopes, ops = wiring.program.scopes, [template.op for template in wiring.program.templates]
    all_writes, views = wiring.writes, wiring.views
    nodes: list[Node] = []
    for index, record in enumerate(wiring.program.nodes):
        cost, scope = costs[index], scopes[record.scope]
        outputs, writes = present(record.outputs), all_writes[index]
        first = values[outputs[0]] if outputs else values[writes[0]] if writes else None
        nodes.append(
            Node(  # by position, as above
                index,
                ops[record.template],
                scope.module,
                scope.call,
                scope.cell,
                scope.line,
                phases[index],
                modalities[index],
                "activation" if first is None else first.residency,
                cost.flops,
                cost.counted,
                cost.bytes_read,
                cost.bytes_written,
                None if first is None else first.shape,
                None if first is None else first.dtype,
                present(record.inputs),
                outputs,
                writes,
                views[index],
                cost.charge,
            )
        )
    return nodes
