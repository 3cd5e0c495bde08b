"""Say in a user's words which values a program lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from djinn_lab.errors import ValueLost
from djinn_lab.srg.program import Program, TensorMeta
from djinn_lab.units import counted

RUN_AGAIN = "Run again the cell that made it."


def value_lost(program: Program, values: Sequence[int], how: str = "") -> ValueLost:
    """Make the error of a program that reads ``values``, at least one, which are gone. It names the first
    that is used, by dtype, shape and line. ``how``: they were lost, where that is known."""
    lost = set(values)
    used = next((use for use in _uses(program) if use[0] in lost), None)
    value, where = used or (values[0], "")
    meta = _meta_of(program, value)
    what = "a tensor" if meta is None else f"a {meta.dtype} tensor of shape {tuple(meta.shape)}"
    if where:
        what += f", used at {where},"
    if len(lost) > 1:
        what += f" and of {counted(len(lost) - 1, 'other tensor')}"
    why = f"are lost: {how}" if how else "were on a device whose process died"
    return ValueLost(f"the values of {what} {why}.", RUN_AGAIN)


def _uses(program: Program) -> Iterator[tuple[int, str]]:
    """(value, place) of all inputs, in order."""
    for node in program.nodes:
        scope = program.scopes[node.scope]
        where = f"{scope.cell}, line {scope.line}" if scope.line else scope.cell
        for value in node.inputs:
            if value is not None:
                yield value, where


def _meta_of(program: Program, value: int) -> TensorMeta | None:
    for source in program.sources:
        if source.value == value:
            return program.metas[source.meta]
    for node in program.nodes:
        if value in node.outputs and not node.dynamic:
            meta = node.output_metas[node.outputs.index(value)]
            return None if meta is None else program.metas[meta]
    return None
