"""The page of all REST requests, from the pool's OpenAPI document and its routes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from reference_refusals import refusals_of
from reference_schemas import shown, structure, structures_in, type_of, unit_of
from reference_text import page, table

from djinn_lab.pool.api.responses import admin, inlined, operator, reader, runner
from djinn_lab.pool.scopes import SCOPES

_ROLES = {reader: "viewer", runner: "user", operator: "operator", admin: "admin"}
_FOR_ALL = (
    (401, "The token is missing, unknown or has ended."),
    (403, "The role or the scopes of the token do not suffice."),
    (413, "The body is too large."),
    (
        422,
        "A parameter or the body is not as described. "
        "For a parameter, `detail` is a list of [ValidationError](#validationerror).",
    ),
    (429, "The user asks too often; `Retry-After` says in how many seconds to ask again."),
    (503, "This pool waits while another one leads; `detail` names that one."),
)
_INTRODUCTION = """# REST requests

Bodies and answers are JSON, unless a request says otherwise. Send `Authorization: Bearer TOKEN`. The same as
OpenAPI is at `/openapi.json`. [Pool](../pool.md#rest) explains what the requests are for, and
[Security](../security.md) roles and scopes.

## Errors

An error is `{"detail": "what happened and what to do"}`. In the messages below, names in capitals stand for
values. Any request may answer:"""


def rest_page(app: FastAPI) -> str:
    """Return the page: errors, a section for each first part of a path, and the structures."""
    document = app.openapi()
    paths: Any = inlined(document["paths"], document["components"]["schemas"])
    routes = {
        (method, one.path_format): one
        for one in app.routes
        if isinstance(one, APIRoute)
        for method in one.methods or ()
    }
    sections: dict[str, list[str]] = {}
    for path, methods in sorted(paths.items(), key=lambda item: _group(item[0])):
        for method, operation in methods.items():
            text = _request(method.upper(), path, operation, routes[method.upper(), path])
            sections.setdefault(_group(path), []).append(text)
    structures = sorted(structures_in(paths).items())
    errors = table(("Status", "Why"), ((str(status), why) for status, why in _FOR_ALL))
    return page(
        _INTRODUCTION,
        errors,
        *(f"## {group.capitalize()}\n\n" + "\n\n".join(texts) for group, texts in sections.items()),
        "## Structures",
        *(structure(name, schema) for name, schema in structures),
    )


def _group(path: str) -> str:
    return path.removeprefix("/v1").split("/")[1]


def _request(method: str, path: str, operation: Mapping[str, Any], route: APIRoute) -> str:
    parts = [f"### {method} `{path}`", f"{operation['summary']}.", _allowed(method, path, route)]
    rows = [_parameter(one) for one in operation.get("parameters", ())]
    if rows:
        parts.append(table(("Parameter", "In", "Type", "Default", "What it does"), rows))
    body = operation.get("requestBody")
    if body and "application/json" in body["content"]:
        parts.append(f"Body: {type_of(body['content']['application/json']['schema'])}.")
    parts.extend(_answers(operation["responses"]))
    refusals = sorted(set(refusals_of(route.endpoint, {*_ROLES})))
    parts.append(table(("Error", "Message"), ((str(status), text) for status, text in refusals)))
    return "\n\n".join(filter(None, parts))


def _allowed(method: str, path: str, route: APIRoute) -> str:
    roles = [_ROLES[one.call] for one in route.dependant.dependencies if one.call in _ROLES]
    if not roles:
        return "Needs no token."
    scopes = " or ".join(f"`{scope}`" for scope in sorted(SCOPES[f"{method} {path}"]))
    return f"Role: `{roles[0]}`. Scope of a token that is limited to scopes: {scopes}."


def _parameter(one: Mapping[str, Any]) -> tuple[str, ...]:
    schema = one["schema"]
    default = "required" if one["required"] else shown(schema["default"]) if "default" in schema else ""
    bounds = [
        f"{word} {schema[key]}" for word, key in (("from", "minimum"), ("to", "maximum")) if key in schema
    ]
    kind = " ".join(filter(None, (type_of(schema), *bounds, unit_of(one["name"]))))
    return f"`{one['name']}`", one["in"], kind, default, one.get("description", "")


def _answers(responses: Mapping[str, Any]) -> Iterator[str]:
    for status, response in responses.items():
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        if status == "422":
            continue
        yield f"Answers {status}" + (f": {type_of(schema)}." if schema else ".")
