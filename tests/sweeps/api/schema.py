"""The pool's OpenAPI schema with what schemathesis needs beside it: bodies, and things that exist."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from djinn_lab.protocol.messages import SignalPhase
from djinn_lab.protocol.rest.announcements import Announcement
from djinn_lab.protocol.rest.notebooks import NewNotebook
from djinn_lab.protocol.rest.queue import (
    AccountTargets,
    DeviceCordon,
    DeviceDescription,
    NewReservation,
    PolicyChoice,
)
from djinn_lab.protocol.rest.users import NewToken, NewUser, RoleChoice, TokenRotation

BODIES: Mapping[str, type] = {
    "POST /v1/users": NewUser,
    "PATCH /v1/users/{name}": RoleChoice,
    "POST /v1/tokens": NewToken,
    "POST /v1/tokens/{owner}/{name}/rotate": TokenRotation,
    "POST /v1/sessions/{session}/phase": SignalPhase,
    "POST /v1/notebooks": NewNotebook,
    "POST /v1/checkpoints": Announcement,
    "POST /v1/data": Announcement,
    "PUT /v1/accounts/{account}": AccountTargets,
    "POST /v1/devices/{device}/cordon": DeviceCordon,
    "PUT /v1/devices/{device}/description": DeviceDescription,
    "PUT /v1/queue/policy": PolicyChoice,
    "PUT /v1/reservations/{name}": NewReservation,
}
ENDS_THE_POOL = "/v1/shutdown"


def with_bodies(raw: Mapping[str, Any], names: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the schema with the bodies of :data:`BODIES`. ``names``: what parameters of paths may be called,
    beside other texts."""
    schema: dict[str, Any] = copy.deepcopy(dict(raw))
    del schema["paths"][ENDS_THE_POOL]
    definitions = schema.setdefault("components", {}).setdefault("schemas", {})
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            kind = BODIES.get(f"{method.upper()} {path}")
            if kind is not None:
                _, found = msgspec.json.schema_components(
                    [kind], schema_hook=_anything, ref_template="#/components/schemas/{name}"
                )
                definitions.update(found)
                content = {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}
                operation["requestBody"] = {"content": {"application/json": content}}
            for parameter in operation.get("parameters", ()):
                known = names.get(parameter["name"])
                if parameter["in"] == "path" and known:
                    parameter["schema"] = {"anyOf": [{"enum": known}, {"type": "string"}]}
    return schema


def _anything(_kind: type) -> dict[str, Any]:
    """Give the schema of what may be any JSON."""
    return {"description": "any JSON"}
