"""Profiles: named, frozen settings for a pool, a session and the scheduler.

A profile belongs to a *workload*, and the built-in profile of that workload supplies every value that
were not chosen. Each value knows its origin: ``default`` (the built-in one), ``detected`` (derived from this
machine by the wizard) or ``you``.
"""

from __future__ import annotations

import re
from typing import Literal, cast, get_args

import msgspec

from djinn_lab.config.fields import (
    BUILT_IN_ESTIMATOR,
    FIELD_BY_PATH,
    FIELDS,
    Issue,
    Value,
    did_you_mean,
    native_from_text,
    text_of,
)

Workload = Literal["basic_inference", "llm_serving", "research_training"]
Origin = Literal["default", "detected", "you"]
WORKLOADS: tuple[Workload, ...] = get_args(Workload)
NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
NAME_ACCEPTED = "a letter, then up to 63 letters, digits, '_' or '-'"


class PoolSettings(msgspec.Struct, frozen=True):
    """Settings of a pool. Sizes and threads are per device; None leaves the choice to the pool.
    ``host_bytes``, ``disk_bytes``: for state of idle sessions. ``link_bytes_per_s``: of CPU devices, which
    copy no faster, so that a restore costs something, as on a GPU; 0 for as fast as memory.
    ``cost_estimator``: of the whole pool."""

    devices: str = "auto"
    memory_bytes: int | None = None
    threads: int | None = None
    host_bytes: int | None = None
    disk_bytes: int = 0
    link_bytes_per_s: int = 2**30
    cost_estimator: str = BUILT_IN_ESTIMATOR


class SessionSettings(msgspec.Struct, frozen=True):
    priority: str = "NORMAL"
    progress_after_s: float = 2.0
    quiet: bool = False
    numbers: str = "close"


class SchedulerSettings(msgspec.Struct, frozen=True):
    objective: str = "latency"
    memory_reserve_fraction: float = 0.05


class Explained(msgspec.Struct, frozen=True):
    """One setting for people: its value as text and where that value came from."""

    path: str
    value: str
    origin: Origin


class Profile(msgspec.Struct, frozen=True):
    """A named set of settings. ``detected`` and ``chosen`` hold the paths whose values came from the machine
    and from you."""

    name: str
    workload: Workload
    description: str = ""
    pool: PoolSettings = PoolSettings()
    session: SessionSettings = SessionSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    detected: frozenset[str] = frozenset()
    chosen: frozenset[str] = frozenset()

    def value(self, path: str) -> Value:
        """Return the value of a setting such as ``"pool.devices"``. Raises KeyError for an unknown path."""
        field = FIELD_BY_PATH[path]
        return cast(Value, getattr(getattr(self, field.section), field.key))

    def text(self, path: str) -> str:
        """Return the value as it is shown and typed."""
        return text_of(path, self.value(path))

    def origin(self, path: str) -> Origin:
        """Return where the value of a setting came from."""
        if path in self.chosen:
            return "you"
        return "detected" if path in self.detected else "default"

    def explain(self) -> list[Explained]:
        """Return every setting with its value and origin, in the order of the settings table."""
        return [Explained(field.path, self.text(field.path), self.origin(field.path)) for field in FIELDS]

    def with_value(self, path: str, raw: object, origin: Origin) -> Profile:
        """Return a copy with one setting changed. Raises ValueError that says what was found."""
        field = FIELD_BY_PATH[path]
        section = msgspec.structs.replace(getattr(self, field.section), **{field.key: field.read(raw)})
        return msgspec.structs.replace(
            self,
            **{field.section: section},
            detected=self.detected - {path} | ({path} if origin == "detected" else set()),
            chosen=self.chosen - {path} | ({path} if origin == "you" else set()),
        )

    def with_text(self, path: str, text: str, origin: Origin = "you") -> Profile:
        """Like :meth:`with_value` for typed text (``"2GiB"``, ``"0.2"``, ``"auto"``)."""
        return self.with_value(path, native_from_text(text), origin)


BUILT_IN: dict[Workload, Profile] = {
    profile.workload: profile
    for profile in (
        Profile(
            name="basic_inference",
            workload="basic_inference",
            description="Forward passes of models that fit one device, a few people at a time",
        ),
        Profile(
            name="llm_serving",
            workload="llm_serving",
            description="Text generation: memory is reserved for a growing KV cache and progress shows early",
            session=SessionSettings(progress_after_s=1.0),
            scheduler=SchedulerSettings(memory_reserve_fraction=0.2),
        ),
        Profile(
            name="research_training",
            workload="research_training",
            description="Training loops: the emptiest device, and interactive cells of others go first",
            session=SessionSettings(priority="LOW", progress_after_s=5.0),
            scheduler=SchedulerSettings(objective="memory", memory_reserve_fraction=0.1),
        ),
    )
}


def check_name(name: str) -> Issue | None:
    """Return an issue when ``name`` cannot name a profile."""
    if NAME_PATTERN.fullmatch(name):
        return None
    return Issue("name", "error", f"found {name!r}", f"Use {NAME_ACCEPTED}")


def check_workload(workload: str) -> Issue | None:
    """Return an issue when ``workload`` is not one of the three."""
    if workload in WORKLOADS:
        return None
    hint = did_you_mean(workload, WORKLOADS)
    return Issue("workload", "error", f"found {workload!r}{hint}", f"Use one of {', '.join(WORKLOADS)}")


def check_values(profile: Profile) -> list[Issue]:
    """Return the issues of a profile by itself, without a machine to compare it with."""
    issues = [issue for issue in (check_name(profile.name), check_workload(profile.workload)) if issue]
    for field in FIELDS:
        try:
            field.read(profile.value(field.path))
        except ValueError as error:
            issues.append(Issue(field.path, "error", str(error), f"Accepted: {field.accepted}"))
    return issues
