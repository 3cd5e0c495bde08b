"""Read the text of the profiles file: TOML, checked key by key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from djinn_lab.config.fields import FIELD_BY_PATH, FIELDS, Issue, did_you_mean
from djinn_lab.config.profiles import BUILT_IN, WORKLOADS, Profile, Workload, check_name, check_workload
from djinn_lab.errors import ProfileError

DEFAULT_NAME = "basic_inference"
_SECTIONS = ("pool", "session", "scheduler")
_PROFILE_KEYS = ("workload", "description", "detected", *_SECTIONS)


class ProfilesFile(msgspec.Struct, frozen=True):
    """The content of the file: the name that is used when none is named, and your profiles."""

    default: str | None = None
    profiles: dict[str, Profile] = {}

    def with_profile(self, profile: Profile, make_default: bool) -> ProfilesFile:
        default = profile.name if make_default else self.default
        return ProfilesFile(default, {**self.profiles, profile.name: profile})


def parse(text: str, path: Path) -> ProfilesFile:
    """Check and read the file's text. Raises ProfileError naming the file, the key, what was found and
    what is accepted."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(
            f"{path} is not valid TOML: {error}", f"Restore {path.name}.bak or mend it"
        ) from None
    _refuse_unknown(table, ("default", "profiles"), "", path)
    entries = _table(table.get("profiles", {}), "profiles", path)
    profiles = {
        name: _read_profile(name, _table(entry, f"profiles.{name}", path), path)
        for name, entry in entries.items()
    }
    default = table.get("default")
    if default is not None and default not in (*profiles, *WORKLOADS):
        _fail(path, "default", f"found {default!r}", f"Accepted: {', '.join([*profiles, *WORKLOADS])}")
    return ProfilesFile(default, profiles)


def _read_profile(name: str, entry: Mapping[str, object], path: Path) -> Profile:
    key = f"profiles.{name}"
    _raise_issue(check_name(name), key, path)
    _refuse_unknown(entry, _PROFILE_KEYS, key + ".", path)
    workload = str(entry.get("workload", DEFAULT_NAME))
    _raise_issue(check_workload(workload), f"{key}.workload", path)
    detected = _strings(entry.get("detected", []), f"{key}.detected", path)
    for found in detected:
        if found not in FIELD_BY_PATH:
            hint = did_you_mean(found, list(FIELD_BY_PATH))
            _fail(path, f"{key}.detected", f"found {found!r}{hint}", f"Accepted: {', '.join(FIELD_BY_PATH)}")
    description = entry.get("description", "")
    if not isinstance(description, str):
        _fail(path, f"{key}.description", f"found {description!r}", "Accepted: text in quotes")
    base = BUILT_IN[_workload(workload)]
    profile = msgspec.structs.replace(base, name=name, description=str(description))
    for section in _SECTIONS:
        values = _table(entry.get(section, {}), f"{key}.{section}", path)
        known = [field.key for field in FIELDS if field.section == section]
        _refuse_unknown(values, known, f"{key}.{section}.", path)
        for setting, raw in values.items():
            profile = _with_checked(profile, f"{section}.{setting}", raw, detected, key, path)
    return profile


def _with_checked(
    profile: Profile, setting: str, raw: object, detected: list[str], key: str, path: Path
) -> Profile:
    try:
        return profile.with_value(setting, raw, "detected" if setting in detected else "you")
    except ValueError as error:
        accepted = FIELD_BY_PATH[setting].accepted
        raise _error(path, f"{key}.{setting}", str(error), f"Accepted: {accepted}") from None


def _workload(text: str) -> Workload:
    return WORKLOADS[WORKLOADS.index(text)]


def _table(value: object, key: str, path: Path) -> Mapping[str, object]:
    if not isinstance(value, dict):
        _fail(path, key, f"found {value!r}", "Accepted: a table of settings")
    return value


def _strings(value: object, key: str, path: Path) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        _fail(path, key, f"found {value!r}", "Accepted: a list of setting names")
    return value


def _refuse_unknown(
    table: Mapping[str, object], known: tuple[str, ...] | list[str], prefix: str, path: Path
) -> None:
    for key in table:
        if key not in known:
            hint = did_you_mean(key, list(known))
            _fail(path, f"{prefix}{key}", f"is not a known key{hint}", f"Accepted here: {', '.join(known)}")


def _raise_issue(issue: Issue | None, key: str, path: Path) -> None:
    if issue:
        _fail(path, key, issue.message, issue.fix)


def _fail(path: Path, key: str, found: str, accepted: str) -> NoReturn:
    raise _error(path, key, found, accepted)


def _error(path: Path, key: str, found: str, accepted: str) -> ProfileError:
    return ProfileError(f"{path}: {key}: {found}", accepted)
