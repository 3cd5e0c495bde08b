"""What a token may be limited to, below its role, and which of it each request needs.

A role says how much a user may do; scopes say for what one token of that user may be used. A request needs
both. Only :data:`SCOPES` says which scopes a request takes. A request without a row fails, and with it the
test of the role matrix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum


class TokenScope(StrEnum):
    """``READ``: see what the role may see. ``CELLS``: open sessions, run cells, close sessions. ``QUEUE``:
    cancel and preempt jobs, ask why; for operators also devices and reservations. ``NOTEBOOKS``: submit and
    cancel batch notebooks. ``ADMIN``: manage tokens; for admins also users, shares, the policy, the audit and
    the end of the pool."""

    READ = "read"
    CELLS = "cells"
    QUEUE = "queue"
    NOTEBOOKS = "notebooks"
    ADMIN = "admin"


SESSION_SOCKET = "WebSocket /v1/session"
_ANY = frozenset(TokenScope)
_READ = frozenset({TokenScope.READ})
_CELLS = frozenset({TokenScope.CELLS})
_QUEUE = frozenset({TokenScope.QUEUE})
_NOTEBOOKS = frozenset({TokenScope.NOTEBOOKS})
_ADMIN = frozenset({TokenScope.ADMIN})

SCOPES = {
    SESSION_SOCKET: _CELLS,
    "GET /v1/status": _ANY,
    "GET /v1/snapshot": _READ,
    "GET /v1/events": _READ,
    "GET /metrics": _READ,
    "GET /openapi.json": _READ,
    "GET /v1/audit": _ADMIN,
    "GET /v1/audit/head": _ADMIN,
    "POST /v1/shutdown": _ADMIN,
    "GET /v1/sessions": _READ | _CELLS,
    "GET /v1/memory": _READ,
    "GET /v1/costs": _READ,
    "POST /v1/sessions/{session}/phase": _CELLS,
    "DELETE /v1/sessions/{session}": _CELLS,
    "PUT /v1/blobs": _CELLS,
    "PUT /v1/blobs/{digest}": _CELLS,
    "POST /v1/blobs/{digest}/pieces": _CELLS,
    "PUT /v1/blobs/{digest}/pieces": _CELLS,
    "GET /v1/results": _CELLS,
    "DELETE /v1/results": _CELLS,
    "GET /v1/results/{name}": _CELLS,
    "DELETE /v1/results/{name}": _CELLS,
    "GET /v1/link": _CELLS,
    "PUT /v1/link": _CELLS,
    "GET /v1/users": _ADMIN,
    "POST /v1/users": _ADMIN,
    "PATCH /v1/users/{name}": _ADMIN,
    "DELETE /v1/users/{name}": _ADMIN,
    "GET /v1/tokens": _READ | _ADMIN,
    "POST /v1/tokens": _ADMIN,
    "POST /v1/tokens/{owner}/{name}/rotate": _ADMIN,
    "DELETE /v1/tokens/{owner}/{name}": _ADMIN,
    "GET /v1/jobs": _READ | _QUEUE,
    "GET /v1/job-pages": _READ | _QUEUE,
    "GET /v1/jobs/{job}": _READ | _QUEUE,
    "POST /v1/jobs/{job}/cancel": _QUEUE,
    "POST /v1/jobs/{job}/preempt": _QUEUE,
    "GET /v1/jobs/{job}/program": _READ,
    "GET /v1/jobs/{job}/programs": _READ,
    "GET /v1/jobs/{job}/graph": _READ,
    "GET /v1/jobs/{job}/schedule": _READ,
    "GET /v1/jobs/{job}/why": _READ | _QUEUE,
    "GET /v1/jobs/{job}/what-if": _READ | _QUEUE,
    "GET /v1/queue": _READ | _QUEUE,
    "GET /v1/usage": _READ,
    "GET /v1/history": _READ,
    "PUT /v1/accounts/{account}": _ADMIN,
    "POST /v1/devices/{device}/cordon": _QUEUE,
    "POST /v1/devices/{device}/uncordon": _QUEUE,
    "POST /v1/devices/{device}/calibrate": _QUEUE,
    "PUT /v1/devices/{device}/description": _QUEUE,
    "PUT /v1/queue/policy": _ADMIN,
    "GET /v1/reservations": _READ | _QUEUE,
    "PUT /v1/reservations/{name}": _QUEUE,
    "DELETE /v1/reservations/{name}": _QUEUE,
    "POST /v1/notebooks": _NOTEBOOKS,
    "GET /v1/notebooks": _READ | _NOTEBOOKS,
    "GET /v1/notebooks/{job}": _READ | _NOTEBOOKS,
    "GET /v1/notebooks/{job}/result": _READ | _NOTEBOOKS,
    "POST /v1/notebooks/{job}/cancel": _NOTEBOOKS,
    "POST /v1/checkpoints": _NOTEBOOKS,
    "GET /v1/data": _READ | _NOTEBOOKS,
    "POST /v1/data": _NOTEBOOKS,
    "DELETE /v1/data/{name}": _NOTEBOOKS,
}
"""By method and path of the route: any one of these scopes is enough."""


def checked_scopes(names: Iterable[str]) -> frozenset[TokenScope] | None:
    """Return the scopes of these names, None (no limit) for no names. Raises ValueError for an unknown
    one."""
    given = list(names)
    unknown = [name for name in given if name not in set(TokenScope)]
    if unknown:
        raise ValueError(f"{unknown[0][:40]!r} is not a scope; there are {', '.join(TokenScope)}")
    return frozenset(map(TokenScope, given)) or None


def lacks(held: Collection[TokenScope] | None, request: str) -> str | None:
    """Say why a token that holds these scopes may not make a request, None when it may. ``held``: None for a
    token without a limit."""
    needed = SCOPES[request]
    if held is None or needed.intersection(held):
        return None
    have = " and ".join(sorted(held))
    return f"This needs a token with the scope {' or '.join(sorted(needed))}; this one has {have}."


def within(wanted: Collection[TokenScope] | None, held: Collection[TokenScope] | None) -> bool:
    """Return whether a token that holds ``held`` covers all of ``wanted``."""
    return held is None or (wanted is not None and set(wanted) <= set(held))
