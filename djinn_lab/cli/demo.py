"""``djinn-lab demo``: run the quickstart as two users at once on a pool, and compare the results."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from djinn_lab.cli.dashboard import LOOPBACK, dashboard_folder, free_port, serve_command
from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import UserError
from djinn_lab.protocol.dashboard_login import with_code
from djinn_lab.protocol.runtime_file import RuntimeInfo, read_runtime
from djinn_lab.units import format_seconds

if TYPE_CHECKING:
    from nbformat import NotebookNode

USERS = ("demo-ann", "demo-ben")
"""Removed at the end: they are in the database of the user who runs this."""
SUMMARY_TYPE = "application/vnd.djinn.quickstart+json"
CELL_TIMEOUT_S = 600
OUTPUT = Path("demo-output")


class UserRun:
    """One user's execution of the notebook: where it is, and what it found."""

    def __init__(self, user: str, cells: int) -> None:
        self.user = user
        self.cells = cells
        self.done = 0
        self.current = "starting a kernel"
        self.started = perf_counter()
        self.failure = ""
        self.summary: dict[str, Any] = {}
        self.elapsed_s = 0.0


def run_demo(
    notebook: Annotated[Path, typer.Option(help="The notebook to run.")] = Path("notebooks/quickstart.ipynb"),
    keep: Annotated[
        bool | None,
        typer.Option("--keep/--no-keep", help="Leave pool, dashboard and JupyterLab running until Ctrl-C."),
    ] = None,
) -> None:
    """Start a pool and a dashboard, and run the quickstart as two users at once."""
    if not notebook.is_file():
        raise UserError(
            f"There is no {notebook} here.", "Run this in a checkout of the project, or give --notebook."
        )
    console = Console(highlight=False)
    stays = sys.stdout.isatty() and not os.environ.get("CI") if keep is None else keep
    with contextlib.ExitStack() as stack:
        info = read_runtime()
        if info is None:
            stack.callback(_stop, console)
            info = _start(console)
        stack.callback(_remove_users, info)
        dashboard_url = stack.enter_context(_dashboard())
        console.print(f"dashboard: {with_code(dashboard_url)}", soft_wrap=True)
        runs = asyncio.run(_run_all(notebook, info, console))
        _print_results(console, runs)
        if stays:
            lab_url = stack.enter_context(_jupyter_lab(notebook.parent))
            console.print(
                f"\nJupyterLab: {lab_url}\ndashboard:  {with_code(dashboard_url)}\nCtrl-C stops everything.",
                soft_wrap=True,
            )
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
        else:
            console.print(
                f"\nTo continue by hand: {_typed('djinn-lab')} pool start; {_typed('djinn-lab')} dashboard; "
                f"{_typed('jupyter')} lab notebooks",
                soft_wrap=True,
            )
    if any(run.failure for run in runs):
        raise UserError("The quickstart failed.", f"See the executed notebooks in {OUTPUT}.")


def _start(console: Console) -> RuntimeInfo:
    from djinn_lab.pool.launch import start_pool

    started = perf_counter()
    info = start_pool()
    with contextlib.closing(PoolClient(info.url, info.token)) as client:
        devices = client.status().devices
    names = ", ".join(f"{device.device} ({device.threads} threads)" for device in devices)
    console.print(
        f"pool {info.pool} ready in {format_seconds(perf_counter() - started)}: {names}", soft_wrap=True
    )
    return info


def _stop(console: Console) -> None:
    from djinn_lab.pool.launch import stop_pool

    stop_pool()
    console.print("pool stopped")


