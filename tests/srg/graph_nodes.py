"""Nodes of graphs, made by hand."""

from __future__ import annotations

from djinn_lab.srg.families import FamilyWork
from djinn_lab.srg.graph import Node
from djinn_lab.srg.program import Phase


def make_node(
    number: int,
    module: str = "Net.layer",
    op: str = "aten.mm.default",
    phase: Phase = "forward",
    call: int = 1,
    line: int = 1,
    inputs: tuple[int, ...] = (),
) -> Node:
    """A node that makes the value of its own number."""
    return Node(
        id=number,
        op=op,
        module=module,
        call=call,
        cell="[1]",
        line=line,
        phase=phase,
        modality="text",
        residency="activation",
        flops=100,
        flops_counted=True,
        bytes_read=64,
        bytes_written=32,
        shape=(1, 8),
        dtype="float32",
        inputs=inputs,
        outputs=(number,),
        writes=(),
        is_view=False,
        charge=FamilyWork("pointwise", "float32", 32.0),
    )
