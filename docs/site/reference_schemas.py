"""JSON schemas of the REST API as text: a link for each structure, and a table of its fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from reference_text import prose, table

Schema = Mapping[str, Any]
_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
    "object": "object",
    "array": "list",
}
_UNITS = {
    "bytes_per_s": "bytes/s",
    "flops_per_s": "flop/s",
    "memory_byte_s": "byte-seconds",
    "bytes": "bytes",
    "_at": "s since the epoch",
    "_s": "s",
    "_s_max": "s",
    "_j": "J",
    "watts": "W",
}


def structures_in(schema: object) -> dict[str, Schema]:
    """Return the structures within a schema, by their names."""
    found: dict[str, Schema] = {}
    if isinstance(schema, Mapping):
        if "properties" in schema and "title" in schema:
            found[schema["title"]] = schema
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            found = {**structures_in(part), **found}
    return found


def type_of(schema: Schema) -> str:
    """Return a schema in words. A structure is a link to its heading."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(type_of, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "properties" in schema and "title" in schema:
        return f"[{schema['title']}](#{schema['title'].lower()})"
    kind = schema.get("type")
    if kind == "array" and "prefixItems" in schema:
        return "list of " + ", ".join(map(type_of, schema["prefixItems"]))
    if kind == "array" and schema.get("items"):
        return "list of " + type_of(schema["items"])
    if kind == "object" and schema.get("additionalProperties"):
        return "object of " + type_of(schema["additionalProperties"])
    if kind is None:
        return str(schema.get("description", "any JSON"))
    return _WORDS[kind]


def unit_of(name: str) -> str:
    """Return the unit that a field's name ends with, the empty string for none."""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def structure(name: str, schema: Schema) -> str:
    """Return the section of a structure: its docstring and its fields."""
    required = schema.get("required", ())
    rows = [
        (f"`{field}`", type_of(kind), unit_of(field), _default(kind, field in required))
        for field, kind in schema["properties"].items()
    ]
    text = table(("Field", "Type", "Unit", "Default"), rows)
    return "\n\n".join(filter(None, (f"### {name}", prose(schema.get("description")), text)))


def _default(kind: Schema, required: bool) -> str:
    if len(kind.get("enum", ())) == 1:
        return shown(kind["enum"][0])  # the tag of a message, which may be left out
    if required:
        return "required"
    if "default" in kind:
        return shown(kind["default"])
    return "`null`" if {"type": "null"} in kind.get("anyOf", ()) else ""


def shown(value: object) -> str:
    """Return a value as JSON, as code."""
    return f"`{json.dumps(value)}`"
