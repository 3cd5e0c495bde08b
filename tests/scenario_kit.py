"""Scenario files: commands to a core and the full expected transcript.

A block is lines of input, ``----``, lines of output, and a blank line; ``#`` starts a comment. Every
input line is an event (its class and ``field=value`` pairs) one second after the one before, or ``show``.
Run the tests with ``DJINN_REWRITE_SCENARIOS=1`` to write what the cores answer now into the files.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

REWRITE = os.environ.get("DJINN_REWRITE_SCENARIOS") == "1"


def run_scenario(path: Path, answer: Callable[[str, float], Iterable[str]]) -> None:
    """``answer`` takes an input line and its time in seconds and gives lines of output."""
    written = path.read_text()
    played = play(written, answer)
    if REWRITE:
        path.write_text(played)
    assert played == written


def play(text: str, answer: Callable[[str, float], Iterable[str]]) -> str:
    """Return the scenario's text with its outputs replaced by what ``answer`` gives."""
    out: list[str] = []
    at_s = 0.0
    expecting = False
    pending: list[str] = []
    for line in text.splitlines():
        if line == "----":
            out.append(line)
            for command in pending:
                at_s += 1.0
                out += answer(command, at_s)
            pending, expecting = [], True
        elif not line.strip():
            out.append(line)
            expecting = False
        elif not expecting:
            out.append(line)
            if not line.startswith("#"):
                pending.append(line)
    assert not pending, "the last block has no ----"
    return "\n".join(out) + "\n"


def parse_event(line: str, at_s: float, kinds: Mapping[str, type[msgspec.Struct]]) -> msgspec.Struct:
    """``"CancelRequested job=a message='by ann'"`` -> the event. Values in braces or brackets are JSON."""
    name, *pairs = shlex.split(line)
    texts = dict(pair.split("=", 1) for pair in pairs)
    fields = {key: json.loads(text) if text.startswith(("{", "[")) else text for key, text in texts.items()}
    return msgspec.convert({"at_s": at_s, **fields, "type": name}, kinds[name], strict=False)


def render(command: msgspec.Struct) -> str:
    """Write an object on one line, without fields that are None or an empty tuple."""
    given = msgspec.structs.asdict(command).items()
    fields = {name: value for name, value in given if value is not None and value != ()}
    shown = (
        f"{name}={value!r}" if isinstance(value, str) and " " in value else f"{name}={value}"
        for name, value in fields.items()
    )
    return f"{type(command).__name__} {' '.join(shown)}"
