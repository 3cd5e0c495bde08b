"""What pools of older protocols know of what cells ask of the queue.

A pool ignores fields that its messages do not have. So a client that talks with an older one looks here
first: a wish that would be ignored is refused before anything of the cell is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from djinn_lab.jobs import NO_TERMS, Terms


class Option(NamedTuple):
    """An option of ``%%djinn``, and the first protocol that has it."""

    name: str
    since: int


OPTIONS = {
    "gang": Option("--gang", 4),
    "gang_min": Option("--gang", 4),
    "after": Option("--after", 4),
    "after_any": Option("--after", 4),
    "deadline_s": Option("--deadline", 4),
    "timeout_s": Option("--timeout", 4),
    "after_count": Option("--after-count", 5),
    "after_timeout_s": Option("--after-timeout", 5),
    "target": Option("--target", 5),
    "tolerates": Option("--tolerate", 5),
    "objective": Option("scheduler.objective of a profile", 10),
    "reserve_fraction": Option("scheduler.memory_reserve_fraction of a profile", 10),
}
"""By field of :class:`~djinn_lab.jobs.Terms`."""
CONDITIONS = Option("--after with a condition", 5)
"""Before, a job could depend only on jobs, by their ids."""


def unsupported_options(terms: Terms, version: int) -> tuple[str, ...]:
    """The options in ``terms`` that a pool of protocol ``version`` does not know."""
    return tuple(dict.fromkeys(option.name for option in _asked(terms) if option.since > version))


def _asked(terms: Terms) -> Iterator[Option]:
    for field, option in OPTIONS.items():
        if getattr(terms, field) != getattr(NO_TERMS, field):
            yield option
    if any(":" in text for text in terms.after):
        yield CONDITIONS
