"""Puts the commands together, and turns the product's errors into one or two red lines and exit code 1."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from djinn_lab.cli.output import print_error
from djinn_lab.errors import DjinnError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


class Entry(NamedTuple):
    """``function``: of a module of this package; ``build_group`` returns a group of commands."""

    command: str
    module: str
    function: str = "build_group"

    def load(self) -> Callable[..., Any]:
        """Import the module: only for a command that is run, or listed."""
        loaded: Callable[..., Any] = getattr(import_module(f"djinn_lab.cli.{self.module}"), self.function)
        return loaded


COMMANDS = (
    Entry("pool", "pool"),
    Entry("jobs", "jobs", "show_jobs"),
    Entry("cancel", "jobs", "cancel_job"),
    Entry("submit", "submit", "submit_notebook"),
    Entry("notebooks", "notebooks"),
    Entry("data", "data"),
    Entry("queue", "queue", "show_queue"),
    Entry("why", "queue", "why_job"),
    Entry("preempt", "queue", "preempt_job"),
    Entry("share", "queue", "set_share"),
    Entry("cordon", "queue", "cordon_device"),
    Entry("uncordon", "queue", "uncordon_device"),
    Entry("device", "queue", "describe_device"),
    Entry("reservations", "reservations"),
    Entry("policy", "queue", "queue_policy"),
    Entry("login", "login", "log_in"),
    Entry("logout", "login", "log_out"),
    Entry("users", "users"),
    Entry("audit", "audit"),
    Entry("sessions", "sessions", "show_sessions"),
    Entry("close", "sessions", "close_session"),
    Entry("profiles", "profiles", "show_profiles"),
    Entry("wizard", "setup", "run_setup"),
    Entry("setup", "setup", "run_setup"),
    Entry("dashboard", "dashboard", "serve_dashboard"),
    Entry("doctor", "doctor", "examine"),
    Entry("demo", "demo", "run_demo"),
    Entry("kernel", "kernel"),
    Entry("replay", "replay", "replay_journal"),
    Entry("simulate", "simulate", "run_simulation"),
    Entry("bench", "bench", "run_benchmarks"),
    Entry("version", "version", "show_versions"),
)
"""In the order in which ``--help`` shows them."""


class CommandGroup(TyperGroup):
    """Suggests commands of its groups, too."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises click's UsageError, which names the nearest commands."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            paths = list(_paths(self))
            nearest = get_close_matches(args[0], [path[-1] for path in paths], n=1)
            found = ", ".join(repr(" ".join(path)) for path in paths if path[-1] in nearest)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {found}?" if found else ""))
        return super().resolve_command(ctx, args)


def _paths(group: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*above, name)
        if hasattr(command, "commands"):
            yield from _paths(command, (*above, name))


def build_app(only: str | None = None) -> typer.Typer:
    """Every command. ``only``: where it names one, that one alone, which imports a fraction."""
    app = typer.Typer(
        name="djinn-lab",
        cls=CommandGroup,
        help="Run notebook cells on a shared pool of GPUs.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)  # a single command stays a command by its name
    named = [entry for entry in COMMANDS if entry.command == only]
    for entry in named or COMMANDS:
        if entry.function == "build_group":
            app.add_typer(entry.load()(), name=entry.command)
        else:
            app.command(entry.command)(entry.load())
    return app


def _show_versions(wanted: bool) -> None:
    if wanted:
        Entry("version", "version", "show_versions").load()()
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_versions, is_eager=True, help="Same as the command.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (default: this process's arguments). Always ends in SystemExit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        build_app(given[0] if given else None)(given, prog_name="djinn-lab")
    except DjinnError as error:
        print_error(error)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
