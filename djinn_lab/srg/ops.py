"""What is known about ATen ops without torch: which are allowed, which arguments they take and write, and
which draw random numbers.

``operators.txt`` is generated from torch's registry by :mod:`djinn_lab.capture.allow_list`, which describes
its format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from djinn_lab.srg.program import Leaf, Template, TensorHole

WRITE_IN_TRAINING = frozenset(("aten.native_batch_norm.default", "aten.native_batch_norm.out"))
"""Ops that write their running statistics only where the argument ``training`` is true."""
_STATISTICS = frozenset((3, 4, "running_mean", "running_var"))
_PARAMETER = re.compile(r"(\*?)(\w+):(\w+\??)(?:\[(\d*)\])?(\??)(=?)(!?)")


class Parameter(NamedTuple):
    """A parameter of an op. ``kind``: of the value, or of a list's items. ``items``: how many where the op
    fixes it, else 0; None for what is no list. ``optional``: it may be None."""

    name: str
    kind: str
    items: int | None
    optional: bool
    has_default: bool
    keyword_only: bool
    written: bool


@cache
def _table() -> Mapping[str, list[str]]:
    lines = files("djinn_lab.srg").joinpath("operators.txt").read_text(encoding="utf-8").splitlines()
    return {op: words for op, *words in map(str.split, lines)}


@cache
def allowed_ops() -> frozenset[str]:
    """Return the overloads that a graph may name, e.g. ``aten.addmm.default``."""
    return frozenset(_table())


@cache
def random_ops() -> frozenset[str]:
    """Return the allowed overloads that draw from the random stream."""
    return frozenset(op for op, words in _table().items() if "random" in words)


_DRAWS_ON_SOME_DEVICES = ("_scaled_dot_product_", "mkldnn_rnn_layer")
"""How ops begin that draw random numbers on some devices, for their dropout; the table of ops says nothing of
that."""


RECURRENT_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""The ``mode`` of ``mkldnn_rnn_layer``, by the function of torch. CPUs have a kernel for the LSTM alone."""


def may_draw(op: str) -> bool:
    """Return whether an op draws from the random stream, on some devices at least."""
    return op in random_ops() or base_name(op).startswith(_DRAWS_ON_SOME_DEVICES)


@cache
def parameters(op: str) -> tuple[Parameter, ...]:
    """Return what an allowed op takes. Raises KeyError for any other."""
    described = (_PARAMETER.fullmatch(word) for word in _table()[op])
    return tuple(_parameter(*match.groups()) for match in described if match is not None)


def _parameter(
    star: str, name: str, kind: str, count: str | None, optional: str, default: str, written: str
) -> Parameter:
    if count is None and kind.endswith("?"):
        kind, optional = kind[:-1], "?"
    items = None if count is None else int(count or 0)
    return Parameter(name, kind, items, bool(optional), bool(default), bool(star), bool(written))


def leaves_of(template: Template) -> Iterator[Leaf]:
    """Return the template's literals and holes in reading order, with lists flattened."""
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
    written = _written(template.op)
    if not written:
        return ()
    if template.op in WRITE_IN_TRAINING and not _trains(template):
        written -= _STATISTICS
    arguments = [(position in written, value) for position, value in enumerate(template.args)]
    arguments += [(name in written, value) for name, value in template.kwargs.items()]
    holes: list[int] = []
    first = 0
    for is_written, value in arguments:
        leaves = value if isinstance(value, list) else [value]
        count = sum(isinstance(leaf, TensorHole) for leaf in leaves)
        if is_written:
            holes.extend(range(first, first + count))
        first += count
    return tuple(holes)


def _trains(template: Template) -> bool:
    """Return whether a normalisation learns its statistics, as far as the template says."""
    place = [one.name for one in parameters(template.op)].index("training")
    given = template.args[place] if place < len(template.args) else template.kwargs.get("training")
    return given is not False


@cache
def _written(op: str) -> frozenset[int | str]:
    """Positions and names of the arguments that an op writes; none for an op that is not allowed."""
    taken = parameters(op) if op in allowed_ops() else ()
    written = [(place, one.name) for place, one in enumerate(taken) if one.written]
    return frozenset(part for pair in written for part in pair)
