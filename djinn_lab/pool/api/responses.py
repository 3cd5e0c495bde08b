"""Small parts of the API: required roles and scopes, how values become responses and are documented."""

from __future__ import annotations

import msgspec
from fastapi import HTTPException, Request, Response

from djinn_lab.pool.authentication import Authentication, Role, User
from djinn_lab.pool.scopes import lacks

ROW_MAX = 2**63 - 1
"""The largest number that a database takes."""


def answer(value: object, status_code: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code, media_type="application/json")


def documented(kind: object, status_code: int = 200) -> dict[int | str, dict[str, object]]:
    """Make a route's ``responses`` with the JSON schema of ``kind``."""
    return {status_code: _content(kind)}


def takes(kind: object) -> dict[str, object]:
    """Make a route's ``openapi_extra``: its body has the JSON schema of ``kind``."""
    return {"requestBody": _content(kind)}


def _content(kind: object) -> dict[str, object]:
    schema = msgspec.json.schema(kind, schema_hook=_any_json)
    definitions = schema.pop("$defs", {})
    return {"content": {"application/json": {"schema": inlined(schema, definitions)}}}


def _any_json(_kind: type) -> dict[str, object]:
    return {"description": "any JSON"}


def reader(request: Request) -> User:
    return _allowed(request, Role.VIEWER)


def runner(request: Request) -> User:
    return _allowed(request, Role.USER)


def operator(request: Request) -> User:
    return _allowed(request, Role.OPERATOR)


def admin(request: Request) -> User:
    return _allowed(request, Role.ADMIN)


def _allowed(request: Request, role: Role) -> User:
    authentication: Authentication = request.app.state.context.authentication
    header = request.headers.get("authorization")
    user = authentication.user_of(header)
    if user is None:
        raise HTTPException(401, authentication.denial(header).detail, {"WWW-Authenticate": "Bearer"})
    if user.role < role:
        raise HTTPException(403, f"This needs the role {role.label}; {user.name} is {user.role.label}.")
    missing = lacks(user.scopes, f"{request.method} {request.scope['route'].path_format}")
    if missing is not None:
        raise HTTPException(403, missing)
    return user


def inlined(schema: object, definitions: dict[str, object]) -> object:
    """Return ``schema`` with every reference replaced by what it refers to."""
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if reference is not None:
            return inlined(definitions[reference.rpartition("/")[2]], definitions)
        return {key: inlined(value, definitions) for key, value in schema.items()}
    if isinstance(schema, list):
        return [inlined(value, definitions) for value in schema]
    return schema
