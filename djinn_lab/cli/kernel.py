"""``djinn-lab kernel``: the kernel "Python (Djinn)" for JupyterLab and other front ends."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from djinn_lab.cli.output import print_line
from djinn_lab.errors import UserError
from djinn_lab.pool.notebooks.captured_kernel import KERNEL_NAME, kernel_folder, kernel_spec


def build_group() -> typer.Typer:
    group = typer.Typer(help='Install or remove the kernel "Python (Djinn)".', no_args_is_help=True)
    group.command("install")(install)
    group.command("uninstall")(uninstall)
    return group


def install(
    user: Annotated[
        bool, typer.Option("--user", help="Install for this user, instead of for this Python environment.")
    ] = False,
    prefix: Annotated[str | None, typer.Option(help="Install below this directory instead.")] = None,
    provisioner: Annotated[
        bool,
        typer.Option(
            "--provisioner", help="Add a provisioner, which frees a kernel's session when the kernel is gone."
        ),
    ] = False,
) -> None:
    """Install the kernel for this Python environment. Its notebooks have djinn_lab loaded from the start."""
    from jupyter_client.kernelspec import KernelSpecManager

    if user and prefix:
        raise UserError("--user and --prefix name two different places.", "Give one of them.")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / KERNEL_NAME
        shutil.copytree(kernel_folder(), folder)
        file = folder / "kernel.json"
        spec = kernel_spec(json.loads(file.read_text()), provisioner)
        file.write_text(json.dumps(spec, indent=1))
        place = KernelSpecManager().install_kernel_spec(
            str(folder), KERNEL_NAME, user=user, prefix=None if user else prefix or sys.prefix
        )
    print_line(f"Installed in {place}. In JupyterLab choose the kernel Python (Djinn).")


def uninstall() -> None:
    """Remove the kernel wherever Jupyter finds it first."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        place = KernelSpecManager(ensure_native_kernel=False).remove_kernel_spec(KERNEL_NAME)
    except (NoSuchKernel, KeyError):
        raise UserError("The kernel is not installed.") from None
    print_line(f"Removed {place}.")
