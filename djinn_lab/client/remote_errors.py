"""From an error that the pool reports to the exception that the cell raises.

A worker-side error keeps its Python type (it is a subclass of the original and of
:class:`~djinn_lab.errors.RemoteError`), and shows the cell line that recorded the op and the worker's
frames. Faults of the pool are another family.
"""

from __future__ import annotations

import builtins
from functools import cache

from djinn_lab.errors import (
    CellCancelled,
    DeviceMemoryError,
    PoolError,
    Refused,
    RemoteError,
    ValueLost,
    WorkerLost,
)
from djinn_lab.protocol.messages import ErrorInfo
from djinn_lab.srg.program import Program


def to_exception(error: ErrorInfo, program: Program) -> BaseException:
    place = _place(error, program)
    if error.family == "user":
        return _keeping_type(error.type_name)(f"{error.message}{place}", _frames(error) or error.advice)
    if error.family == "memory":
        advice = error.advice or "Use a smaller batch, or delete tensors you no longer need (del x)."
        return DeviceMemoryError(f"{error.message}{place}", advice)
    if error.family == "cancelled":
        return CellCancelled(error.message)
    kind = {"WorkerLost": WorkerLost, "ValueLost": ValueLost}.get(error.type_name)
    if kind is not None:
        return kind(error.message, error.advice)
    if error.family in ("refused", "missing_blobs"):
        return Refused(f"{error.message}{place}", error.advice)
    return PoolError(f"{error.type_name}: {error.message}{place}", error.advice or _frames(error))


def _place(error: ErrorInfo, program: Program) -> str:
    if error.node is None or not 0 <= error.node < len(program.nodes):
        return ""
    scope = program.scopes[program.nodes[error.node].scope]
    where = f"{scope.cell}, line {scope.line}" if scope.line else scope.cell
    module = f", in {scope.module}" if scope.module else ""
    return f" [recorded at {where}{module}; op {error.op}]"


def _frames(error: ErrorInfo) -> str:
    return "On the worker:\n" + "\n".join(error.frames[-4:]) if error.frames else ""


@cache
def _keeping_type(name: str) -> type[RemoteError]:
    original = getattr(builtins, name, None)
    if not (isinstance(original, type) and issubclass(original, Exception)) or issubclass(original, OSError):
        return RemoteError
    try:
        return type(name, (RemoteError, original), {"__module__": RemoteError.__module__})
    except TypeError:  # two layouts that Python cannot combine
        return RemoteError
