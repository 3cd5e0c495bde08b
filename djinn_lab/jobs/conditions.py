"""The conditions that a job can depend on, as people write them, and the state of a job's dependencies.

::

    JOB                  it ended well                      (Slurm's afterok)
    JOB:any              it ended, however                  (afterany)
    JOB:checkpoint       it announced a checkpoint; it may still run
    JOB:checkpoint=NAME  it announced that one
    data:NAME            its owner, or a user of the same project, published data of that name

A condition is open, or met, or missed: it can never be met any more. A job may need all of them, or as
many as it says. It continues as soon as so many are met, and ends as soon as that many cannot be met any
more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from djinn_lab.units import format_seconds, listed

DATA = "data"
FORMS = "JOB, JOB:any, JOB:checkpoint, JOB:checkpoint=NAME or data:NAME"
NAME_CHARACTERS_MAX = 200
NAMES_SHOWN_MAX = 3


class Need(StrEnum):
    """What the condition needs of its job."""

    SUCCESS = "success"
    END = "end"
    CHECKPOINT = "checkpoint"
    DATA = "data"
    """Published data, by any job."""


class Condition(msgspec.Struct, frozen=True):
    """One dependency of a job. ``job``: empty for data. ``name``: of the data, or of the checkpoint (empty:
    any)."""

    need: Need
    job: str = ""
    name: str = ""

    def __str__(self) -> str:
        match self.need:
            case Need.SUCCESS:
                return self.job
            case Need.END:
                return f"{self.job}:any"
            case Need.CHECKPOINT:
                return f"{self.job}:checkpoint{f'={self.name}' if self.name else ''}"
            case Need.DATA:
                return f"{DATA}:{self.name}"

    def met_by_checkpoint(self, job: str, name: str) -> bool:
        """Return whether the checkpoint ``name`` of ``job`` meets the condition."""
        return self.need is Need.CHECKPOINT and self.job == job and self.name in ("", name)


@lru_cache(maxsize=4096)
def parse(text: str) -> Condition:
    """Return the condition. Raises ValueError for a text that is none."""
    job, colon, rest = text.partition(":")
    kind, equals, name = rest.partition("=")
    if job == DATA and colon:
        condition = Condition(Need.DATA, name=rest)
    elif not colon:
        condition = Condition(Need.SUCCESS, job)
    elif rest == "any":
        condition = Condition(Need.END, job)
    elif kind == "checkpoint":
        condition = Condition(Need.CHECKPOINT, job, name)
    else:
        raise ValueError(f"{text!r}, which is no dependency; write {FORMS}")
    named = equals or condition.need is Need.DATA
    problem = name_problem(condition.name) if named and condition.need is not Need.SUCCESS else None
    if problem is not None or (condition.need is not Need.DATA and not job.strip()):
        raise ValueError(f"{text!r}, which is no dependency: {problem or f'write {FORMS}'}")
    return condition


def parsed(texts: Iterable[str], any_end: bool = False) -> tuple[Condition, ...]:
    """Return the conditions, each once. ``any_end``: a job alone means that it ended, however. Raises
    ValueError."""
    found = dict.fromkeys(map(parse, texts))
    if any_end:
        found = dict.fromkeys(replace(c, need=Need.END) if c.need is Need.SUCCESS else c for c in found)
    return tuple(found)


def separated(given: Iterable[str]) -> tuple[str, ...]:
    """Split options as people give them: ``["a,b", "c"]`` to ``("a", "b", "c")``. Raises ValueError."""
    texts = tuple(text.strip() for one in given for text in one.split(","))
    parsed(texts)
    return texts


def name_problem(name: str) -> str | None:
    """Return why a checkpoint or data cannot have this name, None when it can."""
    if not name.strip() or name != name.strip():
        return "a name is not empty, and does not begin or end with a space"
    if len(name) > NAME_CHARACTERS_MAX or not name.isprintable() or "," in name:
        return f"a name has at most {NAME_CHARACTERS_MAX} printable characters and no comma"
    return None


@lru_cache(maxsize=4096)
def jobs_in(texts: tuple[str, ...]) -> frozenset[str]:
    """Return the jobs that these conditions name."""
    return frozenset(condition.job for condition in map(parse, texts) if condition.job)


def same_project(account: str, other: str) -> bool:
    """Return whether two accounts share published data: one user does, and so do users of one project (the
    account above both)."""
    above, other_above = account.rpartition("/")[0], other.rpartition("/")[0]
    return account == other or (above == other_above and above != "")


class DependencyResults(msgspec.Struct, frozen=True, omit_defaults=True):
    """Results of conditions. ``enough``: so many of all must be met, None: all. ``met``: as they were
    written; ``missed``: why they cannot be met any more, without a full stop."""

    enough: int | None = None
    met: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()


class DependencyState(msgspec.Struct, frozen=True):
    """How far the dependencies of a job are met. ``open``: conditions that may still be met."""

    open: tuple[str, ...] = ()
    results: DependencyResults = DependencyResults()

    @property
    def missing_count(self) -> int:
        """Return how many more conditions must be met."""
        results = self.results
        of_all = len(self.open) + len(results.met) + len(results.missed)
        return (of_all if results.enough is None else min(results.enough, of_all)) - len(results.met)

    @property
    def unsatisfiable(self) -> str | None:
        """Why the dependencies can never be met, None while they may."""
        missing_count, missed = self.missing_count, self.results.missed
        if missing_count <= len(self.open):
            return None
        if self.results.enough is None or not (self.open or self.results.met):
            return "; ".join(missed)
        came = len(self.results.met)
        why = "; ".join(missed)
        return f"only {len(self.open) + came} of the {missing_count + came} that it needs can be met: {why}"

    def meet(self, text: str) -> DependencyState:
        """Mark the condition as met. Nothing is open any more once enough are met."""
        if text not in self.open:
            return self
        met = (*self.results.met, text)
        after = DependencyState(
            tuple(one for one in self.open if one != text), replace(self.results, met=met)
        )
        return after if after.missing_count > 0 else replace(after, open=())

    def miss(self, text: str, why: str) -> DependencyState:
        if text not in self.open:
            return self
        missed = (*self.results.missed, why)
        return DependencyState(
            tuple(one for one in self.open if one != text), replace(self.results, missed=missed)
        )

    def checkpoint(self, job: str, name: str) -> DependencyState:
        """Meet the conditions on this checkpoint, which ``job`` announced."""
        waiting = self
        for text in self.open:
            if parse(text).met_by_checkpoint(job, name):
                waiting = waiting.meet(text)
        return waiting

    def published(self, name: str) -> DependencyState:
        """Meet the condition on this data. The caller has checked that its account may."""
        return self.meet(str(Condition(Need.DATA, name=name)))

    def job_ended(self, job: str, called: str, state: str, announced: Collection[str]) -> DependencyState:
        """Meet or miss the conditions on the ended job. ``called``: its name in reasons. ``announced``:
        its checkpoints."""
        waiting = self
        for text in self.open:
            condition = parse(text)
            if condition.job != job:
                continue
            if condition.need is Need.CHECKPOINT:
                names = condition.name in announced if condition.name else bool(announced)
                why = f"{called} ended ({state}) without {_the_checkpoint(condition)}{_but(announced)}"
                waiting = waiting.meet(text) if names else waiting.miss(text, why)
            elif condition.need is Need.END or state == "DONE":
                waiting = waiting.meet(text)
            else:
                waiting = waiting.miss(text, f"{called} is {state}")
        return waiting


def describe(
    waiting: DependencyState,
    called: Callable[[str], str],
    announced: Callable[[str], Sequence[str]],
    limit_s: float | None,
) -> str:
    """Say what a job waits for, in a sentence or two. ``called``: how a job is named, ``announced``: its
    checkpoints so far, ``limit_s``: of this wait."""
    conditions = [parse(text) for text in waiting.open]
    well = [called(one.job) for one in conditions if one.need is Need.SUCCESS]
    ended = [called(one.job) for one in conditions if one.need is Need.END]
    parts = [f"{listed(well)} to end well"] if well else []
    parts += [f"{listed(ended)} to end"] if ended else []
    for one in conditions:
        if one.need is Need.CHECKPOINT:
            which = f"checkpoint {one.name!r}" if one.name else "a checkpoint"
            parts.append(f"{which} of {called(one.job)}, which has announced {_so_far(announced(one.job))}")
        elif one.need is Need.DATA:
            parts.append(f"data {one.name!r}, which is not published yet")
    sentence = f"Waits for {'; for '.join(parts)}."
    results = waiting.results
    if results.enough is not None:
        of_all = len(conditions) + len(results.met) + len(results.missed)
        sentence += f" It needs {min(results.enough, of_all)} of {of_all}, and {len(results.met)} came."
    if results.missed:
        sentence += f" Not any more: {'; '.join(results.missed)}."
    if limit_s is not None:
        sentence += f" It waits {format_seconds(limit_s)} at most."
    return sentence


def timeout_reason(waiting: DependencyState, limit_s: float, called: Callable[[str], str]) -> str:
    """Return the reason for a job that waited to its own limit."""
    those = []
    for one in (parse(text) for text in waiting.open):
        which = f"checkpoint {one.name!r}" if one.name else "a checkpoint"
        if one.need is Need.DATA:
            those.append(f"data {one.name!r}")
        else:
            those.append(f"{which} of {called(one.job)}" if one.need is Need.CHECKPOINT else called(one.job))
    return f"it waited {format_seconds(limit_s)}, its own limit, for {listed(those)}"


def _the_checkpoint(condition: Condition) -> str:
    return f"announcing checkpoint {condition.name!r}" if condition.name else "announcing a checkpoint"


def _but(announced: Collection[str]) -> str:
    return f", and announced {_so_far(list(announced)).replace(' so far', '')}" if announced else ""


def _so_far(announced: Sequence[str]) -> str:
    if not announced:
        return "none so far"
    shown = ", ".join(repr(name) for name in announced[-NAMES_SHOWN_MAX:])
    more = "..., " if len(announced) > NAMES_SHOWN_MAX else ""
    return f"{len(announced)} so far ({more}{shown})"
