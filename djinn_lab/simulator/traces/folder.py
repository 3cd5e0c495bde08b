"""Where public traces lie. They are no part of this repository: the folder is an argument or the environment
variable ``DJINN_TRACES``."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "DJINN_TRACES"


class NoTraces(Exception):
    """The folder or a file in it is missing; says which."""


def traces_folder(argument: Path | None = None) -> Path:
    """Raises NoTraces."""
    named = argument or (Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None)
    if named is None:
        raise NoTraces(f"no traces: set {VARIABLE} to the folder that holds them")
    if not named.is_dir():
        raise NoTraces(f"no traces: {named} is no folder")
    return named
