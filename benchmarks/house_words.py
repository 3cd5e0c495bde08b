"""Words that the field has another word for: the list of docs/language.md as patterns, and how to find them.

A name counts as the words it is made of: ``moved_aside`` and ``MovedAside`` are "moved aside". What stands in
quotes or between backticks is quoted, and so are code blocks of pages.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from functools import cache
from typing import NamedTuple


class Word(NamedTuple):
    """``pattern``: a regular expression over lower-case text. ``say``: the field's word."""

    pattern: str
    say: str


_PEOPLE = "".join(
    f"(?<!\\b{noun} )" for noun in ("reader", "user", "users", "person", "people", "operator", "operators")
)
"""After one of these, "who" has its noun."""
WORDS = (
    Word(r"\b(?:move[sd]?|moving) aside\b|\bstand(?:s|ing)? aside\b|\bmakes? room for\b", "preempt"),
    Word(r"\bg(?:o|oes|oing) on\b|\bwent on\b|\btak(?:e|es|en|ing) up\b(?! to\b)", "resume"),
    Word(r"\bforetel(?:l|ls|ling)\b|\bforetold\b", "predict"),
    Word(r"\bin (?:the |a |its |no )?line\b|\bplace in line\b|\blines? up\b", "pending"),
    Word(r"\bmay (?:not )?start there\b", "eligible"),
    Word(r"\bke(?:ep|eps|eping|pt) (?:a |the |its |his )?place\b|\bplaces? kept\b", "reserve capacity"),
    Word(r"\bkept for\b|\bpromised room\b", "reserve capacity"),
    Word(r"\bkept back\b", "ineligible"),
    Word(r"\b(?:take[sn]?|taking|took|let|lets|letting) (?:\w+ )?in(?: as)?\b(?= *[.,;:)]|$)", "admit"),
    Word(r"\brooms?\b", "memory grant, free capacity"),
    Word(r"\bput(?:s|ting)? away\b", "park"),
    Word(r"\b(?:bring|brings|bringing|brought) (?:\w+ )?back\b|\bmov(?:e|es|ed|ing) out\b", "restore"),
    Word(r"\bwho leaves\b|\bwho left\b", "evict"),
    Word(r"\b(?:come|comes|came|coming) after\b", "depends on"),
    Word(r"\bwhere (?:it|he|they) (?:is|are|was|were) held\b|\bheld on\b", "assigned device"),
    Word(r"\btel(?:l|ls|ling|ler)\b|\btold\b|\bnews\b|\bhears? of\b|\bheard of\b", "notify"),
    Word(r"\bpass(?:es|ed)? by\b|\bpass(?:es|ed|ing)? over\b", "backfill"),
    Word(r"\bow(?:ed|es|ing)\b", "limit, quota, guarantee"),
    Word(r"\bwhat (?:is|was) had\b|\b(?:has|have) had\b", "allocation"),
    Word(r"\b(?:he|him|his|himself)\b", "the session, the job, the user"),
    Word(r"\b(?:some|any|every|no)(?:body|one)\b|\bwhoever\b|\bwhomever\b", "the session, the job, the user"),
    Word(rf"{_PEOPLE}\bwhom?\b", "which session, which job, which user"),
    Word(r"\bof (?:it|those that|those who)\b(?= *[.,;)]|$)", "the name of the thing"),
)
_KNOWN = re.compile("|".join(f"({word.pattern})" for word in WORDS))
_QUOTED = re.compile(r"``.*?``|`[^`]*`|\"[^\"\n]*\"|“[^”]*”", re.DOTALL)
_FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_FSTRING = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)
"""From Python 3.12 on, the text of an f-string is a token of its own."""
_LINK = re.compile(r"\]\([^)]*\)")


def words_in(text: str) -> Counter[str]:
    """Count the replaced words in plain text, by the field's word for each."""
    flat = re.sub(r"\s+", " ", text).lower()
    return Counter(WORDS[(found.lastindex or 1) - 1].say for found in _KNOWN.finditer(flat))


def words_in_page(text: str) -> Counter[str]:
    """Count them in Markdown, but for code, quotations and the targets of links."""
    return words_in(_LINK.sub("] ", _QUOTED.sub(" ", _FENCED.sub(" ", text))))


def words_in_python(source: str) -> Counter[str]:
    """Count them in names, comments and strings of Python; in strings, what stands in backticks or in double
    quotes is quoted. Every place counts where a name is used."""
    found: Counter[str] = Counter()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            found.update(_words_of_name(token.string))
        elif token.type == tokenize.STRING:
            found += words_in(_QUOTED.sub(" ", _text_of(token.string)))
        elif token.type in (tokenize.COMMENT, _FSTRING):
            found += words_in(_QUOTED.sub(" ", token.string))
    return found


@cache
def _words_of_name(name: str) -> Counter[str]:
    return words_in(name_as_words(name))


def name_as_words(name: str) -> str:
    """``movedAside``, ``moved_aside`` and ``MovedAside``: "moved aside"."""
    return _CAMEL.sub(" ", name).replace("_", " ").lower()


def _text_of(literal: str) -> str:
    """What stands between the quotes of a string literal."""
    body = literal.lstrip("rRbBuUfF")
    quote = body[:3] if body[:3] in ('"""', "'''") else body[:1]
    return body[len(quote) : len(body) - len(quote)]
