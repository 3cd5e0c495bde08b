"""The profiles file: TOML in and out, checked key by key, written atomically with a backup."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec
import platformdirs
import tomli_w

from djinn_lab.config.fields import FIELD_BY_PATH, FIELDS, SIZES, Issue, did_you_mean
from djinn_lab.config.profiles import (
    BUILT_IN,
    WORKLOADS,
    Profile,
    Workload,
    check_name,
    check_values,
    check_workload,
)
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


def config_directory() -> Path:
    """Return the directory of this user's settings, which ``DJINN_CONFIG_DIR`` overrides."""
    return Path(os.environ.get("DJINN_CONFIG_DIR") or platformdirs.user_config_dir("djinn-lab"))


def profiles_path() -> Path:
    return config_directory() / "profiles.toml"


def read_text(path: Path | None = None) -> str:
    """Return the file as it is on disk; empty when there is none. Raises ProfileError if unreadable."""
    path = path or profiles_path()
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path} cannot be read: {error}", "Check its permissions or remove it") from error


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


def render(content: ProfilesFile) -> str:
    """Return the file's text. Values equal to the built-in ones that were not chosen are left out."""
    table: dict[str, object] = {}
    if content.default is not None:
        table["default"] = content.default
    table["profiles"] = {name: _profile_table(content.profiles[name]) for name in sorted(content.profiles)}
    return tomli_w.dumps(table)


def load_file(path: Path | None = None) -> ProfilesFile:
    """Read the profiles file (empty when absent). Raises ProfileError."""
    path = path or profiles_path()
    return parse(read_text(path), path)


def list_profiles() -> list[Profile]:
    """List the built-in profiles (or yours of that name), then your others by name. Raises ProfileError."""
    stored = load_file().profiles
    named = {profile.name: profile for profile in BUILT_IN.values()} | dict(sorted(stored.items()))
    return list(named.values())


def load_profile(name: str) -> Profile:
    """Return the profile called ``name``. Raises ProfileError with the names that exist."""
    profiles = {profile.name: profile for profile in list_profiles()}
    if name not in profiles:
        hint = did_you_mean(name, list(profiles))
        raise ProfileError(f"No profile is called {name!r}{hint}", f"There are: {', '.join(profiles)}")
    return profiles[name]


def default_profile() -> Profile:
    """Return the profile that ``profiles.toml`` names as default, else ``basic_inference``. Raises
    ProfileError."""
    return load_profile(load_file().default or DEFAULT_NAME)


def save_profile(profile: Profile, *, make_default: bool = False, path: Path | None = None) -> Path:
    """Write the profile into the file, keeping the previous one as ``.bak``. Returns the file's path.

    Raises ProfileError when a value is not accepted or the file cannot be written.
    """
    issues = check_values(profile)
    if issues:
        raise ProfileError(
            f"Profile {profile.name!r} is not valid: {issues[0].sentence()}", "Nothing was written"
        )
    path = path or profiles_path()
    text = render(load_file(path).with_profile(profile, make_default))
    try:
        write_atomically(path, text)
    except OSError as error:
        raise ProfileError(
            f"{path} cannot be written: {error}", "Set DJINN_CONFIG_DIR to a folder you may write"
        ) from error
    return path


def write_atomically(path: Path, text: str) -> None:
    """Replace a file, and keep the previous one as ``.bak``. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _replace(path.with_name(path.name + ".bak"), path.read_bytes())
    _replace(path, text.encode())


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


def _profile_table(profile: Profile) -> dict[str, object]:
    table: dict[str, object] = {"workload": profile.workload}
    if profile.description:
        table["description"] = profile.description
    if profile.detected:
        table["detected"] = sorted(profile.detected)
    base = BUILT_IN[profile.workload]
    for field in FIELDS:
        value = profile.value(field.path)
        if profile.origin(field.path) == "default" and value == base.value(field.path):
            continue
        section = table.setdefault(field.section, {})
        assert isinstance(section, dict)
        section[field.key] = profile.text(field.path) if value is None or field.path in SIZES else value
    return table


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
