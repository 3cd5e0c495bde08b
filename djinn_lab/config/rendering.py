"""Write the text of the profiles file: TOML with a comment above each setting.

A comment says what the setting does, and why it has its value. Saving one profile leaves the text of the
others as it is, and the comments above settings that keep their value, so what was written by hand stays.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

import tomli_w

from djinn_lab.config.fields import FIELD_BY_PATH, FIELDS, SIZES
from djinn_lab.config.profiles import BUILT_IN, NAME_PATTERN, Profile
from djinn_lab.config.profiles_text import ProfilesFile, parse
from djinn_lab.errors import ProfileError

COMMENT_COLUMNS = 78
_HEADER = re.compile(rf"\[profiles\.({NAME_PATTERN.pattern})(?:\.([a-z]+))?\]\s*(?:#.*)?")
_SETTING = re.compile(r"([a-z_]+)\s*=")
_DEFAULT = re.compile(r"default\s*=")
_WORKLOAD_COMMENT = "The kind of work; its built-in profile supplies every setting that is not listed here."
_DETECTED_COMMENT = "These settings came from the machine; the others were chosen."
_DEFAULT_COMMENT = "The profile that is used where none is named."

Comments = Mapping[str, list[str]]
"""Lines of comment above a setting, by path."""


def render(content: ProfilesFile, reasons: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """Return the whole file's text. Values equal to the built-in ones that were not chosen are left out.
    ``reasons``: profile name to setting path to sentence."""
    known = reasons or {}
    blocks = [
        _profile_block(content.profiles[name], known.get(name, {}), {}) for name in sorted(content.profiles)
    ]
    return "\n".join([*_default_lines(content.default), *blocks])


def updated(
    text: str, path: Path, profile: Profile, *, make_default: bool, reasons: Mapping[str, str]
) -> str:
    """Return the file's text with the profile in it; ``text`` itself where it says so already. Raises
    ProfileError where ``text`` cannot be read.

    Where the profiles are not tables of their own in ``text`` (but inline tables, say), the whole file is
    written anew.
    """
    before = parse(text, path)
    after = before.with_profile(profile, make_default)
    if before == after:
        return text
    stored = before.profiles.get(profile.name)
    first, blocks = _blocks(text)
    kept = _kept_comments(blocks.get(profile.name, []), stored, profile)
    own = _profile_block(profile, reasons, kept)
    others = {name: "\n".join(lines).strip("\n") + "\n" for name, lines in blocks.items()}
    start = _start_lines(first, after.default) if before.default != after.default else first
    merged = "\n".join([*_without_blank_end(start), *(others | {profile.name: own}).values()])
    try:
        if parse(merged, path) == after:
            return merged
    except ProfileError:  # the text is not laid out in tables of profiles: it is written anew
        pass
    return render(after, {profile.name: reasons})


def _profile_block(profile: Profile, reasons: Mapping[str, str], kept: Comments) -> str:
    head = f"[profiles.{profile.name}]"
    lines = [head, *_comment(_WORKLOAD_COMMENT), *_entry("workload", profile.workload)]
    if profile.description:
        lines += _entry("description", profile.description)
    if profile.detected:
        lines += [*_comment(_DETECTED_COMMENT), *_entry("detected", sorted(profile.detected))]
    base = BUILT_IN[profile.workload]
    section = ""
    for field in FIELDS:
        value = profile.value(field.path)
        if profile.origin(field.path) == "default" and value == base.value(field.path):
            continue
        if field.section != section:
            section = field.section
            lines += ["", f"[profiles.{profile.name}.{section}]"]
        else:
            lines.append("")
        lines += kept.get(field.path) or _setting_comment(field.path, reasons.get(field.path))
        as_text = value is None or field.path in SIZES
        lines += _entry(field.key, profile.text(field.path) if as_text else value)
    return "\n".join(lines) + "\n"


def _setting_comment(path: str, reason: str | None) -> list[str]:
    field = FIELD_BY_PATH[path]
    what = _comment(f"{field.label}: {field.help}. Accepted: {field.accepted}.")
    return what if reason is None else [*what, *_comment(f"Why: {reason}.")]


def _comment(sentence: str) -> list[str]:
    """Return lines of comment; TOML allows no control characters there."""
    printable = "".join(letter if letter.isprintable() else " " for letter in sentence)
    return textwrap.wrap(
        " ".join(printable.split()),
        COMMENT_COLUMNS,
        initial_indent="# ",
        subsequent_indent="# ",
        break_on_hyphens=False,
    )


def _entry(key: str, value: object) -> list[str]:
    return tomli_w.dumps({key: value}).rstrip("\n").split("\n")


def _default_lines(default: str | None) -> list[str]:
    return [] if default is None else [*_comment(_DEFAULT_COMMENT), *_entry("default", default), ""]


def _blocks(text: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the lines before the first profile, and those of each profile with the comments above it."""
    first: list[str] = []
    blocks: dict[str, list[str]] = {}
    current = first
    for line in text.splitlines():
        header = _HEADER.fullmatch(line.strip())
        if header:
            above = _taken_comments(current)
            if not blocks and not first and above:
                first, above = above, []  # a comment at the top is about the whole file
            current = blocks.setdefault(header[1], [])
            current += above
        current.append(line)
    return first, blocks


def _taken_comments(lines: list[str]) -> list[str]:
    """Take the comment at the end of ``lines`` off them."""
    start = len(lines)
    while start and lines[start - 1].startswith("#"):
        start -= 1
    taken = lines[start:]
    del lines[start:]
    return taken


def _kept_comments(lines: list[str], stored: Profile | None, profile: Profile) -> Comments:
    """Return the comments above settings that have the value and the origin that they had."""
    if stored is None:
        return {}
    kept: dict[str, list[str]] = {}
    section, above = "", list[str]()
    for line in lines:
        stripped = line.strip()
        header, setting = _HEADER.fullmatch(stripped), _SETTING.match(stripped)
        if header:
            section, above = header[2] or "", []
        elif stripped.startswith("#"):
            above.append(stripped)
            continue
        elif setting and f"{section}.{setting[1]}" in FIELD_BY_PATH and above:
            kept[f"{section}.{setting[1]}"] = above
        above = []
    return {path: comment for path, comment in kept.items() if _same(stored, profile, path)}


def _same(one: Profile, other: Profile, path: str) -> bool:
    return one.value(path) == other.value(path) and one.origin(path) == other.origin(path)


def _start_lines(first: list[str], default: str | None) -> list[str]:
    """Return the lines before the profiles with another default."""
    position = next((index for index, line in enumerate(first) if _DEFAULT.match(line)), None)
    if position is None:
        return [*_default_lines(default), *first]
    assert default is not None, "saving a profile never takes the default away"
    return [*first[:position], *_entry("default", default), *first[position + 1 :]]


def _without_blank_end(lines: list[str]) -> list[str]:
    """Return the lines with one blank line at their end, none where there are no lines."""
    text = "\n".join(lines).rstrip()
    return [*text.split("\n"), ""] if text else []
