"""The page of all settings of a profile, from the table that checks them."""

from __future__ import annotations

from reference_text import page

from djinn_lab.config.fields import FIELDS, SIZES, Field
from djinn_lab.config.profiles import BUILT_IN, PoolSettings, SchedulerSettings, SessionSettings

_SECTIONS = {"pool": PoolSettings, "session": SessionSettings, "scheduler": SchedulerSettings}
_TYPES = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "None": "auto"}


def settings_page() -> str:
    """Return the page: a section for each part of a profile, a heading for each setting."""
    parts = [
        "# Settings",
        "Settings of a [profile](../profiles.md). Environment variables are on the page "
        "[Pool](../pool.md#finding-it).",
    ]
    for section in _SECTIONS:
        fields = [field for field in FIELDS if field.section == section]
        parts.append(f"## [profiles.NAME.{section}]")
        parts.extend(_setting(field) for field in fields)
    return page(*parts)


def _setting(field: Field) -> str:
    rows = [
        ("Type", _type_of(field)),
        ("Accepted", field.accepted),
        *_defaults(field),
    ]
    unit = _unit_of(field)
    rows[1:1] = [("Unit", unit)] if unit else []
    listed = "\n".join(f"- {name}: {text}" for name, text in rows)
    return f"### `{field.path}`\n\n{field.label}: {field.help}.\n\n{listed}"


def _defaults(field: Field) -> list[tuple[str, str]]:
    """Return one row where all built-in profiles agree, else one for each."""
    rows = [(f"Default in `{name}`", f"`{profile.text(field.path)}`") for name, profile in BUILT_IN.items()]
    return rows if len({text for _, text in rows}) > 1 else [("Default", rows[0][1])]


def _type_of(field: Field) -> str:
    kinds = str(_SECTIONS[field.section].__annotations__[field.key]).split(" | ")
    return " or ".join("size" if kind == "int" and field.path in SIZES else _TYPES[kind] for kind in kinds)


def _unit_of(field: Field) -> str:
    for end, unit in (
        ("bytes_per_s", "bytes per second"),
        ("_bytes", "bytes"),
        ("_s", "seconds"),
        ("_fraction", "part of 1"),
    ):
        if field.key.endswith(end):
            return unit
    return ""
