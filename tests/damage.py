"""Damaged files, as hypothesis draws them: bytes lost, changed or put in, lines doubled, odd words."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

WORDS = (
    *("", "-1", "0", "nan", "inf", "-inf", "1e308", "1e999", "9" * 30, "9" * 5000, "0x10", "١", "2026-13-45"),
    *("true", "null", "[]", "{}", '"', "'", ",", ";", "\n", "\r", "\0", "\ud7ff", "a" * 200_000, "[" * 3000),
    *("{" * 3000, '{"a":' * 3000, "0001-01-01T00:00:00", "9999-12-31T23:59:59", "é", "..", "# x", "=", ":"),
)


@st.composite
def damaged(draw: st.DrawFn, sources: Sequence[bytes], words: Sequence[str] = WORDS) -> bytes:
    """Draw one of the contents, with one to four injuries."""
    content = draw(st.sampled_from(sources))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        until = min(len(content), at + draw(st.integers(0, 12)))
        kind = draw(st.sampled_from(("word", "cut", "bytes", "field", "line", "end")))
        if kind == "word":
            content = content[:at] + draw(st.sampled_from(words)).encode() + content[until:]
        elif kind == "cut":
            content = content[:at] + content[until:]
        elif kind == "bytes":
            content = content[:at] + draw(st.binary(max_size=6)) + content[until:]
        elif kind == "line":
            lines = content.split(b"\n")
            which = draw(st.integers(0, len(lines) - 1))
            lines[which : which + 1] = [lines[which]] * draw(st.sampled_from((0, 2)))
            content = b"\n".join(lines)
        elif kind == "end":
            content = content[:at]
        else:
            content = _field(draw, content, draw(st.sampled_from(words)))
    return content


def _field(draw: st.DrawFn, content: bytes, word: str) -> bytes:
    """Put a word in the place of a whole field, between separators."""
    marks = [-1, *(n for n, byte in enumerate(content) if byte in b" ,\n:=")]
    which = draw(st.integers(0, len(marks) - 1))
    begins = marks[which] + 1
    ends = marks[which + 1] if which + 1 < len(marks) else len(content)
    return content[:begins] + word.encode() + content[ends:]