@contextlib.contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    OUTPUT.mkdir(exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            if process.poll() is None:
                process.kill()


@contextlib.contextmanager
def _dashboard() -> Iterator[str]:
    port = free_port(0)
    with _process(serve_command(dashboard_folder(), port), OUTPUT / "dashboard.log"):
        yield f"http://{LOOPBACK}:{port}/dashboard"


@contextlib.contextmanager
def _jupyter_lab(folder: Path) -> Iterator[str]:
    port, token = free_port(0), secrets.token_urlsafe(16)
    command = [
        sys.executable, "-m", "jupyter", "lab", str(folder),
        "--no-browser", "--ip", LOOPBACK, "--port", str(port),
        f"--IdentityProvider.token={token}",
    ]  # fmt: skip
    if sys.platform != "win32" and os.getuid() == 0:
        command.append("--allow-root")
    with _process(command, OUTPUT / "jupyterlab.log"):
        yield f"http://{LOOPBACK}:{port}/lab/tree/quickstart.ipynb?token={token}"


async def _run_all(path: Path, info: RuntimeInfo, console: Console) -> list[UserRun]:
    from djinn_lab.protocol.notebook_format import nbformat

    notebooks = [nbformat.read(path, 4) for _ in USERS]  # type: ignore[no-untyped-call]
    cells = sum(cell.cell_type == "code" for cell in notebooks[0].cells)
    runs = [UserRun(user, cells) for user in USERS]
    with contextlib.closing(PoolClient(info.url, info.token)) as client:
        tokens = [_make_user(client, user) for user in USERS]
    environments = [{**os.environ, "DJINN_POOL": info.url, "DJINN_TOKEN": token} for token in tokens]
    work = [
        _run_one(notebook, path, environment, run, console)
        for notebook, environment, run in zip(notebooks, environments, runs, strict=True)
    ]
    if not console.is_terminal:
        await asyncio.gather(*work)
        return runs
    with Live(
        _progress_table(runs),
        console=console,
        refresh_per_second=4,
        get_renderable=lambda: _progress_table(runs),
    ):
        await asyncio.gather(*work)
    return runs


def _make_user(client: PoolClient, name: str) -> str:
    if any(user.name == name for user in client.users()):  # of a demo that was killed
        client.delete_user(name)
    return client.create_user(name).token


def _remove_users(info: RuntimeInfo) -> None:
    with contextlib.closing(PoolClient(info.url, info.token)) as client:
        for user in client.users():
            if user.name in USERS:
                client.delete_user(user.name)


def _typed(program: str) -> str:
    """Return how to type a program of this environment, which may not be on the path."""
    if shutil.which(program) is not None:
        return program
    here = Path(sys.executable).parent / program
    return str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here)


async def _run_one(
    notebook: NotebookNode, path: Path, environment: dict[str, str], run: UserRun, console: Console
) -> None:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    from djinn_lab.protocol.notebook_format import nbformat

    def started(cell: NotebookNode, cell_index: int) -> None:
        run.current = next((line for line in cell.source.splitlines() if line.strip()), "")

    def executed(cell: NotebookNode, cell_index: int, execute_reply: object) -> None:
        run.done += 1
        if not console.is_terminal and cell.source.startswith("%%djinn"):
            lines = [line for line in cell.source.splitlines()[1:] if line.strip()]
            console.print(
                f"{run.user}: {lines[0]} (after {format_seconds(perf_counter() - run.started)})",
                soft_wrap=True,
            )

    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        on_cell_start=started,
        on_cell_executed=executed,
    )
    try:
        await client.async_execute(env=environment, cwd=str(path.parent))
    except CellExecutionError as error:
        run.failure = str(error)
    run.elapsed_s = perf_counter() - run.started
    run.current = "failed" if run.failure else "done"
    OUTPUT.mkdir(exist_ok=True)
    nbformat.write(notebook, OUTPUT / f"{path.stem}-{run.user}.ipynb")  # type: ignore[no-untyped-call]
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            run.summary = output.get("data", {}).get(SUMMARY_TYPE, run.summary)


def _progress_table(runs: Sequence[UserRun]) -> Table:
    table = Table("user", "cells", "now", "elapsed")
    for run in runs:
        elapsed = run.elapsed_s or perf_counter() - run.started
        table.add_row(run.user, f"{run.done}/{run.cells}", run.current[:70], format_seconds(elapsed))
    return table


def _equality(equal: bool, device: str) -> str:
    """Return what the table says of a result; on a device that is no CPU other bits are expected."""
    if equal:
        return "bit for bit"
    return "NO" if device.startswith("cpu") else "no: a GPU adds in another order"


def _print_results(console: Console, runs: Sequence[UserRun]) -> None:
    table = Table(
        "user", "what", "device", "plain here", "%%djinn",
        "where the time went", "equal to plain torch", "result",
        title="quickstart", title_justify="left",
    )  # fmt: skip
    for run in runs:
        for name, row in run.summary.items():
            stages = sorted(row["stages"].items(), key=lambda item: -item[1])[:3]
            table.add_row(
                run.user,
                name,
                row["device"],
                format_seconds(row["plain_s"]),
                format_seconds(row["djinn_s"]),
                ", ".join(f"{stage} {format_seconds(seconds)}" for stage, seconds in stages),
                _equality(row["equal"], row["device"]),
                row["detail"],
            )
    (console if console.is_terminal else Console(width=180, highlight=False)).print(table)
    for run in runs:
        console.print(f"{run.user}: {run.done} of {run.cells} cells in {format_seconds(run.elapsed_s)}")
        if run.failure:
            console.print(run.failure, markup=False)
