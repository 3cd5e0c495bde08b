"""Djinn Lab: notebook cells on a shared pool of GPUs.

``%load_ext djinn_lab`` in a notebook, or :func:`connect` in a program. Names are loaded when first used,
so that the command line and the pool start without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from djinn_lab.capture.lazy import is_lazy
    from djinn_lab.client.announcing import checkpoint, publish
    from djinn_lab.client.connect import connect, execute_model, fetch, signal_phase
    from djinn_lab.magics.extension import load_ipython_extension, unload_ipython_extension

__all__ = [
    "checkpoint",
    "connect",
    "execute_model",
    "fetch",
    "is_lazy",
    "load_ipython_extension",
    "publish",
    "signal_phase",
    "unload_ipython_extension",
]

_HOMES = {
    "checkpoint": "djinn_lab.client.announcing",
    "connect": "djinn_lab.client.connect",
    "execute_model": "djinn_lab.client.connect",
    "fetch": "djinn_lab.client.connect",
    "is_lazy": "djinn_lab.capture.lazy",
    "load_ipython_extension": "djinn_lab.magics.extension",
    "publish": "djinn_lab.client.announcing",
    "signal_phase": "djinn_lab.client.connect",
    "unload_ipython_extension": "djinn_lab.magics.extension",
} | dict.fromkeys(
    (
        "AdaptiveScheduler",
        "OptimizationStrategy",
        "ProgressiveScheduler",
        "SCHEDULER_PROFILES",
        "create_advanced_scheduler",
        "create_basic_scheduler",
        "create_scheduler_for_workload",
        "create_scheduler_from_profile",
        "create_semantic_scheduler",
        "create_smart_scheduler",
        "interactive_scheduler_setup",
    ),
    "djinn_lab.scheduler",
)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
