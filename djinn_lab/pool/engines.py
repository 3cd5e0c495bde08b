"""Where the workers of a pool run: on this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

import importlib.util
from typing import Literal, get_args

from djinn_lab.errors import OptionError

Engine = Literal["local", "ray"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
LOCAL_ENGINE: Engine = "local"
RAY_ENGINE: Engine = "ray"
START_WITHIN_S: dict[str, float] = {LOCAL_ENGINE: 120.0, RAY_ENGINE: 180.0}
"""A busy machine, or one whose packages lie on a network, takes its time to import torch; a cluster that is
started, and agents that are placed on its nodes, more."""


def check_engine(engine: str | None, address: str | None) -> None:
    """Raises OptionError for an engine that does not exist, or cannot be used here."""
    if engine is not None and engine not in ENGINES:
        raise OptionError(f"--engine {engine!r} is unknown.", f"Use one of {', '.join(ENGINES)}.")
    if engine != RAY_ENGINE and address is not None:
        raise OptionError("--address is that of a Ray cluster.", "Add --engine ray, or leave --address out.")
    if engine == RAY_ENGINE and importlib.util.find_spec("ray") is None:
        raise OptionError("Ray is not installed.", "Install it: pip install 'djinn-lab[ray]'")


def check_nodes(address: str | None, nodes_max: int | None, nodes_idle_s: float | None) -> None:
    """Raises OptionError where nodes cannot be asked for. The address is that of a checked engine."""
    if nodes_max is None and nodes_idle_s is not None:
        raise OptionError("--nodes-idle-for is for nodes that were asked for.", "Add --nodes-max N.")
    if nodes_max is not None and address is None:
        raise OptionError(
            "--nodes-max is for a Ray cluster that runs already, with an autoscaler.",
            "Add --engine ray --address HOST:PORT, or leave --nodes-max out.",
        )
    if nodes_max is not None and nodes_max < 1:
        raise OptionError(f"--nodes-max {nodes_max} is none.", "Give at least as many nodes as there are.")
