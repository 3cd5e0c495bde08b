"""The profiles file on disk: read, written atomically, and restored as it was before the last change."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import platformdirs

from djinn_lab.config.fields import did_you_mean
from djinn_lab.config.profiles import BUILT_IN, Profile, check_values
from djinn_lab.config.profiles_text import DEFAULT_NAME, ProfilesFile, parse
from djinn_lab.config.rendering import updated
from djinn_lab.errors import ProfileError


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


def save_profile(
    profile: Profile,
    *,
    make_default: bool = False,
    path: Path | None = None,
    reasons: Mapping[str, str] | None = None,
) -> Path:
    """Write the profile into the file, keeping the previous one as ``.bak``. Returns the file's path.
    ``reasons``: setting path to why it has its value, for the comments.

    Raises ProfileError when a value is not accepted or the file cannot be written.
    """
    issues = check_values(profile)
    if issues:
        raise ProfileError(
            f"Profile {profile.name!r} is not valid: {issues[0].sentence()}", "Nothing was written"
        )
    path = path or profiles_path()
    before = read_text(path)
    text = updated(before, path, profile, make_default=make_default, reasons=reasons or {})
    if text != before:
        _write(path, text, before)
    return path


class Undone(msgspec.Struct, frozen=True):
    """The text of the profiles file before and after the last change was taken back."""

    path: Path
    before: str
    after: str


def last_change(path: Path | None = None) -> Undone:
    """Return what :func:`undo` would do. Raises ProfileError where no previous file is kept, or where it
    cannot be read."""
    path = path or profiles_path()
    backup = _backup(path)
    if not backup.exists():
        raise ProfileError(
            f"There is nothing to undo: {backup} does not exist", "The wizard keeps it at its first change"
        )
    after = read_text(backup)
    parse(after, backup)
    return Undone(path, read_text(path), after)


def can_undo(path: Path | None = None) -> bool:
    """Return whether a previous file is kept and can be read."""
    try:
        last_change(path)
    except ProfileError:
        return False
    return True


def undo(path: Path | None = None) -> Undone:
    """Exchange the profiles file and the previous one, so that a second call brings the change back. Raises
    ProfileError."""
    change = last_change(path)
    _write(change.path, change.after, change.before)
    return change


def _write(path: Path, text: str, before: str) -> None:
    existed = path.exists()
    try:
        write_atomically(path, text)
        if not existed:  # undo makes the file empty
            _replace(_backup(path), before.encode())
    except OSError as error:
        raise ProfileError(
            f"{path} cannot be written: {error}", "Set DJINN_CONFIG_DIR to a folder you may write"
        ) from error


def write_atomically(path: Path, text: str) -> None:
    """Replace a file, and keep the previous one as ``.bak``. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _replace(_backup(path), path.read_bytes())
    _replace(path, text.encode())


def _backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


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
