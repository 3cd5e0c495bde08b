"""Load what installed packages offer under a name (entry points)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from djinn_lab.config.fields import did_you_mean
from djinn_lab.errors import OptionError


class Plugin(NamedTuple):
    """``package``: name and version of the package that offers it. ``made``: the object itself."""

    name: str
    package: str
    made: object


def find_plugin(group: str, noun: str, name: str, built_in: Collection[str] = ()) -> EntryPoint | None:
    """Return what an installed package offers under a name in an entry-point group, without importing it;
    None for a name that is built in.

    ``noun``: what it is, and ``built_in``: names that need no package, for messages. Raises OptionError for a
    name that no package or several packages offer, and where a package offers a built-in one."""
    offered = tuple(entry_points(group=group))
    found = [entry for entry in offered if entry.name == name]
    taken = [entry for entry in offered if entry.name in built_in]
    if taken:
        raise OptionError(
            f"{_package(taken[0])} offers the {noun} {taken[0].name!r}, which is built in.",
            "Uninstall that package, or give its entry point another name.",
        )
    if name in built_in:
        return None
    if not found:
        names = sorted({entry.name for entry in offered})
        known = f"Built in: {', '.join(built_in)}. " if built_in else ""
        raise OptionError(
            f"There is no {noun} {name!r}{did_you_mean(name, [*built_in, *names])}.",
            f"{known}Installed packages offer: {', '.join(names) or 'none'}.",
        )
    if len(found) > 1:
        packages = ", ".join(sorted(map(_package, found)))
        raise OptionError(
            f"Several packages offer the {noun} {name!r}: {packages}.", "Uninstall all but one of them."
        )
    return found[0]


def load_plugin(group: str, noun: str, name: str, methods: Sequence[str]) -> Plugin:
    """Make what an installed package offers: the entry is called without arguments. ``methods``: that it must
    have, as a reader calls them. Raises OptionError as :func:`find_plugin` does, and for one that cannot be
    made or is none."""
    entry = find_plugin(group, noun, name)
    assert entry is not None
    try:
        made = entry.load()()
    except (Exception, SystemExit) as error:
        raise OptionError(
            f"The {noun} {name!r} of {_package(entry)} cannot be made: {type(error).__name__}: {error}",
            f"Correct {entry.value}, or uninstall the package.",
        ) from error
    for method in methods:
        if not callable(getattr(made, method.partition("(")[0], None)):
            raise OptionError(
                f"The {noun} {name!r} of {_package(entry)} has no method {method}.",
                f"Correct {entry.value}; docs/extending.md has an example.",
            )
    return Plugin(name, _package(entry), made)


def _package(entry: EntryPoint) -> str:
    return entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
