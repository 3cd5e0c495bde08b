"""What is known about ATen ops without torch: which are allowed, which arguments they write, which draw
random numbers.

The tables are generated from torch's registry by ``djinn_lab.capture.allow_list``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from djinn_lab.srg.program import Leaf, Template, TensorHole


def _lines(name: str) -> list[str]:
    return files("djinn_lab.srg").joinpath(name).read_text(encoding="utf-8").splitlines()


@cache
def allowed_ops() -> frozenset[str]:
    """Overloads that a graph may name, e.g. ``aten.addmm.default``."""
    return frozenset(_lines("allowed_ops.txt"))


@cache
def random_ops() -> frozenset[str]:
    """Allowed overloads that draw from the random stream."""
    return frozenset(_lines("random_ops.txt"))


@cache
def _written_arguments() -> dict[str, tuple[tuple[int, str], ...]]:
    table = {}
    for line in _lines("written_arguments.txt"):
        op, *arguments = line.split()
        pairs = (argument.split(":") for argument in arguments)
        table[op] = tuple((int(position), name) for position, name in pairs)
    return table


def leaves_of(template: Template) -> Iterator[Leaf]:
    """The template's literals and holes in reading order, with lists flattened."""
    for argument in (*template.args, *template.kwargs.values()):
        if isinstance(argument, list):
            yield from argument
        else:
            yield argument


def words(text: str) -> frozenset[str]:
    """The words of a table that is written as text."""
    return frozenset(text.split())


def base_name(op: str) -> str:
    """``aten.add_.Tensor`` -> ``add_``."""
    return op.split(".")[1]


def written_holes(template: Template) -> tuple[int, ...]:
    """Return the inputs of a node, by position, that the op writes to in place."""
    written = _written_arguments().get(template.op)
    if written is None:
        return ()
    positions = {position for position, _ in written}
    names = {name for _, name in written}
    arguments = [(position in positions, value) for position, value in enumerate(template.args)]
    arguments += [(name in names, value) for name, value in template.kwargs.items()]
    holes: list[int] = []
    first = 0
    for is_written, value in arguments:
        leaves = value if isinstance(value, list) else [value]
        count = sum(isinstance(leaf, TensorHole) for leaf in leaves)
        if is_written:
            holes.extend(range(first, first + count))
        first += count
    return tuple(holes)
