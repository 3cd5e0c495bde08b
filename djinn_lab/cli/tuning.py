"""``djinn-lab simulate TRACE --tune FILE``: parameters that suit these jobs better, if there are any."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from djinn_lab.cli.output import print_line, print_table
from djinn_lab.errors import OptionError, UserError
from djinn_lab.units import format_seconds

if TYPE_CHECKING:
    from djinn_lab.jobs.request import ComputeNode
    from djinn_lab.simulator.queue import QueueFigures, QueueSettings, Trace
    from djinn_lab.simulator.queue.tuning import Tuning


def run_tuning(
    trace: Trace, nodes: dict[str, list[ComputeNode]], policies: list[str], settings: QueueSettings, out: Path
) -> Tuning:
    """Writes the policy to ``out`` if it wins on jobs that it was not chosen on. Raises OptionError for more
    than one policy to begin with, UserError for a trace that is too short."""
    from djinn_lab.jobs.decision import POLICIES
    from djinn_lab.pool.policy_file import write_policy
    from djinn_lab.simulator.queue.tuning import tune

    if len(policies) != 1:
        raise OptionError("--tune begins with one policy.", "Name one: --policy ours.")
    console = Console(stderr=True)
    try:
        with console.status("Trying policies on the earlier jobs") as status:
            found = tune(
                trace,
                nodes,
                POLICIES[policies[0]],
                settings,
                lambda number, policy, figures: status.update(
                    f"Tried {number} policies on the earlier jobs; "
                    f"the last completes in {format_seconds(figures.jct_mean_s)}"
                ),
            )
    except ValueError as error:
        raise UserError(f"{error}.") from None
    if found.worth_it:
        write_policy(out, found.policy)
    return found


def report_tuning(found: Tuning, out: Path) -> None:
    """Print the chosen policy, its results on either part of the trace, and how to use it."""
    headings = ("jobs", "policy", "completion mean", "wait mean", "wait p99", "Jain", "preemptions")
    rows = [
        _row(part, name, figures)
        for part, sides in (("earlier (chosen on)", found.early), ("later (judged on)", found.late))
        for name, figures in (("as it was", sides.before), ("tuned", sides.after))
    ]
    print_table(f"{found.tried} policies tried", headings, rows)
    changed = ", ".join(f"{name} {value}" for name, value in found.changed.items())
    if not found.changed:
        print_line("Nothing that was tried is better on the earlier jobs: keep the policy as it is.")
    elif found.worth_it:
        print_line(f"On the later jobs it completes {found.late.gain:.1%} sooner with: {changed}.")
        print_line(f"Written: {out}. Use it: djinn-lab pool start --queue-policy {out}")
    else:
        print_line(
            f"{changed}: better on the earlier jobs, but not on the later ones "
            f"({found.late.gain:+.1%}): keep the policy as it is. Nothing was written."
        )


def _row(part: str, name: str, figures: QueueFigures) -> tuple[str, ...]:
    return (
        part,
        name,
        format_seconds(figures.jct_mean_s),
        format_seconds(figures.wait_mean_s),
        format_seconds(figures.wait_p99_s),
        "" if figures.jain is None else f"{figures.jain:.3f}",
        str(figures.preemptions),
    )
