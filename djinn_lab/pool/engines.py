"""Where the workers of a pool run: on this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

import importlib.util
from typing import Literal, get_args

from djinn_lab.errors import OptionError

Engine = Literal["local", "ray"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
LOCAL_ENGINE: Engine = "local"
RAY_ENGINE: Engine = "ray"
START_WITHIN_S: dict[str, float] = {LOCAL_ENGINE: 30.0, RAY_ENGINE: 180.0}
"""A cluster that is started, and agents that are placed on its nodes, take their time."""


def check_engine(engine: str | None, address: str | None) -> None:
    """Raises OptionError for an engine that does not exist, or cannot be used here."""
    if engine is not None and engine not in ENGINES:
        raise OptionError(f"--engine {engine!r} is unknown.", f"Use one of {', '.join(ENGINES)}.")
    if engine != RAY_ENGINE and address is not None:
        raise OptionError("--address is that of a Ray cluster.", "Add --engine ray, or leave --address out.")
    if engine == RAY_ENGINE and importlib.util.find_spec("ray") is None:
        raise OptionError("Ray is not installed.", "Install it: pip install 'djinn-lab[ray]'")
