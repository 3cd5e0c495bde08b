"""``djinn-lab simulate``: what would another policy, or another pool, have done with these jobs?"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec.structs import replace
from rich.console import Console

from djinn_lab.cli.options import AsJson
from djinn_lab.cli.output import print_line, print_table
from djinn_lab.errors import OptionError, UserError
from djinn_lab.units import format_seconds

if TYPE_CHECKING:
    from djinn_lab.jobs.request import ComputeNode
    from djinn_lab.simulator.queue import BrokenLine, QueueFigures, QueueRun, QueueSettings, Trace
    from djinn_lab.simulator.queue.tuning import Tuning

DEVICES_PER_NODE = 8
BROKEN_SHOWN = 3
OWN_POOL, OWN_JOBS_MAX = "pool", 200_000
"""The trace that the running pool has in its own database."""


def run_simulation(
    trace: Annotated[
        str,
        typer.Argument(
            help="A file (SWF, Philly, ITP, Helios, openb), a public trace by name, synthetic, or pool: the "
            "running pool's own history."
        ),
    ],
    policy: Annotated[
        str, typer.Option(help="The name of a policy, several separated by commas, or all.")
    ] = "default",
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Simulate one pool of so many equal nodes, whatever the trace says."),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Devices of each node; without --nodes: of a single one. Default: 8."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Simulate only the first so many jobs.")] = None,
    pools: Annotated[
        Path | None, typer.Option(help="JSON file with the nodes of each virtual cluster (Philly).")
    ] = None,
    estimates: Annotated[
        str, typer.Option(help="Estimates of run times: given (by the trace), exact, history or none.")
    ] = "given",
    park_s: Annotated[
        float | None,
        typer.Option("--park", min=0, help="Seconds to park a preempted job, and again to restore it."),
    ] = None,
    node_failures: Annotated[
        float | None, typer.Option(min=1, help="Let each node fail about every so many seconds, for an hour.")
    ] = None,
    guaranteed: Annotated[
        list[str] | None, typer.Option(help="ACCOUNT=N: guarantee an account so many devices; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the result to this file, for the dashboard.")
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(
            "--tune",
            help="Choose parameters on earlier jobs, judge them on later ones; write them here if they win.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--traces", help="Folder of public traces. Default: DJINN_TRACES.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a trace of jobs through the pool's own scheduler, on simulated devices and time."""
    from djinn_lab.simulator.queue.result_file import result_of, write_result
    from djinn_lab.simulator.queue.run import pools_of, simulate_queue

    chosen = _policies(policy)
    settings = _settings(estimates, park_s, node_failures, guaranteed or [])
    found = _trace(trace, folder, pools, jobs)
    try:
        simulated = pools_of(found, _nodes(nodes, devices))
    except ValueError as error:
        raise UserError(f"{error}.", "Give --nodes N, and --devices N for each node.") from None
    if not any(True for _ in found.jobs):
        shown = f" Broken lines: {len(found.broken)} ({_shown(found.broken)})." if found.broken else ""
        raise UserError(f"{found.name} has no jobs.{shown}")
    if tuned is not None:
        tuning = _tune(found, simulated, chosen, settings, tuned)
        if as_json:
            print(msgspec.json.format(msgspec.json.encode(tuning), indent=2).decode())
        else:
            _report_tuning(tuning, tuned)
        return
    runs, seconds = [], []
    for name in chosen:
        started = perf_counter()
        runs.append(simulate_queue(found, simulated, name, settings))
        seconds.append(perf_counter() - started)
    by_pool = {pool: sum(node.devices for node in members) for pool, members in simulated.items()}
    result = result_of(found.name, by_pool, settings, runs, found.broken, found.left_out)
    if out is not None:
        write_result(out, result)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
        return
    _report(found, runs, seconds, sum(by_pool.values()))
    if trace == OWN_POOL:
        print_line(
            "Jobs are all that ran on this pool and ended, "
            "with the fetches between cells that djinn-lab jobs leaves out."
        )
    if out is not None:
        print_line(f"Written: {out}. Show it: djinn-lab dashboard --simulation {out}")


def _policies(wanted: str) -> list[str]:
    from djinn_lab.jobs.decision import POLICIES

    names = list(POLICIES) if wanted == "all" else [name.strip() for name in wanted.split(",")]
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        known = ", ".join(POLICIES)
        raise OptionError(f"There is no policy {', '.join(unknown)}.", f"There are {known}; or use all.")
    return names


def _settings(
    estimates: str, park_s: float | None, node_failures_s: float | None, guaranteed: list[str]
) -> QueueSettings:
    from djinn_lab.simulator.queue import Failures, Parking, QueueSettings

    try:
        settings = msgspec.convert({"estimates": estimates}, QueueSettings)
    except msgspec.ValidationError:
        raise OptionError(
            f"--estimates {estimates} is unknown.",
            "Use one of given, exact, history, none.",
        ) from None
    if park_s is not None:
        settings = replace(settings, parking=Parking(((1, park_s, park_s),)))
    if node_failures_s is not None:
        settings = replace(settings, failures=Failures(node_failures_s, 3600.0))
    return replace(settings, guaranteed=_guaranteed(guaranteed))


