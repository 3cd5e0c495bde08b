"""Puts the commands together, and turns the product's errors into one or two red lines and exit code 1."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import typer

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


def build_app(only: str | None = None) -> typer.Typer:
    """Every command. ``only``: where it names one, that one alone, which imports a fraction."""
    app = typer.Typer(
        name="djinn-lab",
        help="Run notebook cells on a shared pool of GPUs.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_nothing)  # a single command stays a command by its name
    named = [entry for entry in COMMANDS if entry.command == only]
    for entry in named or COMMANDS:
        if entry.function == "build_group":
            app.add_typer(entry.load()(), name=entry.command)
        else:
            app.command(entry.command)(entry.load())
    return app


def _nothing() -> None:
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
