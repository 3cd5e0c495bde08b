"""With which status codes and messages a route refuses, read from its source."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

_OWN_PACKAGE = "djinn_lab.pool.api"


def refusals_of(function: Callable[..., Any], seen: set[object] | None = None) -> Iterator[tuple[int, str]]:
    """Yield the status and the message of each HTTPException that a route's function makes, or a function of
    the same package that it calls. Names in capitals stand for values within a message, and dots for what
    has no name. ``seen``: functions to leave out; this adds those that it looked into."""
    seen = set() if seen is None else seen
    if function in seen:
        return
    seen.add(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "HTTPException":
            status = node.args[0]
            assert isinstance(status, ast.Constant)
            message = _message(node.args[1])
            yield int(str(status.value)), message if re.search(r"[a-z]", message) else "Says what is wrong."
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    around = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    for called in filter(None, map(around.get, sorted(names))):
        if inspect.isfunction(called) and called.__module__.startswith(_OWN_PACKAGE):
            yield from refusals_of(called, seen)


def _message(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_message, node.values))
    return _value(node.value) if isinstance(node, ast.FormattedValue) else "…"


def _value(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _value(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr.upper()
    return node.id.upper() if isinstance(node, ast.Name) else "…"