def _guaranteed(said: list[str]) -> dict[str, float]:
    from djinn_lab.jobs.fairness import Limits, ShareTree

    found = {}
    for one in said:
        account, _, devices = one.rpartition("=")
        try:
            found[account] = float(devices)
            ShareTree().set_limits(account, Limits(devices_guaranteed=found[account]))
        except ValueError as error:
            raise OptionError(
                f"--guaranteed {one} cannot be used: {error}.", "Write it like vision=2."
            ) from None
    return found


def _trace(name: str, folder: Path | None, pools: Path | None, jobs: int | None) -> Trace:
    from djinn_lab.simulator.traces.catalog import open_trace
    from djinn_lab.simulator.traces.lines import NoTraces

    if name == OWN_POOL:
        return _own_history(jobs)
    try:
        found = open_trace(name, folder, pools)
    except NoTraces as error:
        raise UserError(
            f"{str(error)[0].upper()}{str(error)[1:]}.",
            "djinn-lab simulate --help says which traces there are; a file is given by its path.",
        ) from None
    return found if jobs is None else replace(found, jobs=tuple(islice(found.jobs, jobs)))


def _own_history(jobs: int | None) -> Trace:
    """Raises UserError without a pool."""
    from djinn_lab.client.rest import PoolClient
    from djinn_lab.simulator.traces.own_pool import trace_of_pool

    client = PoolClient.find()
    devices = [device.device for device in client.status().devices]
    return trace_of_pool(client.usage(limit=jobs or OWN_JOBS_MAX), devices)


def _nodes(nodes: int | None, devices: int | None) -> tuple[ComputeNode, ...] | None:
    from djinn_lab.simulator.queue import equal_nodes

    if nodes is None and devices is None:
        return None
    return equal_nodes(nodes or 1, devices or DEVICES_PER_NODE)


def _report(trace: Trace, runs: Iterable[QueueRun], seconds: Iterable[float], devices: int) -> None:
    headings = (
        *("policy", "jobs", "wait mean", "p99", "completion mean", "p99", "slowdown"),
        *("used", "Jain", "preemptions", "simulated in"),
    )
    rows = [_row(run, took_s) for run, took_s in zip(runs, seconds, strict=True)]
    print_table(f"{trace.name} on {devices} devices", headings, rows)
    unfinished = max((run.figures.unfinished for run in runs), default=0)
    if unfinished:
        print_line(f"Jobs that fit on no node, not counted: {unfinished}.")
    if trace.left_out:
        print_line(f"Lines left out (jobs that never ran, or of other pools): {trace.left_out}.")
    if trace.broken:
        print_line(f"Broken lines, left out: {len(trace.broken)} ({_shown(trace.broken)}).")


def _shown(broken: tuple[BrokenLine, ...]) -> str:
    shown = "; ".join(f"line {line.number}: {line.reason}" for line in broken[:BROKEN_SHOWN])
    return f"{shown}; ..." if len(broken) > BROKEN_SHOWN else shown


def _row(run: QueueRun, took_s: float) -> tuple[str, ...]:
    found = run.figures
    return (
        found.policy,
        str(found.jobs),
        format_seconds(found.wait_mean_s),
        format_seconds(found.wait_p99_s),
        format_seconds(found.jct_mean_s),
        format_seconds(found.jct_p99_s),
        f"{found.slowdown_mean:.2f}",
        f"{found.utilisation:.1%}",
        "" if found.jain is None else f"{found.jain:.3f}",
        str(found.preemptions),
        format_seconds(took_s),
    )


def _tune(
    trace: Trace, nodes: dict[str, list[ComputeNode]], policies: list[str], settings: QueueSettings, out: Path
) -> Tuning:
    """Find parameters that suit these jobs better, if there are any, and write them to ``out`` if they win
    on jobs that they were not chosen on. Raises OptionError for more than one policy to begin with,
    UserError for a trace that is too short."""
    from djinn_lab.jobs.decision import POLICIES
    from djinn_lab.pool.policy_file import write_policy
    from djinn_lab.simulator.queue.tuning import tune

    if len(policies) != 1:
        raise OptionError("--tune needs one policy to start from.", "Name one: --policy default.")
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


def _report_tuning(found: Tuning, out: Path) -> None:
    """Print the chosen policy, its results on either part of the trace, and how to use it."""
    headings = ("jobs", "policy", "completion mean", "wait mean", "wait p99", "Jain", "preemptions")
    rows = [
        _tuning_row(part, name, figures)
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


def _tuning_row(part: str, name: str, figures: QueueFigures) -> tuple[str, ...]:
    return (
        part,
        name,
        format_seconds(figures.jct_mean_s),
        format_seconds(figures.wait_mean_s),
        format_seconds(figures.wait_p99_s),
        "" if figures.jain is None else f"{figures.jain:.3f}",
        str(figures.preemptions),
    )
