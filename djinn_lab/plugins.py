"""Load what installed packages offer under a name (entry points)."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from djinn_lab.config.fields import did_you_mean
from djinn_lab.errors import OptionError


class Plugin(NamedTuple):
    """``package``: name and version of the package that offers it. ``made``: the object itself."""

    name: str
    package: str
    made: object


def load_plugin(group: str, noun: str, name: str) -> Plugin:
    """Make what an installed package offers in an entry-point group: the entry is called without arguments.

    ``noun``: what it is, for messages. Raises OptionError for a name that no package or several packages
    offer, and for one that cannot be made."""
    offered = tuple(entry_points(group=group))
    found = [entry for entry in offered if entry.name == name]
    if not found:
        names = sorted({entry.name for entry in offered})
        raise OptionError(
            f"There is no {noun} {name!r}{did_you_mean(name, names)}.",
            f"Installed packages offer: {', '.join(names) or 'none'}.",
        )
    if len(found) > 1:
        packages = ", ".join(sorted(map(_package, found)))
        raise OptionError(
            f"Several packages offer the {noun} {name!r}: {packages}.", "Uninstall all but one of them."
        )
    [entry] = found
    try:
        made = entry.load()()
    except (Exception, SystemExit) as error:
        raise OptionError(
            f"The {noun} {name!r} of {_package(entry)} cannot be made: {type(error).__name__}: {error}",
            f"Correct {entry.value}, or uninstall the package.",
        ) from error
    return Plugin(name, _package(entry), made)


def _package(entry: EntryPoint) -> str:
    return entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
