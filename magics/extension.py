"""``%load_ext djinn_lab`` and ``%unload_ext djinn_lab``, and Tab completion of options and commands, which
IPython has none of by itself."""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from string import ascii_letters

import torch
from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher
from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import no_var_expand
from IPython.display import display

from djinn_lab.client.handle import CellHandle
from djinn_lab.config import BUILT_IN, list_profiles
from djinn_lab.errors import ProfileError
from djinn_lab.magics.inline_views import InlineView
from djinn_lab.magics.line_commands import COMMANDS, SIGNALS, run_command
from djinn_lab.magics.notebook import Notebook
from djinn_lab.magics.options import PROFILE_OPTIONS, help_text, make_parser
from djinn_lab.magics.profile_command import describe_options
from djinn_lab.magics.source import COMPILING, LAST, LOCAL_MARKER, MARKER, CellWrapper

KERNEL_VARIABLE = "DJINN_KERNEL"
"""Set to ``1`` by the kernel "Python (Djinn)": every cell is captured, ``%%local`` opts out."""

HOLDERS = (torch.Tensor, torch.nn.Module, list, tuple, dict)
NAMES_OF: dict[str, tuple[type, ...]] = {"pull": HOLDERS, "push": HOLDERS, "result": (CellHandle,)}
"""Variables of which types are completed after a command."""
_INSTALLED, _CLOSED = "_djinn_lab_extension", "_djinn_lab_closed_session"
"""Attributes of a shell."""


