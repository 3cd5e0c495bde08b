"""Whether an op is given arguments of the kinds that it takes.

Kernels trust their callers: a number for a layout, a missing tensor or an unknown mode may end the process or
return memory as it was. Torch's own checks lie above the kernels for some kinds only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from djinn_lab.srg.ops import Parameter, parameters
from djinn_lab.srg.program import Argument, Atom, ComplexNumber, Leaf, ScalarHole, Template, TensorHole

_INT = range(-(2**63), 2**63)
_HIGHEST_MODE = {"reduction": 2, "interpolation_mode": 2, "padding_mode": 2, "normalization": 2}
"""Parameters that are enumerations in truth, from 0 on. Kernels do nothing for a number that they do not
know, and return memory as it was."""
_STRIDED = ("aten.as_strided", "aten._reshape_alias")
_EXTENT_MAX = 2**56
_BAGS = ("aten.embedding_bag.", "aten._embedding_bag")


def _is_int(leaf: Leaf) -> bool:
    return isinstance(leaf, int) and leaf in _INT


def _is_number(leaf: Leaf) -> bool:
    return isinstance(leaf, int | float | ComplexNumber | ScalarHole)


def _atom(kind: str) -> Callable[[Leaf], bool]:
    return lambda leaf: isinstance(leaf, Atom) and leaf.kind == kind


_FITS: Mapping[str, Callable[[Leaf], bool]] = {
    "Tensor": lambda leaf: isinstance(leaf, TensorHole) or _is_number(leaf),  # of which torch makes a tensor
    "Tensor?": lambda leaf: leaf is None or isinstance(leaf, TensorHole),
    "int": _is_int,
    "number": _is_number,
    "float": lambda leaf: isinstance(leaf, int | float | ScalarHole),
    "bool": lambda leaf: isinstance(leaf, bool),
    "str": lambda leaf: isinstance(leaf, str),
    "Generator": lambda leaf: False,
    **{kind: _atom(kind) for kind in ("dtype", "layout", "device", "memory_format")},
}


def wrong_arguments(template: Template) -> str | None:
    """Return what is wrong with the arguments of an allowed op, or None."""
    taken = parameters(template.op)
    positional = [parameter for parameter in taken if not parameter.keyword_only]
    if len(template.args) > len(positional):
        return f"has {len(template.args)} positional arguments and takes {len(positional)}"
    given = {parameter.name: value for parameter, value in zip(positional, template.args, strict=False)}
    by_name = {parameter.name: parameter for parameter in taken}
    for name, value in template.kwargs.items():
        if name not in by_name:
            return f"has no argument {name[:40]!r}"
        if name in given:
            return f"is given its argument {name!r} twice"
        given[name] = value
    for parameter in taken:
        if parameter.name in given:
            wrong = _wrong_value(template.op, parameter, given[parameter.name])
            if wrong:
                return wrong
        elif not parameter.has_default:
            return f"lacks its argument {parameter.name!r}"
    return _wrong_extent(given) if template.op.startswith(_STRIDED) else None


def _wrong_extent(given: Mapping[str, Argument]) -> str | None:
    """Torch compares a view with its memory in 64 bits, which a product may overflow."""
    size, stride, offset = (given.get(name) for name in ("size", "stride", "storage_offset"))
    steps = zip(size, stride, strict=False) if isinstance(size, list) and isinstance(stride, list) else ()
    last = (offset if isinstance(offset, int) else 0) + sum(
        abs((one or 0) * step) for one, step in steps if isinstance(one, int) and isinstance(step, int)
    )
    return None if abs(last) < _EXTENT_MAX else "asks for a view beyond all memory"


def _wrong_value(op: str, parameter: Parameter, value: Argument) -> str | None:
    if value is None:
        return None if parameter.optional else f"needs a value for {parameter.name!r}"
    if isinstance(value, list):
        if parameter.items is None:
            return f"takes no list for {parameter.name!r}"
        if parameter.items > 1 and len(value) not in (0, 1, parameter.items):
            return f"takes {parameter.items} values for {parameter.name!r}, not {len(value)}"
    elif parameter.items == 0:
        return f"takes a list for {parameter.name!r}"
    for leaf in value if isinstance(value, list) else (value,):
        if not _FITS[parameter.kind](leaf):
            shown = leaf if isinstance(leaf, int | float | str) else type(leaf).__name__
            return f"takes {parameter.kind} for {parameter.name!r}, not {str(shown)[:40]}"
        highest = _highest(op, parameter.name)
        if highest is not None and isinstance(leaf, int) and not 0 <= leaf <= highest:
            return f"takes 0 to {highest} for {parameter.name!r}, not {leaf}"
    return None


def _highest(op: str, name: str) -> int | None:
    return 2 if name == "mode" and op.startswith(_BAGS) else _HIGHEST_MODE.get(name)


def holes_that_need_a_tensor(template: Template) -> frozenset[int]:
    """The inputs of a node, by position, that must not be None."""
    return frozenset(place for place, required in enumerate(_holes(template)) if required)


def _holes(template: Template) -> Iterator[bool]:
    """For each tensor hole in reading order, whether its parameter needs a tensor."""
    taken = parameters(template.op)
    by_name = {parameter.name: parameter for parameter in taken}
    pairs = [*zip(taken, template.args, strict=False)]
    pairs += [(by_name[name], value) for name, value in template.kwargs.items()]
    for parameter, value in pairs:
        for leaf in value if isinstance(value, list) else (value,):
            if isinstance(leaf, TensorHole):
                yield not parameter.optional and parameter.kind == "Tensor"
