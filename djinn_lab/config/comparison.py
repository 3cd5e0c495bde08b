"""What every face of the wizard says of a draft beside the stored profile: sentences, and rows of tables."""

from __future__ import annotations

from djinn_lab.config.fields import FIELD_BY_PATH
from djinn_lab.config.wizard import Draft

DIFFERENCE_HEADINGS = ("setting", "stored", "recommended", "why")
CHANGE_HEADINGS = ("setting", "before", "now", "effect")


def stored_title(draft: Draft) -> str:
    """Name the stored profile with which the wizard began; nothing where none is stored."""
    return "" if draft.stored is None else f"Stored profile {draft.stored.name}"


def stored_sentence(draft: Draft) -> str:
    """Say that the wizard began with the stored profile, and whether all of it is recommended today."""
    if draft.differences:
        return "The wizard began with it. These of its values would be recommended otherwise today:"
    return "The wizard began with it; all its values are recommended today."


def difference_rows(draft: Draft) -> list[tuple[str, ...]]:
    """Return the stored settings that would be recommended otherwise today, below
    :data:`DIFFERENCE_HEADINGS`."""
    return [
        (
            FIELD_BY_PATH[one.path].label,
            f"{one.stored} (you chose it)" if one.chosen else one.stored,
            one.recommended,
            one.reason,
        )
        for one in draft.differences
    ]


def changes_sentence(draft: Draft) -> str:
    """Say with what the changed settings are compared, or that none is changed."""
    compared = "what is recommended" if draft.stored is None else f"the stored profile {draft.stored.name}"
    if not draft.changed:
        return f"None: every value is that of {compared}."
    return f"Compared with {compared}."


def change_rows(draft: Draft) -> list[tuple[str, ...]]:
    """Return the settings that differ from those that the draft is compared with, below
    :data:`CHANGE_HEADINGS`."""
    return [
        (
            field.label,
            draft.start.text(field.path),
            draft.profile.text(field.path),
            draft.consequence(field.path),
        )
        for field in draft.changed
    ]


def sentences(draft: Draft, path: str) -> list[str]:
    """Say why a setting has its value, what it comes to, and which one is stored where that differs."""
    found = [draft.reason(path), draft.consequence(path)]
    if draft.stored is not None and draft.stored.value(path) != draft.profile.value(path):
        found.insert(1, f"Stored: {draft.stored.text(path)}")
    return found
