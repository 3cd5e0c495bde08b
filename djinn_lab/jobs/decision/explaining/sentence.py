"""Say why a job waits in one true sentence (or two), with numbers: :func:`sentence` of an
:class:`~djinn_lab.jobs.decision.explaining.explain.Explanation`. Nothing is computed here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from djinn_lab.jobs.decision.explaining.explain import Ahead, Blocker, Explanation
from djinn_lab.jobs.decision.explaining.verdicts import Reason
from djinn_lab.jobs.decision.rules.guarantees import JobQos, QosClass
from djinn_lab.jobs.fairness import LimitHit
from djinn_lab.jobs.placement.filters import FILTERS
from djinn_lab.jobs.start_forecasts import StartForecastError, StartSkill
from djinn_lab.units import SHORT_ID_CHARS, format_seconds, listed

NAMED_MAX = 3
"""So many jobs or nodes are named; of the others only the number is given."""
STALE_S = 5.0
"""A decision that is overdue by so much was not taken: the job waits for the scheduler itself."""

_ID = re.compile(r"\b[0-9a-f]{32}\b")
_NAME = re.compile(r"\w+:|[0-9a-f]{32}\b")
"""Matches the name of a device or a job."""

Clock = Callable[[float], str]

_NEVER = {
    "nodes": "none of the named {place}s exists",
    **{one.name: one.never for one in FILTERS},
    "devices": "no {place} that it could use has a device",
    "device_share": "it asks for {needed} thousandths of one device, and a device has {available}",
    "cpu": "a member needs {needed} thousandths of a core, and the largest {place} for it has {available}",
    "memory": "a member needs {needed} MiB, and the largest {place} for it has {available} MiB",
    "one_node": "{needed} members must be on one {place}, and at most {available} fit on one",
    "packed": "{needed} members must be packed, and at most {available} can be",
    "members": "it needs {needed} members at once, and the whole pool holds {available}",
}


def sentence(
    explanation: Explanation, clock: Clock | None = None, *, with_start: bool = True, memory: str = ""
) -> str:
    """Return the sentence. ``clock`` writes a time of the core's clock for people; without it, times count
    from now. ``with_start``: also say when the job is expected to start, now and with what would help.
    ``memory``: what session memory says of the job, which comes first."""
    say = clock or (lambda at_s: f"in {duration(at_s - explanation.now_s)}")
    parts = [memory]
    if not (memory and _is_said_by_memory(explanation)):
        parts.append(_why(explanation, say))
    if with_start:
        parts += [*_when(explanation, say), *_instead(explanation, say)]
    return " ".join(_begun(part) + "." for part in parts if part)


def _is_said_by_memory(explanation: Explanation) -> bool:
    """Return whether the queue has no reason of its own beside what session memory says."""
    reason = explanation.reason
    if reason is Reason.BEHIND:
        return not explanation.ahead
    return reason in (Reason.NOT_READY, Reason.STARTS_NOW, Reason.BUSY)


def sentence_with_start(explanation: Explanation, skill: StartSkill, memory: str = "") -> str:
    """Return the sentence with the expected start where such forecasts were good lately, and with their
    error."""
    error = skill.error
    if error is None:
        return with_short_ids(sentence(explanation, with_start=False, memory=memory))
    if explanation.expected_s is None or not _gives_start(explanation):
        return with_short_ids(sentence(explanation, memory=memory))
    wait_s = max(0.0, explanation.expected_s - explanation.now_s)
    start = skill.forecast(explanation.job, explanation.rank, wait_s, explanation.now_s)
    if start is not None and start.reliable:
        corrected = replace(explanation, expected_s=explanation.now_s + start.wait_s)
        return f"{with_short_ids(sentence(corrected, memory=memory))} {error_sentence(error)}"
    overtaken = start is not None and start.overtaken
    why = "cells that come later keep starting before it" if overtaken else "such forecasts were wrong lately"
    why_waiting = with_short_ids(sentence(explanation, with_start=False, memory=memory))
    return f"{why_waiting} Its start cannot be predicted: {why}."


def why_no_start(explanation: Explanation, skill: StartSkill) -> str:
    """Return in a few words why no start is predicted: the short form of what :func:`sentence_with_start`
    says."""
    reason = explanation.reason
    if reason.never:
        return "never, as things are"
    if reason is Reason.STARTS_NOW:
        return "now"
    if skill.error is None:
        return "unknown: too few predictions checked"
    if reason is Reason.NOT_READY or explanation.brought:
        return "unknown: it waits for memory"
    if explanation.expected_s is None:
        if explanation.later_than_s is None:
            return "not by itself, as things are"
        return f"not within {duration(explanation.later_than_s - explanation.now_s)}"
    wait_s = max(0.0, explanation.expected_s - explanation.now_s)
    start = skill.forecast(explanation.job, explanation.rank, wait_s, explanation.now_s)
    overtaken = start is not None and start.overtaken
    return "unknown: later cells may go first" if overtaken else "unknown: recent predictions were wrong"


def error_sentence(error: StartForecastError | None) -> str:
    if error is None:
        return "(No such forecast could be checked yet.)"
    off = format_seconds(error.median_s)
    return f"(Such forecasts were off by {off} in the median of the last {error.count}.)"


def with_short_ids(text: str) -> str:
    """Return the text with ids as people read them."""
    return _ID.sub(lambda found: found[0][:SHORT_ID_CHARS], text)


def _begun(part: str) -> str:
    """Return the text with a capital, unless it begins with a name."""
    return part if _NAME.match(part) else part[0].upper() + part[1:]


def duration(seconds: float) -> str:
    """Return for example ``40 ms``, ``12 s``, ``3 min``, ``2.5 h``."""
    if seconds < 0.0005:
        return "less than 1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.1f} days"


def class_sentence(found: JobQos) -> str:
    """Say the class of a job, and by which guarantee."""
    if found.qos_class is QosClass.BEST_EFFORT:
        return "Its class is BEST_EFFORT, since its priority is SCAVENGER."
    if found.guaranteed is None:
        return "Its class is BURSTABLE, since none of its accounts has guaranteed devices."
    devices = f"{found.held:g} device{'' if found.held == 1 else 's'} ({found.guaranteed:g} guaranteed)"
    return f"Its class is {found.qos_class}: with it, {found.account} holds {devices}."


def _why(explanation: Explanation, say: Clock) -> str:
    """Return the reason itself."""
    ahead = explanation.ahead
    match explanation.reason:
        case Reason.IMPOSSIBLE:
            return "it can never start: " + _impossible(explanation)
        case Reason.ABOVE_LIMIT | Reason.ACCOUNT_LIMIT | Reason.SOFT_LIMIT:
            return _limit(explanation.reason, explanation.limit, say)
        case Reason.STARTS_NOW:
            return _starts_now(explanation)
        case Reason.NOT_READY:
            if explanation.stuck:
                return "its device has no memory for it, and none is being freed; other jobs start meanwhile"
            return "its state or memory is not on its device yet; its queue position is kept"
        case Reason.PREEMPTING if not explanation.blockers:
            return "its device is reserved for it"
        case Reason.PREEMPTING:
            victims = [one.job for one in explanation.blockers]
            return f"{_jobs(explanation, say)} {_is(victims)} being preempted for it"
        case Reason.UNAVAILABLE:
            return f"every {explanation.place} that could hold it is cordoned or down" + _cordoned(
                explanation
            )
        case Reason.CALENDAR:
            reserved = _reserved(explanation, say)
            return (
                f"the free {explanation.place}s that could hold it are reserved for other accounts before it"
                f" would end: {reserved}"
            )
        case Reason.HOME:
            held = _jobs(explanation, say)
            return f"its state lies where {held} runs, and waiting there costs less than moving"
        case Reason.RESERVED:
            others = _promised(explanation.blockers, say)
            return "capacity is free, but not for as long as it needs" + (f": {others}" if others else "")
        case Reason.BEHIND:
            if explanation.expected_s is None:
                return "other jobs start before it" + _held(explanation, say)
            first = _count(ahead) if ahead else "no job is expected to start before it"
            return first + _held(explanation, say)
        case Reason.BUSY:
            return f"it is next, and waits for {_wanted(explanation, say)}"


def _reserved(explanation: Explanation, say: Clock) -> str:
    """Return for example ``gpu:0 for vision (course, ends in 9 min)``."""
    named = [
        f"{_names(sorted(one.nodes))} for {_names(sorted(one.accounts)) or 'no account'} ({one.name}, "
        + (f"begins {say(one.begins_s)})" if explanation.now_s < one.begins_s else f"ends {say(one.ends_s)})")
        for one in explanation.calendar[:NAMED_MAX]
    ]
    more = len(explanation.calendar) - NAMED_MAX
    return listed([*named, f"{more} more"] if more > 0 else named)


def _wanted(explanation: Explanation, say: Clock) -> str:
    """Say what the next job waits for, and who holds it; of a gang, how many of its members could not
    start."""
    free = 0 if explanation.nodes is None else explanation.nodes.members_open
    if free < explanation.needs > 1:
        missing = explanation.needs - free
        return f"{missing} of {explanation.needs} devices at once" + _held(explanation, say)
    nodes = _held_nodes(explanation)
    if not nodes:
        return f"a {explanation.place}" + _held(explanation, say)
    return f"{_names(nodes)}, held by {_jobs(explanation, say)}"


def _starts_now(explanation: Explanation) -> str:
    decided_s = explanation.decided_s
    if decided_s is not None and explanation.now_s - decided_s > STALE_S:
        ago = duration(explanation.now_s - decided_s)
        return f"nothing blocks it, but the scheduler has not decided anything for {ago}"
    return "nothing blocks it; it starts now"


def _gives_start(explanation: Explanation) -> bool:
    """Return whether the sentence gives the expected start: not for a job that waits for session memory,
    whose reason says more."""
    reason = explanation.reason
    return not (reason.never or explanation.brought or reason in (Reason.STARTS_NOW, Reason.NOT_READY))


def _when(explanation: Explanation, say: Clock) -> list[str]:
    """Return the position, and when the job is expected to start."""
    if not _gives_start(explanation):
        return []
    if explanation.expected_s is None:
        if explanation.later_than_s is not None:
            within = duration(explanation.later_than_s - explanation.now_s)
            return [f"it is not expected to start within {within}"]
        return ["as things are, it does not start by itself"]
    basis = "" if explanation.basis == "estimates" else ", guessing the run times of jobs without an estimate"
    place = f"it is expected to start {say(explanation.expected_s)}{basis}"
    return [f"{place}, as number {explanation.position} of {explanation.waiting} waiting jobs"]


def _instead(explanation: Explanation, say: Clock) -> list[str]:
    if not explanation.would:
        return []
    best = explanation.would[0]
    when = "now" if best.start_s <= explanation.now_s else say(best.start_s)
    return [f"with `{best.option}` it would start {when}"]


def _held(explanation: Explanation, say: Clock) -> str:
    if explanation.blockers:
        nodes = _held_nodes(explanation)
        return f"; {_names(nodes)} {_is(nodes)} held by {_jobs(explanation, say)}"
    return _nodes(explanation)


def _held_nodes(explanation: Explanation) -> list[str]:
    held = {node for one in explanation.blockers for node in one.where}
    return [node for node in explanation.expected_where if node in held]


def _cordoned(explanation: Explanation) -> str:
    """Return the nodes, and what an operator can do about them."""
    if not explanation.cordoned:
        return _nodes(explanation)
    name = explanation.cordoned[0]
    return f"{_nodes(explanation)}; an operator lets one serve again with: djinn-lab uncordon {name}"


def _jobs(explanation: Explanation, say: Clock) -> str:
    blockers = explanation.blockers
    named = [
        f"{one.job} of {one.account}{_ends(one, explanation.now_s, say)}" for one in blockers[:NAMED_MAX]
    ]
    more = len(blockers) - NAMED_MAX
    return listed([*named, f"{more} more"] if more > 0 else named) or "no job any more"


def _ends(blocker: Blocker, now_s: float, say: Clock) -> str:
    if blocker.until_s is None:
        return ""
    late = blocker.until_s <= now_s
    return " (runs longer than predicted)" if late else f" (expected to end {say(blocker.until_s)})"


def _promised(blockers: Sequence[Blocker], say: Clock) -> str:
    named = [
        f"{one.job} of {one.account} is to start {'' if one.until_s is None else say(one.until_s)}".rstrip()
        for one in blockers[:NAMED_MAX]
    ]
    return listed(named)


def _count(ahead: Sequence[Ahead]) -> str:
    total = sum(one.jobs for one in ahead)
    named = [f"{one.jobs} of {one.account}" for one in ahead[:NAMED_MAX]]
    more = total - sum(one.jobs for one in ahead[:NAMED_MAX])
    accounts = listed([*named, f"{more} of others"] if more else named)
    return f"{total} {'job is' if total == 1 else 'jobs are'} expected to start before it ({accounts})"


def _nodes(explanation: Explanation) -> str:
    """Return for example ``; of 4 nodes: 2 busy, 1 without its labels``."""
    misfit, place = explanation.nodes, explanation.place
    if misfit is None:
        return ""
    counted = [
        (misfit.busy, "busy"),
        (misfit.open, _free(explanation)),
        (misfit.cordoned, "cordoned"),
        (misfit.not_ready, "down"),
        (misfit.expected, "not there, but may come with further nodes"),
        (misfit.not_named, "where its target, or its state that lies elsewhere, does not let it run"),
        *((misfit.filtered.get(one.name, 0), one.excluded) for one in FILTERS),
        (misfit.too_small, "too small"),
    ]
    named = [f"{count} {what}" for count, what in counted if count]
    return f"; of {misfit.nodes} {place if misfit.nodes == 1 else place + 's'}: {', '.join(named)}"


def _free(explanation: Explanation) -> str:
    """Say of free devices why the job does not start there."""
    if explanation.needs > 1:
        return "free, which are too few"
    return "free for jobs ahead of this one" if explanation.reason is Reason.BEHIND else "free"


def _impossible(explanation: Explanation) -> str:
    found = explanation.impossible
    assert found is not None
    assert found.constraint is not None
    return _NEVER[found.constraint].format(
        needed=found.needed, available=found.available, place=explanation.place
    )


def _limit(reason: Reason, hit: LimitHit | None, say: Clock) -> str:
    assert hit is not None
    whose = f"account {hit.account}" if hit.account else "the pool"
    if reason is Reason.ABOVE_LIMIT:
        return (
            f"it can never start: it wants {hit.wanted:g} devices, and {whose} may have {hit.limit:g} at once"
        )
    if hit.kind == "device_s":
        until = "" if hit.until_s is None else f"; that has decayed below it {say(hit.until_s)}"
        return f"{whose} has used {hit.used:.4g} device-seconds of its {hit.limit:g}{until}"
    kind = "soft limit" if reason is Reason.SOFT_LIMIT else "limit"
    held = f"{whose} holds {hit.used:g} of its {kind} of {hit.limit:g} devices, and it wants {hit.wanted:g}"
    return held + ("; other accounts want the rest" if reason is Reason.SOFT_LIMIT else "")


def _names(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return listed([*names[:NAMED_MAX], f"{more} more"] if more > 0 else list(names))


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
