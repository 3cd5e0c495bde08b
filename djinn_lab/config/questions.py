"""Questions of a terminal: with arrow keys and numbers, or numbered lines where the input is no terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from rich.console import Console

from djinn_lab.errors import ProfileError

Check = Callable[[str], str | None]
"""Typed text to what is wrong with it, None where it is accepted."""
_LABEL_COLUMN = 10
"""Columns that prompt_toolkit puts before a label and behind it."""
_KEYS = "Arrow keys or number to choose, Enter to take it, Ctrl-C to leave without saving"
_WRITING_KEYS = "Enter to take it, Escape to go back without a change, Ctrl-C to leave without saving"


class Option(NamedTuple):
    """An answer to choose. ``note``: what it comes to."""

    value: str
    label: str
    note: str = ""


class Questions(Protocol):
    """Asks a user. Ends in KeyboardInterrupt where the user leaves."""

    def choose(self, message: str, options: Sequence[Option], default: str) -> str:
        """Return the value of the chosen option."""

    def write(self, message: str, default: str, check: Check) -> str:
        """Return typed text that ``check`` accepts."""


class ArrowQuestions:
    """Questions of a terminal, by prompt_toolkit."""

    def choose(self, message: str, options: Sequence[Option], default: str) -> str:
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.shortcuts import choice

        columns = shutil.get_terminal_size().columns - _LABEL_COLUMN
        labelled = [(option.value, _label(option, columns)) for option in options]
        keys = KeyBindings()
        for number in range(len(options) + 1, 10):  # which the library takes for the last option's

            @keys.add(str(number), eager=True)
            def ignore(event: object) -> None:
                """There is no option of this number."""

        return choice(message, options=labelled, default=default, bottom_toolbar=_KEYS, key_bindings=keys)

    def write(self, message: str, default: str, check: Check) -> str:
        from prompt_toolkit import prompt
        from prompt_toolkit.document import Document
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
        from prompt_toolkit.validation import ValidationError, Validator

        class Checked(Validator):
            def validate(self, document: Document) -> None:
                problem = check(document.text)
                if problem is not None:
                    raise ValidationError(len(document.text), problem)

        keys = KeyBindings()

        @keys.add("escape", eager=True)
        def keep(event: KeyPressEvent) -> None:
            event.app.exit(result=default)

        return prompt(
            f"{message} ",
            default=default,
            validator=Checked(),
            validate_while_typing=False,
            key_bindings=keys,
            bottom_toolbar=_WRITING_KEYS,
        )


def _label(option: Option, columns: int) -> str:
    """Return the label, and the note in lines of its own where one line has no room for both."""
    if not option.note:
        return option.label
    both = f"{option.label}: {option.note}"
    if len(both) <= columns:
        return both
    note = textwrap.wrap(option.note, max(20, columns))
    return "\n".join([option.label, *(f"{' ' * 7}{line}" for line in note)])


class PlainQuestions:
    """Numbered questions and lines of answers. ``read_line`` raises EOFError at the end of the input."""

    def __init__(self, console: Console, read_line: Callable[[], str]) -> None:
        self._console = console
        self._read_line = read_line

    def choose(self, message: str, options: Sequence[Option], default: str) -> str:
        values = [option.value for option in options]
        usual = values.index(default) + 1
        self._say(message)
        for number, option in enumerate(options, start=1):
            self._say(f"  {number}. {option.label}" + (f": {option.note}" if option.note else ""))
        while True:
            answer = self._answer(f"Number (Enter for {usual}):")
            if not answer:
                return default
            if answer in values:
                return answer
            if answer.isdecimal() and 1 <= int(answer) <= len(values):
                return values[int(answer) - 1]
            self._say(f"{answer!r} is none of them: type a number from 1 to {len(values)}.")

    def write(self, message: str, default: str, check: Check) -> str:
        while True:
            answer = self._answer(f"{message} (Enter for {default or 'none'}):") or default
            problem = check(answer)
            if problem is None:
                return answer
            self._say(problem)

    def _answer(self, question: str) -> str:
        self._say(question)
        try:
            return self._read_line().strip()
        except EOFError:
            raise ProfileError(
                "The input ended before the wizard had its answers, and nothing was written",
                "Answer each question with a line, or run djinn-lab wizard --yes, with --set "
                "pool.devices=cpu:2 and the like for your own values",
            ) from None

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
