"""Puts the commands together, and turns the product's errors into one or two red lines and exit code 1."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from djinn_lab.cli import (
    bench,
    dashboard,
    data,
    demo,
    doctor,
    jobs,
    kernel,
    notebooks,
    pool,
    profiles,
    queue,
    replay,
    reservations,
    sessions,
    setup,
    simulate,
    submit,
    users,
    version,
)
from djinn_lab.cli.output import print_error
from djinn_lab.errors import DjinnError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def build_app() -> typer.Typer:
    """Every command, in the order in which ``--help`` shows them."""
    app = typer.Typer(
        name="djinn-lab",
        help="Run notebook cells on a shared pool of GPUs.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.add_typer(pool.build_group(), name="pool")
    app.command("jobs")(jobs.show_jobs)
    app.command("cancel")(jobs.cancel_job)
    app.command("submit")(submit.submit_notebook)
    app.add_typer(notebooks.build_group(), name="notebooks")
    app.add_typer(data.build_group(), name="data")
    app.command("queue")(queue.show_queue)
    app.command("why")(queue.why_job)
    app.command("preempt")(queue.preempt_job)
    app.command("share")(queue.set_share)
    app.command("cordon")(queue.cordon_device)
    app.command("uncordon")(queue.uncordon_device)
    app.command("device")(queue.describe_device)
    app.add_typer(reservations.build_group(), name="reservations")
    app.command("policy")(queue.queue_policy)
    app.add_typer(users.build_group(), name="users")
    app.command("sessions")(sessions.show_sessions)
    app.command("close")(sessions.close_session)
    app.command("profiles")(profiles.show_profiles)
    app.command("setup")(setup.run_setup)
    app.command("dashboard")(dashboard.serve_dashboard)
    app.command("doctor")(doctor.examine)
    app.command("demo")(demo.run_demo)
    app.add_typer(kernel.build_group(), name="kernel")
    app.command("replay")(replay.replay_journal)
    app.command("simulate")(simulate.run_simulation)
    app.command("bench")(bench.run_benchmarks)
    app.command("version")(version.show_versions)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (default: this process's arguments). Always ends in SystemExit."""
    try:
        build_app()(list(sys.argv[1:] if arguments is None else arguments), prog_name="djinn-lab")
    except DjinnError as error:
        print_error(error)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
