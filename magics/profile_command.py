"""``%djinn profile`` in words: what the notebook's profile asks for, what that changed, which there are."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.client.dry_run import suitable_devices
from djinn_lab.client.profile_terms import first_choice, terms_of
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile, list_profiles
from djinn_lab.errors import PoolError
from djinn_lab.magics.options import SWITCHES, CellOptions
from djinn_lab.magics.text_table import aligned
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.units import counted

JOBS_READ = 1000
"""So many of the user's newest jobs are looked at."""
CHANGES_SHOWN = 5


def describe_profile(options: CellOptions, session: Session | None) -> str:
    """Return the text of ``%djinn profile``. ``options``: the notebook's defaults. ``session``: None before
    its first cell; the pool is asked only where there is one. Raises ProfileError where the profiles file
    cannot be read."""
    default = default_profile().name
    which = "your default" if options.profile == default else f"chosen here; your default is {default}"
    return "\n".join(
        [
            f"profile {options.profile} ({which})",
            f"  objective {options.terms.objective}, reserve {options.terms.reserve_fraction:.0%}: a session "
            f"begins on {first_choice(options.terms)}",
            f"  cells: priority {options.priority}, {_progress(options)}",
            *_changes(session),
            *_profiles(options.profile, default),
            "%djinn profile NAME takes another one for this notebook",
        ]
    )


def describe_switch(options: CellOptions, session: Session | None) -> str:
    """Return what ``%djinn profile NAME`` says once the notebook's defaults are ``options``."""
    terms = options.terms
    first = (
        f"profile {options.profile} from the next cell on: objective {terms.objective}, reserve "
        f"{terms.reserve_fraction:.0%}, priority {options.priority}"
    )
    device = session.device if session is not None and session.connected else None
    if device is None:
        return f"{first}; this notebook's session has not begun and will begin by it"
    return f"{first}; this session's values stay on {device}, and the next session begins by it"


def describe_options(options: CellOptions, session: Session | None) -> str:
    """Return what ``%djinn_config`` prints: the defaults of the notebook's cells. ``session``: None before
    the first cell; the pool is asked only where there is one."""
    terms = options.terms
    switches = [name for name in SWITCHES if getattr(options, name[2:].replace("-", "_"))]
    rows = [
        ("profile", options.profile),
        ("priority", options.priority),
        ("target", _target(options, session)),
        ("tolerates", ", ".join(terms.tolerates) or "no taint"),
        ("tolerance", f"{options.tolerance:g}" if options.tolerance else "0: results are those of the ops"),
        ("progress", _progress(options)),
        ("switched on", ", ".join(switches) or "nothing"),
        ("typing", "restores what was parked" if options.typing else "is not watched"),
    ]
    return "\n".join(["each cell of this notebook, where it says nothing else:", *aligned(rows)])


def _target(options: CellOptions, session: Session | None) -> str:
    target = options.terms.target
    if target is None or session is None or not session.connected:
        return target or "any device"
    try:
        suitable_devices(session.pool.status(), options.terms)
    except ValueError as none:
        return f"{target}, and now cells with it are refused: {none}"
    except PoolError as error:
        return f"{target} (the pool cannot be asked whether it has one: {error.message})"
    return target


def _progress(options: CellOptions) -> str:
    if options.quiet:
        return "quiet"
    after_s = options.progress_after_s
    return "no line of progress" if after_s < 0 else f"progress after {after_s:g} s"


def _changes(session: Session | None) -> list[str]:
    """Return where the session began and why, and what objective and reserve changed."""
    if session is None:
        return ["this session: not begun, the first captured cell begins it"]
    try:
        own = session.welcome.session
        listed = session.pool.jobs(user=session.welcome.user, limit=JOBS_READ)
    except PoolError as error:
        return [f"this session: the pool cannot be asked ({error.message})"]
    jobs = [job for job in reversed(listed) if job.session == own and job.device is not None]
    if not jobs:
        return ["this session: not begun, no cell of it has a device yet"]
    first = "began" if len(listed) < JOBS_READ else "had its first listed cell"
    return [f"this session: {first} on {_place(jobs[0])}", *_later_changes(jobs[1:])]


def _place(job: JobView) -> str:
    why = job.placed or (
        f"objective and reserve changed nothing. Of the devices that suit it, {job.device} had the fewest "
        "sessions and jobs (ties by price and name)."
    )
    return f"{job.device} with {job.cell} (job {job.short_id}): {why}"


def _later_changes(jobs: Sequence[JobView]) -> list[str]:
    placed = [job for job in jobs if job.placed]
    lines = [f"  began again on {_place(job)}" for job in placed[-CHANGES_SHOWN:]]
    left_out = len(placed) - len(lines)
    return lines if left_out <= 0 else [f"  began again {counted(left_out, 'time')} before", *lines]


def _profiles(current: str, default: str) -> list[str]:
    rows = [
        (
            "*" if profile.name == current else "",
            profile.name + (" (default)" if profile.name == default else ""),
            profile.scheduler.objective,
            f"{terms_of(profile).reserve_fraction:.0%}",
            profile.session.priority,
            profile.description,
        )
        for profile in list_profiles()
    ]
    return aligned([("", "profile", "objective", "reserve", "priority", ""), *rows])