class Extension:
    """Everything that loading adds to a shell, so that unloading can take it away."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        every_cell = os.environ.get(KERNEL_VARIABLE) == "1"
        self.notebook = Notebook(shell, every_cell, getattr(shell, _CLOSED, None))
        self.wrapper = CellWrapper(self.notebook.source)
        self._compiling: dict[str, Callable[..., object]] = {}

    def load(self) -> None:
        shell, notebook = self.shell, self.notebook
        shell.input_transformers_cleanup.append(notebook.source.transform_lines)
        shell.ast_transformers.append(self.wrapper)
        shell.events.register("pre_run_cell", self._name_markers)
        shell.events.register("pre_run_cell", notebook.before_cell)
        shell.events.register("post_run_cell", notebook.after_cell)
        shell.Completer.custom_matchers.append(djinn_matcher)
        self._name_markers()
        shell.magics_manager.register_function(self._cell_magic(), "cell", "djinn")
        shell.magics_manager.register_function(self._local_magic(), "cell", "local")
        for name in COMPILING:
            self._compiling[name] = shell.find_cell_magic(name)
            shell.magics_manager.magics["cell"][name] = self._of_captured_cells(self._compiling[name])
        shell.magics_manager.register_function(self._line_magic(), "line", "djinn")
        shell.magics_manager.register_function(self._config_magic(), "line", "djinn_config")
        notebook.watch_typing()
        if notebook.source.every_cell:
            print(
                "Djinn Lab: every cell of this kernel is captured and runs on the pool; %%local opts "
                "a cell out."
            )

    def unload(self) -> None:
        shell, notebook = self.shell, self.notebook
        setattr(shell, _CLOSED, notebook.close())
        shell.input_transformers_cleanup.remove(notebook.source.transform_lines)
        shell.ast_transformers.remove(self.wrapper)
        shell.events.unregister("pre_run_cell", self._name_markers)
        shell.events.unregister("pre_run_cell", notebook.before_cell)
        shell.events.unregister("post_run_cell", notebook.after_cell)
        shell.Completer.custom_matchers.remove(djinn_matcher)
        for name in (MARKER, LOCAL_MARKER, LAST):
            shell.user_ns.pop(name, None)
            shell.user_ns_hidden.pop(name, None)
        for kind, name in (("cell", "djinn"), ("cell", "local"), ("line", "djinn"), ("line", "djinn_config")):
            shell.magics_manager.magics[kind].pop(name, None)
        shell.magics_manager.magics["cell"].update(self._compiling)

    def _of_captured_cells(self, magic: Callable[..., object]) -> Callable[..., object]:
        """Return a cell magic that compiles its cell by itself, with that cell captured where it is to be."""
        shell, wrapper = self.shell, self.wrapper

        @wraps(magic)
        def run(line: str, cell: str | None = None, **named: object) -> object:
            with suppress(SyntaxError):  # which the magic shows
                module = ast.parse(shell.transform_cell(cell or ""))
                if wrapper.captures(module):
                    cell = ast.unparse(wrapper.visit(module))
            return magic(line, cell, **named)

        return run

    def _name_markers(self, info: object = None) -> None:
        """Name what transformed cells call, before each cell: ``%reset`` takes all names away."""
        for name, value in ((MARKER, self.notebook.cell), (LOCAL_MARKER, lambda: None), (LAST, None)):
            self.shell.user_ns.setdefault(name, value)
            self.shell.user_ns_hidden.setdefault(name, value)

    def _cell_magic(self) -> object:
        @no_var_expand
        def djinn(line: str, cell: str) -> None:
            # Reached only through run_cell_magic, e.g. from a notebook exported as a script.
            self.notebook.source.text = cell
            code = compile(cell, "<%%djinn cell>", "exec")
            with self.notebook.cell(line):
                exec(code, self.shell.user_ns)

        djinn.__doc__ = f"Run this cell's torch work on the pool.\n\n{help_text('%%djinn')}"
        return djinn

    def _local_magic(self) -> object:
        @no_var_expand
        def local(line: str, cell: str) -> None:
            """Run this cell here, not on the pool (in the kernel "Python (Djinn)")."""
            exec(compile(cell, "<%%local cell>", "exec"), self.shell.user_ns)

        return local

    def _line_magic(self) -> object:
        @no_var_expand
        def djinn(line: str) -> object:
            shown = run_command(self.notebook, line)
            if isinstance(shown, str):
                print(shown)
                return None
            if isinstance(shown, InlineView):
                display(shown)
                return None
            return shown

        commands = "\n".join(f"  {name:10} {command.__doc__}" for name, command in COMMANDS.items())
        djinn.__doc__ = f"Ask the session and the pool.\n\n{commands}"
        return djinn

    def _config_magic(self) -> object:
        @no_var_expand
        def djinn_config(line: str) -> None:
            if line.strip():
                self.notebook.configure(line)
            options = self.notebook.options("", "%djinn_config")
            print(describe_options(options, self.notebook.session if self.notebook.has_session else None))

        djinn_config.__doc__ = (
            f"Set this notebook's defaults for %%djinn.\n\n{make_parser('%djinn_config').format_help()}"
        )
        return djinn_config


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add ``%%djinn`` and ``%djinn`` to this shell."""
    if getattr(shell, _INSTALLED, None) is not None:
        return
    extension = Extension(shell)
    extension.load()
    setattr(shell, _INSTALLED, extension)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take them away again and free what the session holds on the pool."""
    extension = getattr(shell, _INSTALLED, None)
    if extension is None:
        print("djinn_lab is not loaded", file=sys.stderr)
        return
    extension.unload()
    setattr(shell, _INSTALLED, None)


def _option_words(parser: argparse.ArgumentParser, words: list[str], fragment: str) -> list[str]:
    previous = words[-2] if len(words) > 1 else ""
    if previous in PROFILE_OPTIONS:
        return [name for name in _profile_names() if name.startswith(fragment)]
    for action in parser._actions:
        if previous in action.option_strings and action.choices:
            return [str(choice) for choice in action.choices if str(choice).startswith(fragment.upper())]
    return [name for action in parser._actions for name in action.option_strings if name.startswith(fragment)]


def _profile_names() -> list[str]:
    """Return the profiles' names. Of a file that cannot be read, the command says what is wrong, Tab does
    not."""
    try:
        return [profile.name for profile in list_profiles()]
    except ProfileError:
        return list(BUILT_IN)


def _variables(kinds: tuple[type, ...], fragment: str) -> list[str]:
    shell = get_ipython()
    variables = {} if shell is None else shell.user_ns
    return [
        name
        for name, value in list(variables.items())
        if name.startswith(fragment or tuple(ascii_letters)) and isinstance(value, kinds)
    ]


@context_matcher()  # type: ignore[untyped-decorator]
def djinn_matcher(context: CompletionContext) -> dict[str, object]:
    line = context.line_with_cursor[: context.cursor_position] if context.cursor_line == 0 else ""
    words = line.split() + ([""] if line.endswith((" ", "\t")) else [])
    fragment = words[-1] if words else ""
    found: list[str] = []
    if len(words) > 1 and words[0] in ("%%djinn", "%djinn_config"):
        found = _option_words(make_parser(words[0]), words, fragment)
    elif len(words) == 2 and words[0] == "%djinn":
        found = [name for name in COMMANDS if name.startswith(fragment)]
    elif len(words) == 3 and words[:2] == ["%djinn", "profile"]:
        found = [name for name in _profile_names() if name.startswith(fragment)]
    elif len(words) > 2 and words[0] == "%djinn" and words[1] in NAMES_OF:
        found = _variables(NAMES_OF[words[1]], fragment)
    elif len(words) > 2 and words[:2] == ["%djinn", "report"]:
        found = [word for word in ("--html",) if len(words) == 3 and word.startswith(fragment)]
    elif len(words) > 2 and words[:2] == ["%djinn", "signal"]:
        choices = SIGNALS if len(words) == 3 else ("--resume-in",) if len(words) == 4 else ()
        found = [choice for choice in choices if choice.lower().startswith(fragment.lower())]
    return {
        "completions": [SimpleCompletion(text) for text in found],
        "suppress": bool(found),
        "matched_fragment": fragment,
    }
