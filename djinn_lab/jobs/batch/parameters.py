"""Parameters of a notebook, after the convention of papermill: a code cell tagged ``parameters`` assigns
defaults, and a cell with the given values, tagged ``injected-parameters``, follows it. A notebook that
papermill ran has such a cell already; it is replaced. Without a tagged cell the values come first of all.

Two things that papermill only warns of are refused here: a name that the tagged cell does not assign, and
a value of another kind than its default."""

from __future__ import annotations

import ast
import keyword
import math
from collections.abc import Mapping
from typing import Any

import msgspec

TAG = "parameters"
INJECTED_TAG = "injected-parameters"
PARAMETERS_MAX = 100
VALUES_BYTES_MAX = 64 * 2**10
_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}


class Declared(msgspec.Struct, frozen=True):
    """The parameters that the tagged cell declares. ``names``: assigned ones, None when the cell cannot be
    read. ``defaults``: of those that are plain values."""

    names: frozenset[str] | None
    defaults: dict[str, Any]


def declared(document: Mapping[str, Any]) -> Declared | None:
    """Return what the tagged cell declares, None where no cell is tagged."""
    place = _tagged(document, TAG)
    if place is None:
        return None
    lines = _source(document["cells"][place]).splitlines()
    code = "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines)
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # any submitted source
        return Declared(None, {})
    stored = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    names = frozenset(node.id for node in stored if isinstance(node.ctx, ast.Store))
    defaults: dict[str, Any] = {}
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        value = getattr(statement, "value", None)
        written = [target.id for target in targets if isinstance(target, ast.Name)]
        for constant in _constant(value):
            defaults |= dict.fromkeys(written, constant)
    return Declared(names, defaults)


def _constant(value: ast.AST | None) -> tuple[object, ...]:
    """Return the constant, negative numbers among them; empty for an expression that would have to be
    computed."""
    match value:
        case ast.Constant(constant):
            return (constant,)
        case ast.UnaryOp(
            ast.USub() | ast.UAdd() as sign, ast.Constant(int() | float() | complex() as number)
        ):
            if not isinstance(number, bool):
                return (-number,) if isinstance(sign, ast.USub) else (number,)
    return ()


def from_text(text: str, name: str, known: Declared | None) -> object:
    """Return a value as people write it in a command: a number, True, False, None, or a text. Always a
    text where the default is one."""
    if known is not None and isinstance(known.defaults.get(name), str):
        return text
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def problem_with(parameters: Mapping[str, object], known: Declared | None) -> str | None:
    """Return why the parameters cannot be given to the notebook, None when they can."""
    if len(parameters) > PARAMETERS_MAX:
        return f"{len(parameters)} parameters were given, at most {PARAMETERS_MAX} can be"
    for name, value in parameters.items():
        if not name.isidentifier() or keyword.iskeyword(name):
            return f"{name[:80]!r} is not a name for a Python variable"
        if known is not None and known.names is not None and name not in known.names:
            has = f"it assigns {', '.join(sorted(known.names))}" if known.names else "it assigns nothing"
            return f"the cell tagged {TAG} has no {name}; {has}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} is {value}, which is no finite number"
        problem = _other_kind(value, known.defaults.get(name)) if known is not None else None
        if problem is not None:
            return f"{name} is {value!r}, and its default in the cell tagged {TAG} is {problem}"
    if len(msgspec.json.encode(dict(parameters))) > VALUES_BYTES_MAX:
        return f"the parameters are more than {VALUES_BYTES_MAX // 1024} KiB; give the name of a file"
    return None


def with_parameters(document: dict[str, Any], parameters: Mapping[str, object]) -> dict[str, Any]:
    """Return the document with a cell that assigns the parameters."""
    lines = ["# Parameters", *(f"{name} = {value!r}" for name, value in parameters.items())]
    cell: dict[str, Any] = {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {"tags": [INJECTED_TAG]},
        "outputs": [],
        "source": "\n".join(lines),
    }
    if (document.get("nbformat", 4), document.get("nbformat_minor", 0)) >= (4, 5):
        cell["id"] = INJECTED_TAG
    cells = list(document["cells"])
    earlier, tagged = _tagged(document, INJECTED_TAG), _tagged(document, TAG)
    if earlier is not None:
        cells[earlier] = cell
    else:
        cells.insert(0 if tagged is None else tagged + 1, cell)
    metadata = dict(document.get("metadata", {}))
    earlier_run = metadata.get("papermill")
    kept = earlier_run if isinstance(earlier_run, dict) else {}
    metadata["papermill"] = {**kept, "parameters": dict(parameters)}
    return {**document, "cells": cells, "metadata": metadata}


def _other_kind(value: object, default: object) -> str | None:
    """Return the default and its kind, when the value is of another kind."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match default:
        case bool() if not isinstance(value, bool):
            return f"{default}, which is True or False"
        case bool() | None:
            return None
        case int() if not number or isinstance(value, float):
            return f"{default}, a whole number"
        case float() if not number:
            return f"{default}, a number"
        case str() if not isinstance(value, str):
            return f"{default!r}, a text"
    return None


def _tagged(document: Mapping[str, Any], tag: str) -> int | None:
    """Return the number of the first code cell with this tag."""
    for place, cell in enumerate(document["cells"]):
        metadata = cell.get("metadata")
        tags = metadata.get("tags") if isinstance(metadata, dict) else None
        if cell.get("cell_type") == "code" and isinstance(tags, list) and tag in tags:
            return place
    return None


def _source(cell: Mapping[str, Any]) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)
