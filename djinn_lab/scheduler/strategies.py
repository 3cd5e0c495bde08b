"""Optimization strategies of installed packages, found by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from djinn_lab.errors import OptionError
from djinn_lab.plugins import load_plugin
from djinn_lab.scheduler.ordering import OptimizationStrategy

ENTRY_POINTS = "djinn_lab.strategies"


def load_strategies(strategies: Sequence[OptimizationStrategy | str]) -> tuple[OptimizationStrategy, ...]:
    """Return the strategies in their order, those of installed packages in place of their names. Raises
    OptionError for a name that is not offered, and for what is no strategy."""
    if isinstance(strategies, str):
        raise OptionError(
            f"strategies is the text {strategies!r}; it is a sequence.",
            f"Write strategies=({strategies!r},).",
        )
    return tuple(_checked(_load(one) if isinstance(one, str) else one) for one in strategies)


def _load(name: str) -> OptimizationStrategy:
    return cast(OptimizationStrategy, load_plugin(ENTRY_POINTS, "optimization strategy", name, ()).made)


def _checked(strategy: OptimizationStrategy) -> OptimizationStrategy:
    named = isinstance(getattr(strategy, "name", None), str)
    if not named or not callable(getattr(strategy, "propose", None)):
        raise OptionError(
            f"{strategy!r} is no optimization strategy: it needs a text name and a method "
            "propose(srg, order).",
            "docs/extending.md has an example.",
        )
    return strategy
