"""``djinn-lab doctor``: looks at everything that has to be right, and says how to mend what is not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import typer
from rich.console import Console
from rich.markup import escape

from djinn_lab.cli import checks
from djinn_lab.cli.checks import Check
from djinn_lab.cli.options import AsJson
from djinn_lab.cli.output import print_json
from djinn_lab.native import EXTENSIONS

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
EXAMINATIONS: tuple[Callable[[], Check], ...] = (
    checks.check_python,
    checks.check_torch,
    *(partial(checks.check_extension, name) for name in EXTENSIONS),
    checks.check_profiles,
    checks.check_runtime_directory,
    checks.check_shared_memory,
    checks.check_pool,
    checks.check_devices,
    checks.check_jupyter,
    checks.check_kernel,
    checks.check_dashboard,
)


def examine(as_json: AsJson = False) -> None:
    """Check Python, torch, the pool, its files, memory and Jupyter. Exit code 1 when one fails."""
    found = [examination() for examination in EXAMINATIONS]
    if as_json:
        print_json([check.as_dict() for check in found])
    else:
        _print(found)
    if any(check.status == "fail" for check in found):
        raise typer.Exit(1)


def _print(found: Sequence[Check]) -> None:
    console = Console(soft_wrap=True, highlight=False, file=sys.stdout)
    for check in found:
        colour = _COLOURS[check.status]
        console.print(f"[{colour}]{check.status:4}[/{colour}] {check.name}: {escape(check.evidence)}")
        if check.fix:
            console.print(f"     {escape(check.fix)}")
