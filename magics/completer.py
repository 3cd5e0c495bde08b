"""Tab completion of ``%%djinn`` options and ``%djinn`` commands, which IPython has none of by itself."""

from __future__ import annotations

import argparse
from typing import Any

from IPython.core.completer import SimpleCompletion, context_matcher

from djinn_lab.magics.line_commands import COMMANDS, SIGNALS
from djinn_lab.magics.options import make_parser


def _option_words(parser: argparse.ArgumentParser, words: list[str], fragment: str) -> list[str]:
    previous = words[-2] if len(words) > 1 else ""
    for action in parser._actions:
        if previous in action.option_strings and action.choices:
            return [str(choice) for choice in action.choices if str(choice).startswith(fragment.upper())]
    return [name for action in parser._actions for name in action.option_strings if name.startswith(fragment)]


@context_matcher()  # type: ignore[untyped-decorator]
def djinn_matcher(context: Any) -> dict[str, object]:
    line = context.line_with_cursor[: context.cursor_position] if context.cursor_line == 0 else ""
    words = line.split() + ([""] if line.endswith((" ", "\t")) else [])
    fragment = words[-1] if words else ""
    found: list[str] = []
    if len(words) > 1 and words[0] in ("%%djinn", "%djinn_config"):
        found = _option_words(make_parser(words[0]), words, fragment)
    elif len(words) == 2 and words[0] == "%djinn":
        found = [name for name in COMMANDS if name.startswith(fragment)]
    elif len(words) > 2 and words[:2] == ["%djinn", "signal"]:
        choices = SIGNALS if len(words) == 3 else ("--resume-in",) if len(words) == 4 else ()
        found = [choice for choice in choices if choice.lower().startswith(fragment.lower())]
    return {
        "completions": [SimpleCompletion(text) for text in found],
        "suppress": bool(found),
        "matched_fragment": fragment,
    }
