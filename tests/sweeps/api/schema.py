"""The pool's OpenAPI schema with what schemathesis needs beside it: names of things that exist."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

ENDS_THE_POOL = "/v1/shutdown"


def with_names(raw: Mapping[str, Any], names: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the schema without the request that ends the pool. ``names``: what parameters of paths may be
    called, beside other texts."""
    schema: dict[str, Any] = copy.deepcopy(dict(raw))
    del schema["paths"][ENDS_THE_POOL]
    for methods in schema["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                known = names.get(parameter["name"])
                if parameter["in"] == "path" and known:
                    parameter["schema"] = {"anyOf": [{"enum": known}, {"type": "string"}]}
    return schema
