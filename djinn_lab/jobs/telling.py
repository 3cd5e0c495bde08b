"""What the queue says about its jobs: notices to their clients, lines to session memory, stories."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping

from djinn_lab.jobs import dependencies
from djinn_lab.jobs.commands import LineOrdered, Notify
from djinn_lab.jobs.explain import Place, explain, places_in
from djinn_lab.jobs.job import Closed, Job
from djinn_lab.jobs.kept_back import KeptBack
from djinn_lab.jobs.lines import Lines
from djinn_lab.jobs.messages import Event, SegmentProgressed
from djinn_lab.jobs.states import IN_LINE, JobState
from djinn_lab.jobs.tables import Tables

STORY_EVENTS_MAX = 1000
_NONE_CLOSED = Closed((), ())
POSITIONS_TOLD_MAX = 100
"""With more in line, a change of place is not worth a message to each of them."""


class Teller:
    """Remembers what was told, so that only news are."""

    def __init__(self, tables: Tables, lines: Lines) -> None:
        self._tables = tables
        self._lines = lines
        self._told: dict[str, tuple[object, ...]] = {}
        self._lines_told: dict[str, tuple[str, ...]] = {}
        self._stories: dict[str, deque[Event]] = {}

    def place(self, job: Job) -> Place | None:
        """Where in its device's line a job stands, None when it stands in none."""
        if job.held_on is None or job.state not in IN_LINE:
            return None
        places = self._places(job.held_on, self._lines.of_device(job.held_on))
        return next(place for other, place in places if other.job == job.job)

    def places(self) -> dict[str, Place]:
        """Of everybody in line."""
        lines = self._lines.all().items()
        return {job.job: place for device, line in lines for job, place in self._places(device, line)}

    def first_places(self) -> dict[str, Place]:
        """Of everybody in line; where too many are, of the first of them."""
        return dict(self._first_places())

    def _first_places(self, of: Container[str] | None = None) -> Iterator[tuple[str, Place]]:
        """``of``: only those of these jobs."""
        lines = (self._lines.first_of_each() if self._lines.long else self._lines.all()).items()
        for device, line in lines:
            for job, place in self._places(device, line, of):
                yield job.job, place

    def explain(self, job: Job, place: Place | None, kept_back: KeptBack | None = None) -> str:
        """``kept_back``: of this moment, of who asks about many."""
        if job.waits_for and not job.finished:
            return dependencies.told(self._tables, job)
        why = (kept_back or self._lines.kept_back()).why(job) if job.state in IN_LINE else ""
        looks = job.state is JobState.SUBMITTED or job.state in IN_LINE
        return explain(job, place, self._tables.closed_devices() if looks else _NONE_CLOSED, why)

    def explain_all(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Place | None, str]]:
        """With their places."""
        return self._explain_many(jobs, self.places())

    def explain_first(self, others: Iterable[Job]) -> Iterator[tuple[Job, Place | None, str]]:
        """Those who have places where not all can be given one, and ``others`` that are in no line."""
        places = self.first_places()
        return self._explain_many((*others, *(self._tables.jobs[name] for name in places)), places)

    def explain_some(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Place | None, str]]:
        """With their places, as far as a notice would tell them."""
        return self._explain_many(jobs, self.first_places())

    def _explain_many(
        self, jobs: Iterable[Job], places: Mapping[str, Place]
    ) -> Iterator[tuple[Job, Place | None, str]]:
        kept_back = self._lines.kept_back()
        for job in jobs:
            place = places.get(job.job)
            yield job, place, self.explain(job, place, kept_back)

    def story(self, job: str) -> tuple[Event, ...]:
        """Every event that touched a remembered job, oldest first."""
        return tuple(self._stories.get(job, ()))

    def line_news(self) -> Iterator[LineOrdered]:
        """Whose turn is near, for session memory, where that changed."""
        lines = self._lines.next_of_each()
        for device, line in sorted(lines.items()):
            if self._lines_told.get(device) != line:
                yield LineOrdered(device, line)
        self._lines_told = lines

    def notices(self) -> Iterator[Notify]:
        """One for every job whose state, device or place in line changed. Of a long line only those that the
        event touched hear at once, and without a place unless they are among the first; the others when
        somebody asks."""
        tables = self._tables
        short = len(tables.of_state[JobState.QUEUED]) <= POSITIONS_TOLD_MAX
        touched = [job for name in tables.touched if (job := tables.jobs.get(name))]
        asked = short or any(job.state in IN_LINE for job in touched)
        asked = asked and any(map(tables.of_state.__getitem__, IN_LINE))
        places = dict(self._first_places(None if short else tables.touched)) if asked else {}
        kept_back = self._lines.kept_back() if places else None
        for name in dict.fromkeys([*tables.touched, *(places if short else ())]):
            job = tables.find(name)
            if job is None or (job.state is JobState.RESTORING and job.memory == "ask"):
                continue  # memory answers at once, most of the time
            place = places.get(name)
            position = place.position if place else None
            stopping = job.cancelling or job.preempting
            told = (
                *(job.state, job.held_on, job.members, job.segment, position, stopping),
                *(job.memory_reason, job.waits_for, kept_back.why(job) if place and kept_back else ""),
            )
            if self._told.get(name) == told:
                continue
            self._told[name] = told
            if job.finished:
                del self._told[name]
            wait_s = job.memory_wait_s if job.state is JobState.RESTORING else None
            yield Notify(name, job.state, self.explain(job, place, kept_back), position, job.held_on, wait_s)

    def remember(self, event: Event) -> None:
        """Add the event to the stories of the jobs that it touched."""
        named = getattr(event, "job", None)
        names: Iterable[str] = dict.fromkeys([*([named] if named else []), *self._tables.touched])
        for name in names:
            if self._tables.find(name) is None:
                continue
            story = self._stories.setdefault(name, deque(maxlen=STORY_EVENTS_MAX))
            if isinstance(event, SegmentProgressed) and story and isinstance(story[-1], SegmentProgressed):
                story.pop()
            story.append(event)

    def forget(self, jobs: Iterable[str]) -> None:
        """Nobody can ask for these any more."""
        for name in jobs:
            self._stories.pop(name, None)

    def _places(
        self, device: str, line: list[Job], of: Container[str] | None = None
    ) -> Iterator[tuple[Job, Place]]:
        running = self._tables.devices[device].running
        return places_in(line, self._tables.jobs[running[0]] if running else None, of)
