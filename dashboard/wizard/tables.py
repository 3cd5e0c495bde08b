"""What the wizard's page says of a draft: rows of its tables, issues, and the change to the file."""

from __future__ import annotations

from html import escape

from djinn_lab.config.comparison import (
    CHANGE_HEADINGS,
    DIFFERENCE_HEADINGS,
    change_rows,
    changes_sentence,
    difference_rows,
    stored_sentence,
    stored_title,
)
from djinn_lab.config.effects import EFFECT_HEADINGS, effect_rows
from djinn_lab.config.fields import FIELD_BY_PATH, Issue
from djinn_lab.config.wizard import Draft
from djinn_lab.dashboard.widgets.panes import heading, notice
from djinn_lab.units import capitalised


def effect_table_rows(draft: Draft) -> list[dict[str, object]]:
    """Return what the settings, and those of each built-in profile, are predicted to come to."""
    found = () if draft.work is None else effect_rows(draft.work, draft.profile)
    return [dict(zip(("id", *EFFECT_HEADINGS), (row[0], *row), strict=True)) for row in found]


def difference_table_rows(draft: Draft) -> list[dict[str, object]]:
    """Return the stored settings that would be recommended otherwise today."""
    rows = zip(draft.differences, difference_rows(draft), strict=True)
    return [{"id": one.path, **dict(zip(DIFFERENCE_HEADINGS, row, strict=True))} for one, row in rows]


def change_table_rows(draft: Draft) -> list[dict[str, object]]:
    """Return the settings that differ from those that the draft is compared with."""
    rows = zip(draft.changed, change_rows(draft), strict=True)
    return [{"id": field.path, **dict(zip(CHANGE_HEADINGS, row, strict=True))} for field, row in rows]


def stored_html(draft: Draft) -> str:
    """Say which stored profile the wizard began with; nothing where none is stored."""
    title = stored_title(draft)
    return heading(title, stored_sentence(draft)) if title else ""


def changes_html(draft: Draft) -> str:
    """Say with what the changed settings are compared, or that none is changed."""
    return heading("Changes", changes_sentence(draft))


def issues_html(draft: Draft) -> str:
    """Render warnings with what to do, or that there are none; the page lists errors beside their buttons."""
    title = heading("Check", "The settings compared with this machine.")
    if not draft.issues:
        return title + notice("Everything fits this machine", "", "good")
    if draft.errors:
        title += notice("The profile cannot be saved yet", "What to mend is listed below.", "bad")
    warnings = [issue for issue in draft.issues if issue.severity != "error"]
    return title + "".join(issue_html(issue, _label(issue.path)) for issue in warnings)


def issue_html(issue: Issue, label: str = "") -> str:
    """Render an error or a warning with what to do. ``label``: of the field, where it is shown elsewhere."""
    message = f"{label}: {issue.message}" if label else capitalised(issue.message)
    return notice(message, issue.fix, "bad" if issue.severity == "error" else "")


def _label(path: str) -> str:
    return FIELD_BY_PATH[path].label if path in FIELD_BY_PATH else path


def diff_html(diff: str) -> str:
    """Render a unified diff with colours (and its plus and minus signs)."""
    classes = {"+": "plus", "-": "minus", "@": "at"}
    lines = (f"<span class='{classes.get(line[:1], '')}'>{escape(line)}</span>" for line in diff.splitlines())
    return f"<pre class='diff'>{'<br>'.join(lines)}</pre>"
